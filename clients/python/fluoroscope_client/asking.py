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


class Common(Input, total=False):
    """The same, and what changes or checks the run; `inspect` names these itself."""

    edits: Sequence[Mapping[str, Any]]
    wiring: Wiring | None
    compare: bool
    checks_level: Literal["basic", "full"]
    dry_run: bool


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
