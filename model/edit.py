"""Edits: how a run is changed at a site, for chosen layers, heads and positions.

Knows nothing of where the numbers come from: a patch from another run arrives as values to set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from model.capture import grown, open_axes, resolve_indices
from model.config import GPTConfig
from model.selection import Asked, Indices, put, take
from model.sites import Axis, Site

Op = Literal["zero", "block", "scale", "add", "set", "mean"]
MASKED_SCORES = "attn.masked_scores"


class EditError(ValueError):
    """An edit that does not fit its site, or that would change nothing."""


@dataclass(eq=False, kw_only=True)
class Edit:
    """One change at one site, resolved for one run; it counts what it did.

    `op`: "zero"; "block" (masked score −∞, so that the softmax renormalises over the other keys);
    "scale" by `value`; "add" `value`; "set" `value`; "mean" (each value becomes the mean over
    positions, or over queries at attention cells, of the selected ones or of `over` "all").
    `value` is one number, or a tensor of the selection's shape with the layer axis first. `open`
    are the axes on which it goes on where the text does.
    """

    op: Op
    site: Site
    indices: tuple[Indices | None, ...]
    value: Tensor | float = 0.0
    over: Literal["selected", "all"] = "selected"
    values_touched: int = 0
    squared_change: list[Tensor] = field(default_factory=list)
    open: frozenset[Axis] = frozenset()

    @classmethod
    def resolve(
        cls,
        op: Op,
        site: Site,
        asked: dict[Axis, Asked],
        config: GPTConfig,
        n_tokens: int,
        *,
        value: Tensor | float = 0.0,
        over: Literal["selected", "all"] = "selected",
    ) -> Edit:
        """Raises EditError where op, value and site do not fit, SelectionError for the indices."""
        if op == "block" and site.name != MASKED_SCORES:
            raise EditError(f"block works at {MASKED_SCORES}, not at {site.name}")
        if op == "mean" and not {"position", "query"} & set(site.axes):
            raise EditError(f"{site.name} has no positions to take a mean over")
        if op == "mean" and site.name == MASKED_SCORES:
            raise EditError(f"{MASKED_SCORES} holds −∞, which has no mean: use attn.scores")
        edit = cls(
            op=op,
            site=site,
            indices=resolve_indices(site, asked, config, n_tokens),
            value=value,
            over=over,
            open=open_axes(site, asked),
        )
        if isinstance(value, Tensor):
            sizes = site.sizes(config, n_tokens)
            selected = tuple(
                size if index is None else len(index)
                for size, index in zip(sizes, edit.indices, strict=True)
            )
            if tuple(value.shape) != selected:
                raise EditError(
                    f"value has shape {list(value.shape)}; the selection of {site.name} has "
                    f"{list(selected)} over {list(site.axes)}"
                )
        return edit

    @property
    def layers(self) -> tuple[int, ...] | tuple[None]:
        if not self.site.layered:
            return (None,)
        assert self.indices[0] is not None
        return tuple(self.indices[0])

    @property
    def grows(self) -> frozenset[Axis]:
        """The axes on which it goes on where the text does: none where it has a value of a shape
        that was chosen for one length."""
        return frozenset() if isinstance(self.value, Tensor) else self.open

    @property
    def revises(self) -> bool:
        """Whether a longer text changes what it does to earlier positions.

        A mean does, over positions to come; and what gives weight to keys that lie ahead.
        """
        if self.op == "mean":
            return self.over == "all" or self.site.along in self.grows
        ahead = {MASKED_SCORES: ("zero", "set"), "attn.pattern": ("set", "add")}
        return "key" in self.grows and self.op in ahead.get(self.site.name, ())

    def at_step(self, held: range) -> Edit | None:
        """The same edit where a value holds the positions (or queries) `held` of a text that ends
        with them; None where it covers none of them. It counts for itself: `add` brings it here.
        """
        indices = list(grown(self.site, self.indices, self.grows, held.stop))
        if self.site.along is not None and held.start and not self.site.spans_steps:
            dim = self.site.axes.index(self.site.along)
            covered = indices[dim]
            assert covered is not None
            there = tuple(position - held.start for position in covered if position in held)
            if not there:
                return None
            indices[dim] = there
        return replace(self, indices=tuple(indices), values_touched=0, squared_change=[])

    def add(self, step: Edit) -> None:
        """Count what the edit did at a step as done by this one: in one sum, however many."""
        self.values_touched += step.values_touched
        if step.squared_change:
            changes = torch.stack([*self.squared_change, *step.squared_change])
            self.squared_change = [changes.sum()]

    @property
    def change_norm(self) -> float:
        """Root of the summed squares of what the edit added, −∞ and what it replaced left out."""
        return float(torch.stack(self.squared_change).sum().sqrt()) if self.squared_change else 0.0

    def apply(self, layer: int | None, value: Tensor) -> Tensor:
        """value (1, …) of this layer with the edit made, in a copy."""
        indices = self.indices[1:] if self.site.layered else self.indices
        before = take(value[0], indices)
        after = self._changed(layer, value[0], before)
        edited = value.clone()
        put(edited[0], indices, after)
        self.values_touched += before.numel()
        moved = (after - before).double() if value.device.type != "mps" else after - before
        moved = torch.where(torch.isfinite(moved), moved, 0)
        self.squared_change.append(moved.square().sum())
        return edited

    def _changed(self, layer: int | None, whole: Tensor, before: Tensor) -> Tensor:
        if self.op == "zero":
            return torch.zeros_like(before)
        if self.op == "block":
            return torch.full_like(before, float("-inf"))
        if self.op == "mean":
            return self._mean(whole, before)
        by = self.value
        if isinstance(by, Tensor):
            by = by[self.layers.index(layer)] if self.site.layered else by
            by = by.to(before)
        if self.op == "scale":
            return before * by
        return before + by if self.op == "add" else torch.zeros_like(before) + by

    def _mean(self, whole: Tensor, before: Tensor) -> Tensor:
        axes = self.site.axes[1:] if self.site.layered else self.site.axes
        indices = list(self.indices[1:] if self.site.layered else self.indices)
        dim = axes.index("position" if "position" in axes else "query")
        if self.over == "all":
            indices[dim] = None
            before_all = take(whole, indices)
            return before_all.mean(dim, keepdim=True).expand_as(before)
        return before.mean(dim, keepdim=True).expand_as(before)
