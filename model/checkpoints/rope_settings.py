"""Rotation as Hugging Face configs spell it: rope_theta and rope_scaling, or rope_parameters."""

from __future__ import annotations

from typing import Any

from model.checkpoints.settings import Settings
from model.config import RopeScaling

KINDS = {kind: kind for kind in ("default", "linear", "dynamic", "yarn", "llama3")}


def rope_of(
    settings: Settings, d_head: int, trained_context: int, *, rotated: float | None = None
) -> dict[str, Any]:
    """GPTConfig's fields for rotation and context.

    `rotated` is the family's default for the part of each head that turns; None where the family
    always turns all of it. Raises CheckpointError for a scaling that is not implemented.
    """
    old, new = settings.inner("rope_scaling"), settings.inner("rope_parameters")
    rope = new if new.given else old
    base = rope.take("rope_theta", default=settings.take("rope_theta", "rotary_emb_base"))
    kind = rope.one_of("rope_type" if "rope_type" in rope.given else "type", KINDS, "default")
    rope.only("type", kind)
    fields: dict[str, Any] = {
        "rope_base": 10_000.0 if base is None else float(base),
        "rope_pairing": "half",
        "n_ctx": trained_context,
    }
    if rotated is not None:
        outside = settings.take("rotary_pct", "partial_rotary_factor", default=rotated)
        part = rope.take("partial_rotary_factor", default=outside)
        fields["rotary_dim"] = int(d_head * part)
    else:
        settings.only("partial_rotary_factor", 1.0, None)
        rope.only("partial_rotary_factor", 1.0, None)
    if kind != "default":
        scaling = _scaling(rope, kind, trained_context)
        fields["rope_scaling"] = scaling
        if kind in ("dynamic", "yarn"):  # both are made to run past the trained context
            assert scaling.original_context is not None
            reached = int(scaling.factor * scaling.original_context)
            fields["n_ctx"] = max(trained_context, reached)
    rope.finish()
    return fields


def _scaling(rope: Settings, kind: Any, trained_context: int) -> RopeScaling:
    factor = float(rope.need("factor"))
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "dynamic":
        return RopeScaling(kind="dynamic", factor=factor, original_context=trained_context)
    original = rope.take("original_max_position_embeddings", default=trained_context)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=factor,
            original_context=original,
            low_freq_factor=rope.need("low_freq_factor"),
            high_freq_factor=rope.need("high_freq_factor"),
        )
    rope.only("truncate", True, None)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=original,
        attention_factor=rope.take("attention_factor"),
        beta_fast=rope.take("beta_fast", default=32.0),
        beta_slow=rope.take("beta_slow", default=1.0),
    )
