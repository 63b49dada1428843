"""Reading: everything that one inspecting call brought back, and how it is read off an answer."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluoroscope_client import safetensors
from fluoroscope_client.answers import (
    Cell,
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
from fluoroscope_client.asking import JSON, SAFETENSORS
from fluoroscope_client.errors import AnswerError
from fluoroscope_client.heatmap import reading_html
from fluoroscope_client.labels import CONTINUED
from fluoroscope_client.safetensors import Floats
from fluoroscope_client.tensor import OF_TOKENS, Tensor


@dataclass(frozen=True, eq=False)
class Reading:
    """One run of the model: tensors by name, and what is said of the run.

    `tokens` is empty where only ids were asked for, both where nothing was. `predictions` are
    those of `logits`, `cell` is that of `attention_cell`; `comparison` comes with `compare=True`,
    `estimate` with `dry_run=True`.
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
    cell: Cell | None = None

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name. Raises KeyError."""
        return self.tensors[name]

    def _repr_html_(self) -> str:
        return reading_html(self)

    def __repr__(self) -> str:
        head = f"Reading of {self.input['n_tokens']} tokens by {self.model['id']}"
        held = [f"  {repr(tensor).partition(chr(10))[0]}" for tensor in self.tensors.values()]
        if self.predictions:
            held.append(f"  {len(self.predictions)} predictions")
        return "\n".join([head, *held])


def read_reading(media_type: str, body: bytes) -> Reading:
    """The Reading in an answer of either form. Raises AnswerError."""
    said = read_answer(media_type, body)
    try:
        tokens, token_ids = read_tokens(said["tokens"])
        n_tokens = int(said["input"]["n_tokens"])
        return Reading(
            tensors=tensors_of(said["tensors"], n_tokens, labels(tokens)),
            tokens=tokens,
            token_ids=token_ids,
            checks=said["checks"],
            model=said["model"],
            input=said["input"],
            timing_ms=said["timing_ms"],
            predictions=said.get("predictions") or [],
            comparison=said.get("comparison"),
            estimate=said.get("estimate"),
            cell=said.get("cell"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"the answer lacks a part: {error!r}") from error


def read_answer(media_type: str, body: bytes) -> dict[str, Any]:
    """What an answer of either form says, numbers of safetensors put under their tensors' heads.

    Raises AnswerError.
    """
    if media_type == JSON:
        return json_object(body)
    if media_type != SAFETENSORS:
        raise AnswerError(f"the answer is {media_type or 'of no type'}; asked was {SAFETENSORS}")
    arrays, metadata = safetensors.read(body)
    said = json_object(metadata.get("answer", ""))
    heads = _heads(said.get("tensors"))
    if heads.keys() != arrays.keys():
        raise AnswerError(f"the answer tells of {sorted(heads)} and holds {sorted(arrays)}")
    for name, values in arrays.items():
        heads[name].update(encoding="safetensors", data=values)
    return said


def read_tokens(said: Sequence[Any]) -> tuple[list[Token], list[int]]:
    """Tokens and their ids, of an answer that tells of either, or of none."""
    full = bool(said) and isinstance(said[0], dict)
    return (list(said), [token["id"] for token in said]) if full else ([], list(said))


def labels(tokens: Sequence[Token]) -> list[str]:
    """One for each token: what a person should see there, a mark inside a split character."""
    return [token["display"] or CONTINUED for token in tokens]


def tensors_of(said: Any, n_tokens: int | None, tokens: Sequence[str]) -> dict[str, Tensor]:
    """The tensors that an answer holds, of an input of so many tokens. Raises AnswerError."""
    return {
        name: _tensor(name, head, n_tokens, tuple(tokens)) for name, head in _heads(said).items()
    }


def _heads(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or not all(isinstance(head, dict) for head in said.values()):
        raise AnswerError("the answer says nothing of its tensors")
    return said


def _numbers(name: str, head: Mapping[str, Any]) -> Floats:
    """Read-only values. Of nested arrays, float32; null is −∞, since a NaN is never written."""
    values: Floats
    data = head.get("data")
    if isinstance(data, np.ndarray):
        return data
    try:
        if head.get("encoding") == "base64" and head["dtype"] in ("float32", "float16"):
            dtype = np.dtype(head["dtype"]).newbyteorder("<")
            flat = np.frombuffer(base64.b64decode(str(data), validate=True), dtype=dtype)
            return flat.reshape(tuple(head["shape"]))
        if head.get("encoding") != "nested":
            raise AnswerError(f"{name} is written as {head.get('encoding')!r}: asked was another")
        values = np.array(data, dtype=np.float32).reshape(tuple(head["shape"]))
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"{name} is no array of its shape: {error}") from error
    values[np.isnan(values)] = -np.inf
    values.flags.writeable = False
    return values


def _tensor(
    name: str, head: Mapping[str, Any], n_tokens: int | None, tokens: tuple[str, ...]
) -> Tensor:
    values = _numbers(name, head)
    try:
        axes = tuple(str(axis) for axis in head["axes"])
        coords = {axis: tuple(map(int, held)) for axis, held in head["coords"].items()}
        site = str(head["site"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"{name} is not described: {error!r}") from error
    sizes = dict(zip(axes, values.shape, strict=False))
    if len(axes) != values.ndim or len(sizes) != len(axes):
        raise AnswerError(f"{name} has {values.ndim} axes; named are {', '.join(axes)}")
    for axis, held in coords.items():
        if sizes.get(axis) != len(held):
            raise AnswerError(f"{name} has coordinates for {len(held)} along {axis}, of {sizes}")
    lengths = {} if n_tokens is None else {axis: n_tokens for axis in OF_TOKENS if axis in axes}
    return Tensor(values, name, site, axes, coords, lengths=lengths, tokens=tokens)
