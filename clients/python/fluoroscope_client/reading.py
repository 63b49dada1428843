"""Reading: everything that one inspecting call brought back, and how it is read off an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fluoroscope_client import safetensors
from fluoroscope_client.answers import (
    Checks,
    Comparison,
    Estimate,
    InputReport,
    ModelIdentity,
    Prediction,
    Timing,
    Token,
    json_object,
)
from fluoroscope_client.errors import AnswerError
from fluoroscope_client.safetensors import Floats
from fluoroscope_client.tensor import Tensor

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"


@dataclass(frozen=True, eq=False)
class Reading:
    """One run of the model: tensors by name, and what is said of the run.

    `tokens` is empty where only ids were asked for, both where nothing was. `predictions` are
    those of `logits`; `comparison` comes with `compare=True`, `estimate` with `dry_run=True`.
    """

    tensors: dict[str, Tensor]
    tokens: list[Token]
    token_ids: list[int]
    checks: Checks
    model: ModelIdentity
    input: InputReport
    timing_ms: Timing
    predictions: list[Prediction]
    comparison: Comparison | None
    estimate: Estimate | None

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name. Raises KeyError."""
        return self.tensors[name]

    def __repr__(self) -> str:
        head = f"Reading of {self.input['n_tokens']} tokens by {self.model['id']}"
        held = [f"  {repr(tensor).partition(chr(10))[0]}" for tensor in self.tensors.values()]
        if self.predictions:
            held.append(f"  {len(self.predictions)} predictions")
        return "\n".join([head, *held])


def read_reading(media_type: str, body: bytes) -> Reading:
    """The Reading in an answer of either form. Raises AnswerError."""
    if media_type == SAFETENSORS:
        arrays, metadata = safetensors.read(body)
        said = json_object(metadata.get("answer", ""))
    elif media_type == JSON:
        said = json_object(body)
        arrays = {name: _numbers(name, head) for name, head in _heads(said).items()}
    else:
        raise AnswerError(f"the answer is {media_type or 'of no type'}; asked was a reading")
    heads = _heads(said)
    if heads.keys() != arrays.keys():
        raise AnswerError(f"the answer tells of {sorted(heads)} and holds {sorted(arrays)}")
    try:
        n_tokens = int(said["input"]["n_tokens"])
        tokens = list(said["tokens"])
        full = bool(tokens) and isinstance(tokens[0], dict)
        return Reading(
            tensors={name: _tensor(name, heads[name], arrays[name], n_tokens) for name in heads},
            tokens=tokens if full else [],
            token_ids=[token["id"] for token in tokens] if full else tokens,
            checks=said["checks"],
            model=said["model"],
            input=said["input"],
            timing_ms=said["timing_ms"],
            predictions=said.get("predictions") or [],
            comparison=said.get("comparison"),
            estimate=said.get("estimate"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"the answer lacks a part: {error!r}") from error


def _heads(said: Mapping[str, Any]) -> dict[str, Any]:
    heads = said.get("tensors")
    if not isinstance(heads, dict) or not all(isinstance(head, dict) for head in heads.values()):
        raise AnswerError("the answer says nothing of its tensors")
    return cast("dict[str, Any]", heads)


def _numbers(name: str, head: Mapping[str, Any]) -> Floats:
    """Nested arrays of JSON as float32; null is −∞, since a NaN is never written."""
    if head.get("encoding") != "nested":
        raise AnswerError(f"{name} is written as {head.get('encoding')!r}, not as nested arrays")
    values: npt.NDArray[np.float32]
    try:
        values = np.array(head["data"], dtype=np.float32).reshape(tuple(head["shape"]))
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"{name} is no array of its shape: {error}") from error
    values[np.isnan(values)] = -np.inf
    values.flags.writeable = False
    return values


def _tensor(name: str, head: Mapping[str, Any], values: Floats, n_tokens: int) -> Tensor:
    axes = tuple(str(axis) for axis in head["axes"])
    coords = {axis: tuple(map(int, held)) for axis, held in head["coords"].items()}
    sizes = dict(zip(axes, values.shape, strict=False))
    if len(axes) != values.ndim or len(sizes) != len(axes):
        raise AnswerError(f"{name} has {values.ndim} axes; named are {', '.join(axes)}")
    for axis, held in coords.items():
        if sizes.get(axis) != len(held):
            raise AnswerError(f"{name} has coordinates for {len(held)} along {axis}, of {sizes}")
    lengths: dict[str, int] = {
        axis: n_tokens for axis in ("position", "query", "key") if axis in axes
    }
    return Tensor(values, name, str(head["site"]), axes, coords, lengths=lengths)
