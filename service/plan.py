"""A request resolved against the loaded model: ids, captures, edits, wiring, and what they cost.

Nothing is run here; whatever does not fit is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from model.capture import Capture, resolve_indices
from model.checkpoints.open import OpenedModel
from model.config import GPTConfig, RopeScaling
from model.edit import Edit, EditError
from model.frame import require_fitting
from model.reading import require_reached
from model.selection import Asked, SelectionError, Span
from model.sites import SITES, Axis, Site, SiteError, resolve
from model.tokenizer import Encoded
from model.wiring import RopeWiring, Wiring
from service.errors import Problem
from service.input import encode_input, require_runnable
from service.schemas import reading as wire
from service.schemas.base import SpanSelection
from service.settings import Settings

_AXES: dict[str, Axis] = {
    "layers": "layer",
    "heads": "head",
    "kv_heads": "kv_head",
    "positions": "position",
    "queries": "query",
    "keys": "key",
}
ALL_LOGITS = "all logits"  # no client can name a capture so


@dataclass(frozen=True)
class Patch:
    """An edit whose values another run gives: that run's ids and what to capture of it."""

    ids: list[int]
    capture: Capture
    edit: Edit  # its value is still to come


@dataclass(frozen=True)
class Plan:
    """One run to make. `hidden` names captures that serve the answer but are not part of it;
    `dtype` is that of the tensors shown."""

    request: wire.InspectingRequest
    encoded: Encoded
    captures: list[Capture]
    edits: list[Edit | Patch]
    wiring: Wiring
    hidden: frozenset[str]
    dtype: torch.dtype

    @property
    def ids(self) -> list[int]:
        return self.encoded.ids

    @property
    def shown(self) -> list[Capture]:
        return [capture for capture in self.captures if capture.name not in self.hidden]

    @property
    def plain_edits(self) -> list[Edit]:
        return [item.edit if isinstance(item, Patch) else item for item in self.edits]


def make_plan(
    opened: OpenedModel,
    settings: Settings,
    request: wire.InspectingRequest,
    captures: Sequence[wire.Capture],
    *,
    hidden: frozenset[str] = frozenset(),
    in_bytes: bool = False,
) -> Plan:
    """Tokenize and resolve. Every ValueError raised here is the client's fault and says so.

    `in_bytes`: the whole body is binary, and the format's dtype counts whatever its encoding.
    """
    config = opened.model.config
    encoded = encode_input(
        opened,
        settings,
        text=request.text,
        token_ids=request.token_ids,
        add_bos=request.add_bos,
        parse_special=request.parse_special,
    )
    require_runnable(encoded, opened, settings)
    form = request.format
    half = form.dtype == "float16" and (in_bytes or form.encoding == "base64")
    n_tokens = len(encoded.ids)
    resolved = [resolve_capture(capture, config, n_tokens) for capture in captures]
    names = [capture.name for capture in resolved]
    for name in names:
        if names.count(name) > 1:
            raise SelectionError(f"two captures are named {name!r}; give one another name")
    if form.encoding == "sparse" and not in_bytes:
        _require_patterns([capture for capture in resolved if capture.name not in hidden])
    if request.compare:
        resolved.append(Capture.resolve(SITES["logits"], {}, config, n_tokens, name=ALL_LOGITS))
        hidden |= {ALL_LOGITS}
    edits = [
        _resolve_edit(number, edit, request, opened, settings, n_tokens)
        for number, edit in enumerate(request.edits)
    ]
    wiring = _wiring(request.wiring)
    require_fitting(config, wiring)
    plan = Plan(
        request,
        encoded,
        resolved,
        edits,
        wiring,
        hidden,
        torch.float16 if half else torch.float32,
    )
    full = request.checks_level == "full"
    require_reached(resolved, plan.plain_edits, full_checks=full)
    return plan


def _require_patterns(captures: Sequence[Capture]) -> None:
    for capture in captures:
        if capture.site.name != "attn.pattern" or capture.axes[-1] != "key":
            detail = f"sparse rows are for attn.pattern, not for {capture.name}"
            pointer = "/format/encoding"
            raise Problem(
                "invalid-request",
                f"{pointer}: {detail}",
                errors=[{"detail": detail, "pointer": pointer}],
            )


