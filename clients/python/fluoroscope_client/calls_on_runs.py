"""The calls that run the model once on one input and bring back a Reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from fluoroscope_client.asking import (
    Captures,
    Common,
    Selection,
    Stage,
    Text,
    Wire,
    accepted,
    index,
    spell,
    spell_captures,
    spell_run,
)
from fluoroscope_client.call import Call, asked
from fluoroscope_client.reading import Reading, read_reading

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RunCalls:
    """`_wire` is the form of tensors where a call does not choose one."""

    _wire: Wire

    @asked
    def attention(
        self,
        text: Text,
        *,
        layers: Selection = "all",
        heads: Selection = "all",
        queries: Selection = "all",
        keys: Selection = "all",
        stages: Sequence[Stage] = ("pattern",),
        aggregate: Literal["mean", "max"] | None = None,
        **common: Unpack[Common],
    ) -> Call[Reading]:
        """Attention maps, as `attn.<stage>` with axes layer, head, query, key.

        `aggregate` takes the head axis out. Only layers up to the last one asked for are run.
        """
        question = {
            "layers": layers,
            "heads": heads,
            "queries": queries,
            "keys": keys,
            "stages": [stages] if isinstance(stages, str) else list(stages),
            "aggregate": aggregate,
        }
        return self._run("attention", text, question, common)

    @asked
    def attention_cell(
        self,
        text: Text,
        *,
        layer: SupportsIndex,
        head: SupportsIndex,
        query: SupportsIndex,
        key: SupportsIndex,
        **common: Unpack[Common],
    ) -> Call[Reading]:
        """One number of a map taken apart, as `cell`: from the rotated vectors to the weighted
        value, in float64, and how far the model's own numbers are from it.
        """
        place = {"layer": layer, "head": head, "query": query, "key": key}
        question = {name: index(number) for name, number in place.items()}
        return self._run("attention/cell", text, question, common)

    @asked
    def logits(
        self,
        text: Text,
        *,
        positions: Selection = (-1,),
        top: int = 10,
        full: bool = False,
        **common: Unpack[Common],
    ) -> Call[Reading]:
        """The `top` likeliest next tokens at each position, as `predictions`.

        `full` gives every logit too, as tensor `logits` with axes position, vocab.
        """
        question = {"positions": positions, "top": top, "full": full}
        return self._run("logits", text, question, common)

    @asked
    def inspect(
        self,
        text: Text,
        captures: Captures,
        **common: Unpack[Common],
    ) -> Call[Reading]:
        """Any values inside one run: whole sites by name, parts of them by `capture(…)`."""
        return self._run("inspect", text, {"captures": spell_captures(captures)}, common)

    def _run(
        self, noun: str, text: Text, question: Mapping[str, Any], common: Common
    ) -> Call[Reading]:
        wire = common.get("wire", self._wire)
        body = {**spell_run(text, common, Common, wire), **spell(question)}
        return Call("POST", f"/v1/{noun}", body, read_reading, accept=accepted(wire))
