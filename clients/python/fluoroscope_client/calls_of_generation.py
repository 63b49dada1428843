"""The calls that choose tokens: step by step, in one piece, or under settings side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from fluoroscope_client.answers_of_generation import Sampled
from fluoroscope_client.asking import (
    EVENT_STREAM,
    Generating,
    Setting,
    Text,
    Wire,
    accepted,
    index,
    spell_generating,
    spell_input,
)
from fluoroscope_client.call import Call, asked, post, read_nothing, streamed
from fluoroscope_client.generation import Completion, read_completion

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


class GenerationCalls:
    """`_wire` is the form of tensors where a call does not choose one."""

    _wire: Wire

    @streamed
    def generate(self, text: Text, **options: Unpack[Generating]) -> Call[None]:
        """The text carried on: iterate over the steps, each with every candidate on its way.

        Asked at the first step; the server stops when the iteration does.
        """
        if options.get("dry_run"):
            raise ValueError("a dry run has no steps: completion(…, dry_run=True) has its estimate")
        wire = options.get("wire", self._wire)
        body = spell_generating(text, options, wire)
        if wire == "safetensors":  # the numbers' own bytes, which events can carry as text
            body["format"] = {**body["format"], "encoding": "base64"}
        return Call("POST", "/v1/generate", body, read_nothing, accept=EVENT_STREAM)

    @asked
    def completion(self, text: Text, **options: Unpack[Generating]) -> Call[Completion]:
        """The same in one piece, when all of it is there."""
        wire = options.get("wire", self._wire)
        body = spell_generating(text, options, wire)
        # JSON too: a dry run is answered in nothing else.
        accept = f"{accepted(wire)}, application/json;q=0.1"
        return Call("POST", "/v1/generate", body, read_completion, accept=accept)

    @asked
    def sample(
        self,
        text: Text | None = None,
        settings: Sequence[Setting] = ({},),
        *,
        logits: ArrayLike | None = None,
        position: SupportsIndex | None = None,
        top: int | None = None,
        seed: int | None = None,
        add_bos: bool | None = None,
        parse_special: bool | None = None,
    ) -> Call[Sampled]:
        """What would be chosen under each of the settings, after a text or from given logits.

        The slider without running again: one run for all settings, none for `logits` (−∞ is a
        token that cannot be). `position` is that of the text, default the last. `seed` draws.
        """
        if (text is None) == (logits is None):
            raise TypeError("give a text, or logits=")
        body = {
            **({} if text is None else spell_input(text)),
            "logits": None if logits is None else _with_nulls(logits),
            "settings": [dict(setting) for setting in settings],
            "position": None if position is None else index(position),
            "top": top,
            "seed": seed,
            "add_bos": add_bos,
            "parse_special": parse_special,
        }
        return post("/v1/sample", body)


def _with_nulls(logits: ArrayLike) -> list[float | None]:
    """−∞ as JSON says it. Raises ValueError for NaN and +∞, by what writes the body."""
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"logits are one number a token; these have shape {values.shape}")
    return [None if value == -np.inf else value for value in values.tolist()]
