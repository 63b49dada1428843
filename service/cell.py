"""One attention number taken apart: what to capture for it, and what to make of the captures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from model.config import GPTConfig
from model.labs.cell import errors_of, take_apart
from model.labs.from_model import to_float64
from model.labs.given import index_of
from service.inspector import Finish, Stopped
from service.labs import refusals
from service.plan import Plan
from service.schemas.cell import CellRequest
from service.schemas.reading import Capture
from service.wire.printed import printed

STAGES = ("dots", "scores", "masked_scores", "pattern")
# Captures of these names serve the cell and are not part of the answer.
HIDDEN = frozenset({f"cell.{name}" for name in ("rot_q", "rot_k", "v", *STAGES)})


def cell_captures(asked: CellRequest, config: GPTConfig) -> list[Capture]:
    """The query's own vector and row, every key and value. Raises Problem for a head outside."""
    with refusals():
        head = index_of("head", asked.head, config.n_head)
    layers, kv_heads = [asked.layer], [config.kv_head_of[head]]
    captures = [
        Capture(
            name="cell.rot_q",
            site="attn.rot_q",
            layers=layers,
            heads=[head],
            positions=[asked.query],
        ),
        *(
            Capture(name=f"cell.{name}", site=f"attn.{name}", layers=layers, kv_heads=kv_heads)
            for name in ("rot_k", "v")
        ),
    ]
    captures += [
        Capture(
            name=f"cell.{stage}",
            site=f"attn.{stage}",
            layers=layers,
            heads=[head],
            queries=[asked.query],
        )
        for stage in STAGES
    ]
    return captures


def take_cell(asked: CellRequest, config: GPTConfig) -> Finish:
    """Work the cell out in float64 and hold it against what the model has there."""

    def finish(plan: Plan, tensors: Mapping[str, Tensor], _: Stopped) -> dict[str, Any]:
        n_tokens = len(plan.ids)
        with refusals():
            key = index_of("key", asked.key, n_tokens)
        query = index_of("query", asked.query, n_tokens)
        head = index_of("head", asked.head, config.n_head)
        scale = config.score_scale if plan.wiring.score_scale is None else plan.wiring.score_scale
        row = {stage: to_float64(tensors[f"cell.{stage}"]).reshape(-1) for stage in STAGES}
        cell = take_apart(
            key,
            to_float64(tensors["cell.rot_q"]).reshape(-1),
            to_float64(tensors["cell.rot_k"])[0, 0],
            to_float64(tensors["cell.v"])[0, 0],
            scale=config.d_head**-0.5 if scale is None else scale,
            hidden=np.isneginf(row["masked_scores"]),
        )
        errors = errors_of(
            cell,
            dot=float(row["dots"][key]),
            score=float(row["scores"][key]),
            weight=float(row["pattern"][key]),
        )
        report = {
            "layer": index_of("layer", asked.layer, config.n_layer),
            "head": head,
            "kv_head": config.kv_head_of[head],
            "query": query,
            "key": key,
            **vars(cell),
            "errors": errors,
        }
        fields = printed(report, None)
        return {
            "cell": {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in fields.items()
            }
        }

    return finish
