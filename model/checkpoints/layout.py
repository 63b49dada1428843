"""Pieces of which the tensor lists of all formats are made: projections, norms, fused parts."""

from __future__ import annotations

from torch import Tensor

from model.checkpoints.contents import Change, Shape, Wanted, unchanged
from model.config import GPTConfig


def linear(theirs: str, ours: str, n_in: int, n_out: int, bias: bool) -> dict[str, Wanted]:
    """A projection that is stored as ours are: weight (out, in)."""
    wanted = {f"{theirs}.weight": Wanted((n_out, n_in), {f"{ours}.weight": unchanged})}
    if bias:
        wanted[f"{theirs}.bias"] = Wanted((n_out,), {f"{ours}.bias": unchanged})
    return wanted


def norm(theirs: str, ours: str, config: GPTConfig) -> dict[str, Wanted]:
    shape: Shape = (config.d_model,)
    wanted = {f"{theirs}.weight": Wanted(shape, {f"{ours}.weight": unchanged})}
    if config.norm_bias:
        wanted[f"{theirs}.bias"] = Wanted(shape, {f"{ours}.bias": unchanged})
    return wanted


def head(theirs: str, config: GPTConfig) -> dict[str, Wanted]:
    """The unembedding; none where it is the embedding again."""
    if config.tied:
        return {}
    return linear(theirs, "unembed", config.d_model, config.vocab_size, False)


def third(index: int, *, turn: bool = False) -> Change:
    """One of q | k | v on the last axis: (…, 3C) -> (…, C), turned to (C, …) if asked."""

    def change(tensor: Tensor) -> Tensor:
        part = tensor.chunk(3, dim=-1)[index]
        return part.T if turn else part

    return change


def rows_of_third(index: int) -> Change:
    """One of q, k, v that lie one below the other: (3C, …) -> (C, …)."""
    return lambda tensor: tensor.chunk(3, dim=0)[index]


def of_each_head(index: int, n_head: int) -> Change:
    """One of q, k, v out of rows (H, 3, D): (H·3·D, …) -> (H·D, …)."""

    def change(tensor: Tensor) -> Tensor:
        d_head = tensor.shape[0] // (3 * n_head)
        heads = tensor.reshape(n_head, 3, d_head, *tensor.shape[1:])
        return heads[:, index].flatten(0, 1)

    return change