def resolve_capture(asked: wire.Capture, config: GPTConfig, n_tokens: int) -> Capture:
    site, selections = _site_and_selections(asked.site, asked, config)
    return Capture.resolve(site, selections, config, n_tokens, name=asked.name, reduce=asked.reduce)


def _site_and_selections(
    name: str, asked: wire.Selections, config: GPTConfig
) -> tuple[Site, dict[Axis, Asked]]:
    site, layer = resolve(name, config)
    selections: dict[Axis, Asked] = {}
    for field, axis in _AXES.items():
        value = getattr(asked, field)
        if isinstance(value, SpanSelection):
            selections[axis] = Span(start=value.start, stop=value.stop, step=value.step)
        elif value is not None:
            selections[axis] = value
    if layer is not None:
        if "layer" in selections:
            raise SelectionError(f"{name!r} names layer {layer} already; leave layers out")
        selections["layer"] = [layer]
    return site, selections


def _wiring(asked: wire.WiringWire) -> Wiring:
    rope = asked.rope
    return Wiring(
        causal=asked.causal,
        score_scale=asked.score_scale,
        positions=asked.positions,
        residual=asked.residual,
        rope=RopeWiring(
            base=rope.base,
            pairing=rope.pairing,
            offset=rope.offset,
            scaling=None if rope.scaling is None else rope_scaling(rope.scaling) or "none",
        ),
    )


def rope_scaling(asked: wire.RopeScalingWire) -> RopeScaling | None:
    return None if asked.kind == "none" else RopeScaling(**asked.model_dump())


def _resolve_edit(
    number: int,
    asked: Any,
    request: wire.InspectingRequest,
    opened: OpenedModel,
    settings: Settings,
    n_tokens: int,
) -> Edit | Patch:
    config = opened.model.config
    try:
        site, selections = _site_and_selections(asked.site, asked, config)
        if asked.op == "patch":
            source = encode_input(
                opened,
                settings,
                text=asked.source.text,
                token_ids=asked.source.token_ids,
                add_bos=request.add_bos,
                parse_special=request.parse_special,
            )
            require_runnable(source, opened, settings)
            return _resolve_patch(asked, site, selections, config, source, n_tokens)
        value: Any = 0.0
        if asked.op == "scale":
            value = asked.by
        elif asked.op in ("add", "set"):
            value = asked.value
            if isinstance(value, list):
                value = _array(value)
        return Edit.resolve(
            asked.op,
            site,
            selections,
            config,
            n_tokens,
            value=value,
            over=asked.over if asked.op == "mean" else "selected",
        )
    except (EditError, SelectionError, SiteError) as error:
        error.args = (f"edit {number}: {error}",)
        raise


def _array(value: list[Any]) -> torch.Tensor:
    try:
        return torch.tensor(value, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise EditError("value is not an even array: rows differ in length or depth") from error


def _resolve_patch(
    asked: wire.PatchEdit,
    site: Site,
    selections: dict[Axis, Asked],
    config: GPTConfig,
    source: Encoded,
    n_tokens: int,
) -> Patch:
    edit = Edit.resolve("set", site, selections, config, n_tokens)
    edit.open = frozenset()  # its values are for this length, as it will show once it has them
    from_source = dict(selections)
    if asked.source.positions is not None:
        along: Axis = "position" if "position" in site.axes else "query"
        positions = asked.source.positions
        from_source[along] = (
            Span(start=positions.start, stop=positions.stop, step=positions.step)
            if isinstance(positions, SpanSelection)
            else positions
        )
    try:
        capture = Capture.resolve(site, from_source, config, len(source.ids))
    except SelectionError as error:
        error.args = (f"in the source of {len(source.ids)} tokens: {error}",)
        raise
    indices = resolve_indices(site, selections, config, n_tokens)
    sizes = site.sizes(config, n_tokens)
    shape = tuple(
        size if index is None else len(index) for size, index in zip(sizes, indices, strict=True)
    )
    if capture.shape != shape:
        raise EditError(
            f"the source gives {list(capture.shape)} over {list(site.axes)}, the selection has "
            f"{list(shape)}: choose as many source positions"
        )
    return Patch(source.ids, capture, edit)
