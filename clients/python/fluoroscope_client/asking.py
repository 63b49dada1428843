"""What is asked for, and how it is spelled on the wire: selections, captures, options."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Which indices of an axis, counted from 0; negative ones from the end.
Selection = Literal["all"] | SupportsIndex | range | slice | Sequence[SupportsIndex]
# A text, or the ids of its tokens.
Text = str | Sequence[SupportsIndex]
Wire = Literal["safetensors", "json"]
Stage = Literal["dots", "scores", "masked_scores", "pattern"]
# Sites by name, and parts of sites as `capture` makes them.
Captures = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
EVENT_STREAM = "text/event-stream"
_OF_THE_FORM = ("wire", "dtype", "decimals")
MEDIA_TYPES = {"safetensors": SAFETENSORS, "json": JSON}


class Where(TypedDict, total=False):
    """A part of a site. Axes that are left out are taken whole."""

    layers: Selection
    heads: Selection
    kv_heads: Selection
    positions: Selection
    queries: Selection
    keys: Selection


class RopeScaling(TypedDict, total=False):
    kind: Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3"]
    factor: float
    original_context: int
    low_freq_factor: float
    high_freq_factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float


class RopeWiring(TypedDict, total=False):
    base: float
    pairing: Literal["half", "interleaved"]
    scaling: RopeScaling
    offset: int


class Wiring(TypedDict, total=False):
    """The formula changed for one run; `score_scale` 1 leaves ÷√d_head out."""

    causal: bool
    score_scale: float | None
    residual: bool
    positions: Literal["model", "none"]
    rope: RopeWiring


class Input(TypedDict, total=False):
    """Options of every call that runs the model.

    `add_bos`: default what the tokenizer wants for a text, False for token ids. `parse_special`:
    read a text that spells a special token as that token. `tokens`: how much to say of each.
    `wire`: the form that the numbers travel in. `dtype` float16 halves a safetensors answer.
    `decimals` rounds JSON numbers; left out they come exactly.
    """

    add_bos: bool | None
    parse_special: bool
    tokens: Literal["full", "ids", "none"]
    wire: Wire
    dtype: Literal["float32", "float16"]
    decimals: int


class Changed(Input, total=False):
    """The same, and what changes the run.

    `edits` (see `fluoroscope_client.edits`) in this order, and `wiring`. `dry_run` only estimates
    what it would take.
    """

    edits: Sequence[Mapping[str, Any]]
    wiring: Wiring | None
    dry_run: bool


class Common(Changed, total=False):
    """The same, and what checks the run: `compare` also runs the input unchanged."""

    compare: bool
    checks_level: Literal["basic", "full"]


class Setting(TypedDict, total=False):
    """How a token is chosen, over the whole vocabulary: ÷ temperature (0: the largest logit), only
    the `top_k` largest, only the likeliest until their probabilities reach `top_p`.
    """

    temperature: float
    top_k: int | None
    top_p: float | None


class Generating(Changed, Setting, total=False):
    """Options of a generation.

    `n` samples of one prompt, one after the other, each of at most `max_new_tokens`; `seed` makes
    them repeat. `stop`: strings that end a sample; `stop_ids`: tokens that do, default the
    tokenizer's end of text. `top`: rows of each step's candidates. `captures`: values to bring
    back from every step, and from the prompt unless `trace_prompt` is False.
    """

    max_new_tokens: int | None
    n: int
    seed: int | None
    stop: str | Sequence[str]
    stop_ids: Sequence[SupportsIndex] | None
    top: int
    captures: Captures
    trace_prompt: bool


def capture(
    site: str,
    *,
    name: str | None = None,
    reduce: Literal["stats", "head_mean", "head_max"] | None = None,
    **where: Unpack[Where],
) -> dict[str, Any]:
    """Values to bring back from a site, under `name` (default: the site's)."""
    return spell({"site": site, "name": name, "reduce": reduce, **where})


def spell(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A capture or an edit in the wire's form: selections spelled, None left out."""
    return {
        key: select(value) if key in Where.__annotations__ else value
        for key, value in asked.items()
        if value is not None
    }


def select(selection: Selection | Mapping[str, Any]) -> str | list[int] | dict[str, int | None]:
    """A selection in the wire's form: "all", a list of indices, or {start, stop, step}.

    A single index keeps its axis, with one entry. What is already {start, stop, step} stays.
    Raises TypeError for anything that is no selection, True and False among it.
    """
    if isinstance(selection, Mapping):
        return dict(selection)
    if isinstance(selection, str):
        if selection != "all":
            raise TypeError(f"{selection!r} is no selection; the one word is 'all'")
        return "all"
    if isinstance(selection, slice):
        start, stop, step = (
            None if part is None else index(part)
            for part in (selection.start, selection.stop, selection.step)
        )
        return {"start": start, "stop": stop, "step": 1 if step is None else step}
    if isinstance(selection, SupportsIndex) and not hasattr(selection, "__len__"):
        return [index(selection)]
    try:
        return [index(item) for item in selection]  # type: ignore[union-attr]
    except TypeError as error:
        raise TypeError(
            f"{selection!r} is no selection; give 'all', an index, a list of them, a range or a "
            "slice"
        ) from error


def index(value: SupportsIndex) -> int:
    """One index as Python's int. Raises TypeError, also for True and False."""
    if isinstance(value, bool):
        raise TypeError(f"{value} is no index")
    return operator.index(value)


def spell_input(text: Text) -> dict[str, Any]:
    """`text` or `token_ids`, whichever it is."""
    if isinstance(text, str):
        return {"text": text}
    return {"token_ids": [index(token) for token in text]}


def spell_captures(captures: Captures) -> list[dict[str, Any]]:
    """Whole sites by name, parts of them as `capture` made them, or several of either."""
    several = [captures] if isinstance(captures, (str, Mapping)) else captures
    return [{"site": item} if isinstance(item, str) else spell(item) for item in several]


def accepted(wire: Wire) -> str:
    """The media type of a wire. Raises ValueError."""
    if wire not in MEDIA_TYPES:
        raise ValueError(f"wire is {wire!r}; it is one of {', '.join(MEDIA_TYPES)}")
    return MEDIA_TYPES[wire]


def spell_generating(text: Text, options: Mapping[str, Any], wire: Wire) -> dict[str, Any]:
    """A generation's body. Raises TypeError for an option that there is not."""
    rest = dict(options)
    captures, with_prompt = rest.pop("captures", ()), rest.pop("trace_prompt", True)
    stop, stop_ids = rest.pop("stop", ()), rest.pop("stop_ids", None)
    body = spell_run(text, rest, Generating, wire)
    body["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if stop_ids is not None:
        body["stop_ids"] = [index(token) for token in stop_ids]
    if traced := spell_captures(captures):
        body["trace"] = {"captures": traced, "prompt": with_prompt}
    return body


def spell_form(wire: Wire, dtype: object, decimals: object) -> dict[str, object]:
    """The request's `format`. Raises ValueError where the wire has no such choice."""
    if wire == "safetensors":
        if decimals is not None:
            raise ValueError("decimals round JSON numbers: they need wire='json'")
        return {"dtype": dtype}
    if dtype != "float32":
        raise ValueError(f"JSON numbers are written from float32; {dtype} needs wire='safetensors'")
    return {"exact": True} if decimals is None else {"decimals": decimals}


def spell_run(
    text: Text, options: Mapping[str, Any], known: type[Any], wire: Wire
) -> dict[str, Any]:
    """The body's part that every run has. Raises TypeError for an option that is not `known`."""
    if unknown := options.keys() - known.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    form = spell_form(wire, options.get("dtype", "float32"), options.get("decimals"))
    rest = {name: value for name, value in options.items() if name not in _OF_THE_FORM}
    edits = [spell(edit) for edit in rest.pop("edits", ())]
    return {**spell_input(text), **spell(rest), "edits": edits, "format": form}
