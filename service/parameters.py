"""Questions about parameters, resolved: which config is meant, and what to look at of a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from model.config import GPTConfig
from model.gpt import GPT
from model.parameters import (
    Excerpt,
    ParameterError,
    TensorInfo,
    count_nodes,
    explain,
    histogram,
    inventory,
    of_head,
    report,
    statistics,
    vary,
)
from model.presets import PRESETS
from model.selection import Asked, SelectionError, Span
from model.sites import Axis
from service.errors import Problem
from service.schemas.parameters import MAX_NODES, Candidate, ConfigWire, TensorQuery
from service.wire.parameters import report_fields, tensor_fields
from service.wire.tensors import Array, NamedTensor

_MAY_BE_NULL = {
    "n_kv_head",
    "d_head",
    "d_mlp",
    "rotary_dim",
    "rope_scaling",
    "score_scale",
    "window",
    "windowed_layers",
}


def config_of(preset: str | None, asked: ConfigWire | None) -> GPTConfig:
    """A preset, a config, or the one with the other's fields. Raises ConfigError with the reason,
    and Problem for a preset that does not exist."""
    changes = {} if asked is None else asked.model_dump(exclude_unset=True)
    changes = {k: v for k, v in changes.items() if v is not None or k in _MAY_BE_NULL}
    if (scaling := changes.get("rope_scaling")) and scaling["kind"] == "none":
        changes["rope_scaling"] = None
    if preset is None:
        return GPTConfig.from_dict(changes)
    if preset not in PRESETS:
        raise Problem(
            "invalid-config", f"there is no preset {preset!r}; presets are {', '.join(PRESETS)}"
        )
    return vary(PRESETS[preset], changes)


def named_configs(candidates: Sequence[Candidate]) -> dict[str, GPTConfig]:
    """The configs to compare by name; one without a name gets its preset's, or a number."""
    configs: dict[str, GPTConfig] = {}
    for number, candidate in enumerate(candidates, 1):
        name = candidate.name or candidate.preset or f"config {number}"
        if candidate.name is None and name in configs:
            name = f"{name} ({number})"
        if name in configs:
            raise Problem("invalid-request", f"two configs are named {name!r}; rename one")
        configs[name] = config_of(candidate.preset, candidate.config)
    return configs


def full_report(
    config: GPTConfig,
    *,
    context: int | None,
    depth: int | None,
    explained: bool,
    model: GPT | None = None,
) -> dict[str, Any]:
    """The report as JSON values, with the loaded `model` compared with its config's inventory.

    Raises Problem where the tree would have too many nodes or the context does not fit.
    """
    nodes = count_nodes(config, depth)
    if nodes > MAX_NODES:
        raise Problem(
            "answer-too-large",
            f"the tree would have {nodes} nodes; at most {MAX_NODES} are given: ask for a depth",
            limit=MAX_NODES,
            actual=nodes,
        )
    dtype, held = "float32", None
    if model is not None:
        dtype = str(model.embed.weight.dtype).removeprefix("torch.")
        held = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    try:
        found = report(config, context=context, dtype=dtype, depth=depth, held=held)
        words = explain(config, context) if explained else None
    except ParameterError as error:
        raise Problem("invalid-request", str(error)) from error
    return report_fields(found, explained=words)


@dataclass(frozen=True)
class Look:
    """A look at one tensor of the loaded model, resolved: nothing was read yet."""

    config: GPTConfig
    info: TensorInfo
    asked: TensorQuery
    shape: tuple[int, ...]  # of the values to give, empty where none are asked for

    @classmethod
    def plan(cls, model: GPT, name: str, asked: TensorQuery) -> Look:
        """Raises Problem for a tensor, head, row or column that is not there."""
        config = model.config
        dtype = str(model.embed.weight.dtype).removeprefix("torch.")
        tensors = {tensor.name: tensor for tensor in inventory(config, dtype=dtype)}
        if name not in tensors:
            raise Problem(
                "not-found",
                f"there is no tensor {name!r}; GET /v1/model/parameters lists all {len(tensors)}",
            )
        info = tensors[name]
        look = cls(config, info, asked, ())
        # On the meta device the same steps give shapes and errors and read nothing.
        part = look.part(torch.empty(info.shape, device="meta"))
        shape = tuple(part.values.shape)
        if asked.reduce is not None:
            shape = part.picture_shape(asked.max_rows, asked.max_columns)
        return cls(config, info, asked, shape if asked.shows_values else ())

    @property
    def count(self) -> int:
        """How many values the answer gives."""
        return prod(self.shape) if self.shape else 0

    def part(self, weight: Tensor) -> Excerpt:
        asked = self.asked
        try:
            if asked.head is None and asked.kv_head is None:
                whole = Excerpt.of(self.info, weight)
            else:
                whole = of_head(
                    self.config, self.info, weight, head=asked.head, kv_head=asked.kv_head
                )
            return whole.select(_selection(asked.rows), _selection(asked.columns))
        except ParameterError as error:
            raise Problem("invalid-request", str(error)) from error

    def take(self, model: GPT) -> tuple[dict[str, Any], list[NamedTensor]]:
        """The answer's own keys, and the values that were asked for. Reads the weights."""
        asked = self.asked
        part = self.part(model.get_parameter(self.info.name))
        found = statistics(part.values)
        fields: dict[str, Any] = {
            "tensor": tensor_fields(self.info),
            "selected": self._selected(),
            "statistics": {**dataclasses.asdict(found), "any_nan": found.any_nan},
            "histogram": dataclasses.asdict(histogram(part.values, asked.bins, known=found)),
            "picture": None,
        }
        if asked.reduce is not None:
            part = part.picture(asked.reduce, asked.max_rows, asked.max_columns)
            fields["picture"] = {"reduce": asked.reduce, "cell": list(part.cell)}
        return fields, [self._named(part)] if asked.shows_values else []

    def _selected(self) -> dict[str, int]:
        asked = self.asked
        if asked.head is not None and "kv_head*d_head" in self.info.axes:
            head = asked.head % self.config.n_head
            return {"head": head, "kv_head": self.config.kv_head_of[head]}
        if asked.head is not None:
            return {"head": asked.head % self.config.n_head}
        if asked.kv_head is not None:
            return {"kv_head": asked.kv_head % self.config.n_kv_head}
        return {}

    def _named(self, part: Excerpt) -> NamedTensor:
        sizes = dict(zip(self.info.axes, self.info.shape, strict=True))
        sizes["d_head"] = self.config.d_head
        coords = {
            axis: list(indices)
            for axis, indices in zip(part.axes, part.indices, strict=True)
            if indices != range(sizes[axis])
        }
        values: Array = part.values.float().cpu().numpy()
        if self.asked.dtype == "float16":
            values = values.astype(np.float16)
        return NamedTensor(
            "values",
            self.info.name,
            cast(tuple[Axis, ...], part.axes),
            cast(dict[Axis, list[int]], coords),
            values,
        )


def _selection(text: str | None) -> Asked:
    """`all`, `3`, `3,1,7`, `0:8`, `::4`. Raises SelectionError for anything else."""
    if text is None or text == "all":
        return "all"
    try:
        if ":" not in text:
            return [int(part) for part in text.split(",")]
        bounds = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        bounds = []
    if not 2 <= len(bounds) <= 3:
        raise SelectionError(f"{text!r} is no selection; write all, 3, 3,1,7, 0:8 or 0:8:2")
    step = bounds[2] if len(bounds) == 3 else None
    return Span(start=bounds[0], stop=bounds[1], step=1 if step is None else step)
