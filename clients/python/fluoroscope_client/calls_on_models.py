"""The calls about a server, its model and any model's parameters; text to ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex
from urllib.parse import quote

from fluoroscope_client.answers_of_parameters import Parameters, ParametersCompared, Preset
from fluoroscope_client.answers_of_rope import ModelRope
from fluoroscope_client.answers_on_models import Health, Model, Parity, Site, Tokenized
from fluoroscope_client.asking import Selection, Wire, accepted, index, select, spell_form
from fluoroscope_client.call import Call, asked, get, member, post, read_object
from fluoroscope_client.parameter import Parameter, read_parameter


class ModelCalls:
    """`_wire` is the form of tensors where a call does not choose one."""

    _wire: Wire

    @asked
    def live(self) -> Call[Health]:
        """Whether the process runs, also while the model loads."""
        return get("/health/live")

    @asked
    def ready(self) -> Call[Health]:
        """Whether the model answers. Raises NotReady with the reason, at once."""
        return Call("GET", "/health/ready", None, read_object, patient=False)

    @asked
    def model(self) -> Call[Model]:
        """The loaded model: config, tokenizer, provenance, limits."""
        return get("/v1/model")

    @asked
    def sites(self) -> Call[list[Site]]:
        """Every value that can be read or edited, in the order in which a run meets them."""
        return Call("GET", "/v1/sites", None, member("sites", list))

    @asked
    def parity(self) -> Call[Parity]:
        """How far the model's numbers are from float64 ones, and that a wrong formula would show.

        Computed once by the server, in seconds or a few of them.
        """
        return get("/v1/model/parity")

    @asked
    def rope(self, *, context: SupportsIndex | None = None) -> Call[ModelRope]:
        """The model's rotation: pairing, and one frequency and wavelength a pair."""
        return get("/v1/model/rope", _query(context=context))

    @asked
    def tokenize(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> Call[Tokenized]:
        """A text's tokens, with offsets in bytes, characters and UTF-16 units."""
        body = {"text": text, "add_bos": add_bos, "parse_special": parse_special}
        return post("/v1/tokenize", body)

    @asked
    def detokenize(self, token_ids: Sequence[SupportsIndex]) -> Call[str]:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        body = {"token_ids": [index(token) for token in token_ids]}
        return Call("POST", "/v1/detokenize", body, member("text", str))

    @asked
    def parameters(
        self,
        *,
        context: SupportsIndex | None = None,
        depth: SupportsIndex | None = None,
        explain: bool = False,
    ) -> Call[Parameters]:
        """What is where, how many and why: totals, tensors, tree, and costs at `context` tokens.

        `depth` cuts the tree below so many levels; `explain` adds the derivation in Chinese and
        English.
        """
        query = _query(context=context, depth=depth, explain=explain)
        return get("/v1/model/parameters", query)

    @asked
    def parameters_of(
        self,
        preset: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        context: SupportsIndex | None = None,
        depth: SupportsIndex | None = None,
        explain: bool = False,
    ) -> Call[Parameters]:
        """The same of a preset, of a config, or of a preset with the config's fields changed.

        No weights are made, so the model may be of any size.
        """
        body = {"preset": preset, "config": config, "context": context, "depth": depth}
        return post("/v1/parameters", {**body, "explain": explain})

    @asked
    def compare_parameters(
        self,
        models: Sequence[str | Mapping[str, Any]],
        *,
        context: SupportsIndex | None = None,
    ) -> Call[ParametersCompared]:
        """Several side by side, with ratios to the first: presets' names, configs, or
        `{"name", "preset", "config"}`.
        """
        return post("/v1/parameters", {"configs": list(models), "context": context})

    @asked
    def presets(self) -> Call[list[Preset]]:
        """Named configurations, with their parameter counts."""
        return Call("GET", "/v1/presets", None, member("presets", list))

    @asked
    def parameter(
        self,
        name: str,
        *,
        rows: Selection | None = None,
        columns: Selection | None = None,
        head: SupportsIndex | None = None,
        kv_head: SupportsIndex | None = None,
        reduce: Literal["mean", "max", "stride"] | None = None,
        max_rows: SupportsIndex | None = None,
        max_columns: SupportsIndex | None = None,
        bins: SupportsIndex | None = None,
        wire: Wire | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        decimals: int | None = None,
    ) -> Call[Parameter]:
        """One tensor of the model: statistics and a histogram of `bins` bins.

        Values come where `rows`, `columns`, a head's share, or by `reduce` a picture of at most
        `max_rows` × `max_columns` cells is asked for; statistics are then of that part.
        """
        wire = wire or self._wire
        form = spell_form(wire, dtype, decimals)
        query = _query(
            rows=None if rows is None else _sliced(rows),
            columns=None if columns is None else _sliced(columns),
            head=head,
            kv_head=kv_head,
            reduce=reduce,
            max_rows=max_rows,
            max_columns=max_columns,
            bins=bins,
            **form,
        )
        path = f"/v1/model/parameters/{quote(name, safe='')}"
        return Call("GET", path, None, read_parameter, accept=accepted(wire), query=query)


def _query(**given: object) -> dict[str, str]:
    """What is not None, as a query writes it."""
    words = {True: "true", False: "false"}
    return {
        name: value
        if isinstance(value, str)
        else words[value]
        if isinstance(value, bool)
        else str(index(value))  # type: ignore[arg-type]
        for name, value in given.items()
        if value is not None
    }


def _sliced(selection: Selection) -> str:
    """A selection as Python would write it between brackets: `0:8:1`, `::4`, `3,1,7`."""
    wanted = select(selection)
    if isinstance(wanted, dict):
        return ":".join("" if part is None else str(part) for part in wanted.values())
    return ":" if isinstance(wanted, str) else ",".join(map(str, wanted))
