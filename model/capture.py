"""Captures: which values of which site a run copies out, and the copies. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model.config import GPTConfig
from model.selection import Asked, Indices, SelectionError, is_open, resolve, take
from model.sites import SELECTABLE, Axis, Site

Reduce = Literal["stats", "head_mean", "head_max"]
STATS = ("mean", "variance", "norm", "min", "max")


def resolve_indices(
    site: Site, asked: dict[Axis, Asked], config: GPTConfig, n_tokens: int
) -> tuple[Indices | None, ...]:
    """True indices for each axis of the site, None where an axis cannot be selected on.

    Raises SelectionError where `asked` names an axis that the site does not have.
    """
    for axis in asked:
        if axis not in site.axes:
            has = [axis for axis in site.axes if axis in SELECTABLE]
            raise SelectionError(f"{site.name} has no {axis} axis; it can be selected on {has}")
    return tuple(
        resolve(asked.get(axis, "all"), size, axis) if axis in SELECTABLE else None
        for axis, size in zip(site.axes, site.sizes(config, n_tokens), strict=True)
    )


def open_axes(site: Site, asked: dict[Axis, Asked]) -> frozenset[Axis]:
    """The axes on which the selection grows with the text, as generation makes it longer."""
    return frozenset(
        axis
        for axis in site.axes
        if axis in ("position", "query", "key") and is_open(asked.get(axis, "all"))
    )


def grown(
    site: Site, indices: tuple[Indices | None, ...], axes: Collection[Axis], n_tokens: int
) -> tuple[Indices | None, ...]:
    """The indices for a text of n_tokens: those of `axes` go on to its end, the others stay."""
    return tuple(
        range(index.start, n_tokens, index.step)
        if axis in axes and isinstance(index, range)
        else index
        for axis, index in zip(site.axes, indices, strict=True)
    )


@dataclass(frozen=True)
class Capture:
    """A named selection of one site, resolved for one run.

    `indices` has one entry for each axis of the site; `sizes` is the whole site's shape.
    `reduce` "stats" replaces the last axis by mean, variance, norm, min and max over it;
    "head_mean" and "head_max" take the head axis out. `open` are the axes on which it goes on
    where the text does.
    """

    name: str
    site: Site
    indices: tuple[Indices | None, ...]
    sizes: tuple[int, ...]
    reduce: Reduce | None = None
    dtype: torch.dtype = torch.float32
    open: frozenset[Axis] = frozenset()

    @classmethod
    def resolve(
        cls,
        site: Site,
        asked: dict[Axis, Asked],
        config: GPTConfig,
        n_tokens: int,
        *,
        name: str | None = None,
        reduce: Reduce | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Capture:
        """Raises SelectionError for what does not fit the site or this run."""
        if reduce in ("head_mean", "head_max") and "head" not in site.axes:
            raise SelectionError(f"{site.name} has no head axis to take the {reduce[5:]} over")
        if reduce == "stats" and site.name == "attn.masked_scores":
            raise SelectionError("attn.masked_scores holds −∞, which has no mean or variance")
        indices = resolve_indices(site, asked, config, n_tokens)
        sizes = site.sizes(config, n_tokens)
        return cls(name or site.name, site, indices, sizes, reduce, dtype, open_axes(site, asked))

    def newest(self, config: GPTConfig, n_tokens: int) -> Capture | None:
        """What it takes of the last token of a text that grew to n_tokens; None for nothing.

        All keys that it covers, seen from that token; of every other site that token's part.
        """
        indices = list(grown(self.site, self.indices, self.open, n_tokens))
        if self.site.along is not None:
            dim = self.site.axes.index(self.site.along)
            covered = indices[dim]
            if covered is None or n_tokens - 1 not in covered:
                return None
            indices[dim] = range(n_tokens - 1, n_tokens)
        sizes = self.site.sizes(config, n_tokens)
        return replace(self, indices=tuple(indices), sizes=sizes)

    @property
    def layers(self) -> tuple[int, ...] | tuple[None]:
        """The layers it is taken from; (None,) for a site outside the blocks."""
        if not self.site.layered:
            return (None,)
        layers = self.indices[0]
        assert layers is not None
        return tuple(layers)

    @property
    def axes(self) -> tuple[Axis, ...]:
        if self.reduce == "stats":
            return (*self.site.axes[:-1], "stat")
        if self.reduce is not None:
            return tuple(axis for axis in self.site.axes if axis != "head")
        return self.site.axes

    @property
    def shape(self) -> tuple[int, ...]:
        selected = [
            size if index is None else len(index)
            for size, index in zip(self.sizes, self.indices, strict=True)
        ]
        if self.reduce == "stats":
            selected[-1] = len(STATS)
        elif self.reduce is not None:
            del selected[self.site.axes.index("head")]
        return tuple(selected)

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def coords(self) -> dict[Axis, list[int]]:
        """True indices of the axes that were not taken whole."""
        return {
            axis: list(index)
            for axis, size, index in zip(self.site.axes, self.sizes, self.indices, strict=True)
            if index is not None and axis in self.axes and index != range(size)
        }


class Recording:
    """The copy that a capture fills, layer by layer, in one buffer on the run's own device.

    `rows`: the positions (or queries) that the value will hold, where that is not all of them.
    """

    def __init__(self, capture: Capture, rows: Sequence[int] | None = None) -> None:
        self.capture = capture
        self.values: Tensor | None = None
        self.rows = rows

    def take(self, layer: int | None, value: Tensor) -> None:
        """Copy the selected part of value (the site without its layer axis, one row of a batch)."""
        capture = self.capture
        if self.values is None:
            self.values = _buffer(capture.shape, capture.dtype, value.device)
        part = self.values
        indices = capture.indices
        if capture.site.layered:
            part = part[capture.layers.index(layer)]
            indices = indices[1:]
        if self.rows is not None:
            assert capture.site.along is not None
            dim = capture.site.axes.index(capture.site.along) - capture.site.layered
            positions = indices[dim]
            assert positions is not None
            there = tuple(self.rows.index(position) for position in positions)
            indices = (*indices[:dim], there, *indices[dim + 1 :])
        part.copy_(_reduced(take(value, indices), capture))


def _buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to fill. On the CPU numpy gives it, which asks for huge pages: touching a large buffer
    for the first time costs more than what is written into it."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, dtype=str(dtype).removeprefix("torch.")))


def _reduced(values: Tensor, capture: Capture) -> Tensor:
    if capture.reduce is None:
        return values
    if capture.reduce == "stats":
        variance, mean = torch.var_mean(values, dim=-1, correction=0)
        norm = torch.linalg.vector_norm(values, dim=-1)
        return torch.stack((mean, variance, norm, values.amin(-1), values.amax(-1)), dim=-1)
    head = capture.site.axes.index("head") - capture.site.layered
    return values.mean(head) if capture.reduce == "head_mean" else values.amax(head)
