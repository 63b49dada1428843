"""Inventory: every tensor that a config asks for, by name, shape, axes and place. No weights.

Names, shapes and order are those of GPT(config).state_dict(); a tied matrix is listed under both
of its names, with `tied_to` on the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from model.config import GPTConfig

Component = Literal["embedding", "positions", "attention", "feed_forward", "norm", "unembedding"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
TensorAxis = Literal[
    "vocab", "position", "d_model", "d_head", "d_mlp", "head*d_head", "kv_head*d_head"
]
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


class ParameterError(ValueError):
    """A question about parameters that has no answer; the message says what would have one."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor. `axes` names each dimension; `head*d_head` is head by head, d_head rows each.

    `count` and `bytes` are those of the tensor alone; one with `tied_to` is stored in the other.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[TensorAxis, ...]
    dtype: str
    component: Component
    layer: int | None = None
    tied_to: str | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * BYTES[self.dtype]


def inventory(config: GPTConfig, *, dtype: str = "float32") -> list[TensorInfo]:
    """All tensors in the module's own order. Raises ParameterError for an unknown dtype."""
    if dtype not in BYTES:
        raise ParameterError(f"dtype is {dtype!r}; it must be one of {sorted(BYTES)}")
    writer = _Writer(config, dtype)
    tensors = [writer.matrix("embed.weight", "embedding", "vocab", "d_model")]
    if config.positions == "learned":
        tensors.append(writer.matrix("pos_embed.weight", "positions", "position", "d_model"))
    for layer in range(config.n_layer):
        tensors += writer.block(layer)
    tensors += writer.norm("ln_final")
    tied_to = "embed.weight" if config.tied else None
    tensors.append(
        writer.matrix("unembed.weight", "unembedding", "vocab", "d_model", tied_to=tied_to)
    )
    return tensors


class _Writer:
    """Knows the size of every axis."""

    def __init__(self, config: GPTConfig, dtype: str) -> None:
        self.config = config
        self.dtype = dtype
        self.sizes: dict[TensorAxis, int] = {
            "vocab": config.vocab_size,
            "position": config.n_ctx,
            "d_model": config.d_model,
            "d_head": config.d_head,
            "d_mlp": config.d_mlp,
            "head*d_head": config.n_head * config.d_head,
            "kv_head*d_head": config.n_kv_head * config.d_head,
        }

    def matrix(
        self,
        name: str,
        component: Component,
        *axes: TensorAxis,
        layer: int | None = None,
        tied_to: str | None = None,
    ) -> TensorInfo:
        return TensorInfo(
            name=name,
            shape=tuple(self.sizes[axis] for axis in axes),
            axes=axes,
            dtype=self.dtype,
            component=component,
            layer=layer,
            tied_to=tied_to,
        )

    def norm(self, name: str, layer: int | None = None) -> Iterator[TensorInfo]:
        yield self.matrix(f"{name}.weight", "norm", "d_model", layer=layer)
        if self.config.norm_bias:
            yield self.matrix(f"{name}.bias", "norm", "d_model", layer=layer)

    def block(self, layer: int) -> Iterator[TensorInfo]:
        prefix = f"blocks.{layer}"
        yield from self.norm(f"{prefix}.ln1", layer)
        for name, out, into, bias in self._attention():
            yield from self._linear(f"{prefix}.attn.{name}", "attention", out, into, bias, layer)
        if self.config.qk_norm:
            for name in ("q_norm", "k_norm"):
                yield self.matrix(
                    f"{prefix}.attn.{name}.weight", "attention", "d_head", layer=layer
                )
        yield from self.norm(f"{prefix}.ln2", layer)
        for name, out, into in self._feed_forward():
            bias = self.config.mlp_bias
            yield from self._linear(f"{prefix}.mlp.{name}", "feed_forward", out, into, bias, layer)

    def _attention(self) -> list[tuple[str, TensorAxis, TensorAxis, bool]]:
        bias = self.config.qkv_bias
        return [
            ("q", "head*d_head", "d_model", bias),
            ("k", "kv_head*d_head", "d_model", bias),
            ("v", "kv_head*d_head", "d_model", bias),
            ("o", "d_model", "head*d_head", self.config.o_bias),
        ]

    def _feed_forward(self) -> list[tuple[str, TensorAxis, TensorAxis]]:
        gate: list[tuple[str, TensorAxis, TensorAxis]] = [("gate", "d_mlp", "d_model")]
        return [
            *(gate if self.config.gated else []),
            ("up", "d_mlp", "d_model"),
            ("down", "d_model", "d_mlp"),
        ]

    def _linear(
        self,
        name: str,
        component: Component,
        out: TensorAxis,
        into: TensorAxis,
        bias: bool,
        layer: int,
    ) -> Iterator[TensorInfo]:
        """As torch stores it: a weight (out, in), applied as x Wᵀ, and a bias (out)."""
        yield self.matrix(f"{name}.weight", component, out, into, layer=layer)
        if bias:
            yield self.matrix(f"{name}.bias", component, out, layer=layer)


def by_component(tensors: Sequence[TensorInfo]) -> dict[Component, int]:
    """How many stored numbers each component holds; a tied matrix counts where it is stored."""
    counts = dict.fromkeys(COMPONENTS, 0)
    for tensor in tensors:
        if tensor.tied_to is None:
            counts[tensor.component] += tensor.count
    return counts


def differences(
    tensors: Sequence[TensorInfo], held: Mapping[str, Sequence[int]]
) -> list[tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]]:
    """What a module or checkpoint holds, by name and shape, against the inventory.

    Each difference is (name, shape expected, shape held), None where one side lacks it. A tied
    tensor may be absent from `held`, as files store it once.
    """
    expected = {tensor.name: tensor for tensor in tensors}
    faults: list[tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]] = []
    for name, tensor in expected.items():
        shape = held.get(name)
        if shape is None and tensor.tied_to is not None:
            continue
        if shape is None or tuple(shape) != tensor.shape:
            faults.append((name, tensor.shape, None if shape is None else tuple(shape)))
    faults += [(name, None, tuple(held[name])) for name in held if name not in expected]
    return faults
