"""The tree: what holds how many parameters and why, from the whole model down to a head's share.

Every node's count is its own formula worked out, and the sum of its children's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from model.config import GPTConfig
from model.parameters.formula import ZERO, Formula, Polynomial, Sizes, total, work

Kind = Literal[
    "model",
    "embedding",
    "positions",
    "blocks",
    "block",
    "norm",
    "attention",
    "head",
    "kv_head",
    "query",
    "key",
    "value",
    "output",
    "output_bias",
    "feed_forward",
    "gate",
    "up",
    "down",
    "unembedding",
]


@dataclass(frozen=True)
class Node:
    """A part of the model. `tied_to` names the tensor in which a part without its own is stored."""

    id: str
    kind: Kind
    formula: Formula
    children: tuple[Node, ...] = ()
    tied_to: str | None = None

    @property
    def count(self) -> int:
        return self.formula.count

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, path: str) -> Node:
        """Raises KeyError where no node has this id."""
        for node in self.walk():
            if node.id == path:
                return node
        raise KeyError(path)

    def cut(self, depth: int) -> Node:
        """The same tree with at most `depth` levels below this node."""
        children = tuple(child.cut(depth - 1) for child in self.children) if depth > 0 else ()
        return Node(self.id, self.kind, self.formula, children, self.tied_to)


def grow(config: GPTConfig, depth: int | None = None) -> Node:
    """The tree of a config, whole or with at most `depth` levels below the model.

    Attention is shared out by head: a head holds its rows of W_q (and of W_k, W_v where it has its
    own) and its columns of W_o. Under grouped queries the key/value heads, which serve several
    query heads, are nodes beside them. What no head owns (the output bias, the q/k norms' gains)
    stands beside the heads too.
    """
    return _Grower(config).model(depth)


def count_nodes(config: GPTConfig, depth: int | None = None) -> int:
    """How many nodes `grow` would give, at the cost of one block's."""
    one = sum(1 for _ in grow(replace(config, n_layer=1), depth).walk())
    two = sum(1 for _ in grow(replace(config, n_layer=2), depth).walk())
    return one + (config.n_layer - 1) * (two - one)


def _moved(node: Node, old: str, new: str) -> Node:
    """The same node under another id, its children with it: all blocks hold the same."""
    children = tuple(_moved(child, old, new) for child in node.children)
    return Node(new + node.id[len(old) :], node.kind, node.formula, children, node.tied_to)


@dataclass(frozen=True)
class _Part:
    """A node before its formula is written: matrices apart, so that they are written first."""

    id: str
    kind: Kind
    matrices: Polynomial = ZERO
    vectors: Polynomial = ZERO
    children: tuple[_Part, ...] = ()
    tied_to: str | None = None

    @property
    def size(self) -> Polynomial:
        return self.matrices + self.vectors


class _Grower:
    def __init__(self, config: GPTConfig) -> None:
        self.config = config
        self.sizes = Sizes.of(config)
        self.grouped = config.n_kv_head != config.n_head
        self._worked: dict[Polynomial, Formula] = {}

    def model(self, depth: int | None) -> Node:
        s, config = self.sizes, self.config
        first = [_Part("embed", "embedding", s.V * s.d)]
        if config.positions == "learned":
            first.append(_Part("pos_embed", "positions", s.n_ctx * s.d))
        block = self.block(0)
        norm = self.norm("ln_final")
        if config.tied:
            unembed = _Part("unembed", "unembedding", tied_to="embed.weight")
        else:
            unembed = _Part("unembed", "unembedding", s.V * s.d)

        repeated = ("L", block.size)
        first_block = self.finish(block)
        if depth is not None:
            first_block = first_block.cut(depth - 2)
        layers = range(config.n_layer if depth is None or depth >= 2 else 0)
        blocks = tuple(_moved(first_block, "blocks.0", f"blocks.{layer}") for layer in layers)
        stack = Node("blocks", "blocks", work([repeated], s.values), blocks)
        before = total(part.size for part in first)
        whole = [(None, before), repeated, (None, norm.size), (None, unembed.size)]
        children = (*map(self.finish, first), stack, self.finish(norm), self.finish(unembed))
        return Node("model", "model", work(whole, s.values), children if depth != 0 else ())

    def finish(self, part: _Part) -> Node:
        formula = self._worked.get(part.size)
        if formula is None:
            formula = self._worked[part.size] = work(part.size, self.sizes.values)
        return Node(
            part.id, part.kind, formula, tuple(map(self.finish, part.children)), part.tied_to
        )

    def block(self, layer: int) -> _Part:
        path = f"blocks.{layer}"
        return self._whole(
            path,
            "block",
            [
                self.norm(f"{path}.ln1"),
                self.attention(f"{path}.attn"),
                self.norm(f"{path}.ln2"),
                self.feed_forward(f"{path}.mlp"),
            ],
        )

    def norm(self, path: str) -> _Part:
        return _Part(path, "norm", vectors=self.sizes.d * (2 if self.config.norm_bias else 1))

    def feed_forward(self, path: str) -> _Part:
        s, bias = self.sizes, self.config.mlp_bias
        parts = [
            self._linear(f"{path}.up", "up", s.mlp, s.d, bias),
            self._linear(f"{path}.down", "down", s.d, s.mlp, bias),
        ]
        if self.config.gated:
            parts.insert(0, self._linear(f"{path}.gate", "gate", s.mlp, s.d, bias))
        return self._whole(path, "feed_forward", parts)

    def attention(self, path: str) -> _Part:
        s, config = self.sizes, self.config
        parts = [self.head(f"{path}.heads.{head}") for head in range(config.n_head)]
        if self.grouped:
            parts += [
                self._whole(kv, "kv_head", self._keys_and_values(kv))
                for kv in (f"{path}.kv_heads.{head}" for head in range(config.n_kv_head))
            ]
        if config.o_bias:
            parts.append(_Part(f"{path}.o.bias", "output_bias", vectors=s.d))
        if config.qk_norm:
            parts += [_Part(f"{path}.{name}", "norm", vectors=s.D) for name in ("q_norm", "k_norm")]
        # Written by matrix, as H heads of D make q wide; the heads' own formulas add up to it.
        rows = s.q + 2 * s.kv
        return _Part(
            path,
            "attention",
            matrices=(rows + s.q) * s.d,
            vectors=total(
                [
                    rows if config.qkv_bias else ZERO,
                    s.d if config.o_bias else ZERO,
                    2 * s.D if config.qk_norm else ZERO,
                ]
            ),
            children=tuple(parts),
        )

    def head(self, path: str) -> _Part:
        s = self.sizes
        parts = [self._linear(f"{path}.q", "query", s.D, s.d, self.config.qkv_bias)]
        if not self.grouped:
            parts += self._keys_and_values(path)
        parts.append(self._linear(f"{path}.o", "output", s.d, s.D, bias=False))
        return self._whole(path, "head", parts)

    def _keys_and_values(self, path: str) -> list[_Part]:
        s, bias = self.sizes, self.config.qkv_bias
        return [
            self._linear(f"{path}.k", "key", s.D, s.d, bias),
            self._linear(f"{path}.v", "value", s.D, s.d, bias),
        ]

    @staticmethod
    def _linear(path: str, kind: Kind, out: Polynomial, into: Polynomial, bias: bool) -> _Part:
        return _Part(path, kind, out * into, out if bias else ZERO)

    @staticmethod
    def _whole(path: str, kind: Kind, parts: Sequence[_Part]) -> _Part:
        return _Part(
            path,
            kind,
            total(part.matrices for part in parts),
            total(part.vectors for part in parts),
            tuple(parts),
        )
