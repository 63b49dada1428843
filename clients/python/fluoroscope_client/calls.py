"""Every call of the API, described once: what is sent, and how the answer is read.

Knows nothing of connections; the two clients of `client.py` only differ in how they send.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, TypeVar, cast

from fluoroscope_client.answers import Model, Site, Tokenized, json_object
from fluoroscope_client.asking import (
    Common,
    Input,
    Selection,
    Stage,
    Text,
    Wire,
    Wiring,
    index,
    spell,
    spell_input,
)
from fluoroscope_client.errors import AnswerError
from fluoroscope_client.reading import JSON, SAFETENSORS, Reading, read_reading

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and `parse` to read its answer from a media type and a body."""

    method: Literal["GET", "POST"]
    path: str
    body: Mapping[str, Any] | None
    parse: Callable[[str, bytes], T]
    accept: str = JSON
    query: Mapping[str, str] | None = None

    def content(self) -> bytes | None:
        """The body as JSON; numpy's arrays and numbers are written as lists and numbers.

        Raises ValueError for NaN, infinities and lone surrogates, which JSON cannot say.
        """
        if self.body is None:
            return None
        return json.dumps(
            self.body,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=_plain,
        ).encode()


class Calls:
    """Builds the calls. `wire` is the form of tensors where a call does not choose one."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Wire = wire
        _accepted(wire)

    def model(self) -> Call[Model]:
        """The loaded model: config, tokenizer, provenance, limits."""
        return Call("GET", "/v1/model", None, _read_object)

    def sites(self) -> Call[list[Site]]:
        """Every value that can be read or edited, in the order in which a run meets them."""
        return Call("GET", "/v1/sites", None, lambda kind, body: _member(kind, body, "sites", list))

    def parameters(
        self, *, context: int | None = None, depth: int | None = None, explain: bool = False
    ) -> Call[dict[str, Any]]:
        """What is where, how many and why: totals, tensors, tree, and costs at `context` tokens.

        `depth` cuts the tree below so many levels; `explain` adds the derivation in Chinese and
        English.
        """
        given = {"context": context, "depth": depth}
        query = {name: str(index(value)) for name, value in given.items() if value is not None}
        if explain:
            query["explain"] = "true"
        return Call("GET", "/v1/model/parameters", None, _read_object, query=query)

    def tokenize(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> Call[Tokenized]:
        """A text's tokens, with offsets in bytes, characters and UTF-16 units."""
        body = spell({"text": text, "add_bos": add_bos, "parse_special": parse_special})
        return Call("POST", "/v1/tokenize", body, _read_object)

    def detokenize(self, token_ids: Sequence[SupportsIndex]) -> Call[str]:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        body = {"token_ids": [index(token) for token in token_ids]}
        return Call(
            "POST", "/v1/detokenize", body, lambda kind, body: _member(kind, body, "text", str)
        )

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

    def inspect(
        self,
        text: Text,
        captures: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        *,
        edits: Sequence[Mapping[str, Any]] = (),
        wiring: Wiring | None = None,
        compare: bool = False,
        checks_level: Literal["basic", "full"] = "basic",
        dry_run: bool = False,
        **common: Unpack[Input],
    ) -> Call[Reading]:
        """Any values inside one run: whole sites by name, parts of them by `capture(…)`.

        `edits` (see `fluoroscope_client.edits`) and `wiring` change the run, in this order of the
        list; `compare` also runs it unchanged; `dry_run` only estimates what it would take.
        """
        asked = [captures] if isinstance(captures, (str, Mapping)) else captures
        question = {
            "captures": [{"site": item} if isinstance(item, str) else spell(item) for item in asked]
        }
        changed: Common = {
            "edits": edits,
            "wiring": wiring,
            "compare": compare,
            "checks_level": checks_level,
            "dry_run": dry_run,
        }
        return self._run("inspect", text, question, {**common, **changed})

    def _run(
        self, noun: str, text: Text, question: Mapping[str, Any], common: Common
    ) -> Call[Reading]:
        options = dict(common)
        if unknown := options.keys() - Common.__annotations__.keys() - Input.__annotations__.keys():
            raise TypeError(f"{noun}() takes no {', '.join(sorted(unknown))}")
        wire = cast("Wire", options.pop("wire", self._wire))
        form = _form(wire, options.pop("dtype", "float32"), options.pop("decimals", None))
        edits = cast("Sequence[Mapping[str, Any]]", options.pop("edits", ()))
        body = {
            **spell_input(text),
            **spell(question),
            **spell(options),
            "edits": [spell(edit) for edit in edits],
            "format": form,
        }
        return Call("POST", f"/v1/{noun}", body, read_reading, accept=_accepted(wire))


def _accepted(wire: Wire) -> str:
    accepted = {"safetensors": SAFETENSORS, "json": JSON}
    if wire not in accepted:
        raise ValueError(f"wire is {wire!r}; it is one of {', '.join(accepted)}")
    return accepted[wire]


def _form(wire: Wire, dtype: object, decimals: object) -> dict[str, object]:
    """The request's `format`. Raises ValueError where the wire has no such choice."""
    if wire == "safetensors":
        if decimals is not None:
            raise ValueError("decimals round JSON numbers: they need wire='json'")
        return {"dtype": dtype}
    if dtype != "float32":
        raise ValueError(f"JSON numbers are written from float32; {dtype} needs wire='safetensors'")
    return {"exact": True} if decimals is None else {"decimals": decimals}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _read_object(media_type: str, body: bytes) -> Any:
    if media_type != JSON:
        raise AnswerError(f"the answer is {media_type or 'of no type'}, not {JSON}")
    return json_object(body)


def _member(media_type: str, body: bytes, key: str, kind: type[T]) -> T:
    found = _read_object(media_type, body).get(key)
    if not isinstance(found, kind):
        raise AnswerError(f"the answer's {key} is no {kind.__name__}")
    return found
