"""Edits: what to change inside a run. Each function gives one item for `edits=`.

The layers, heads and positions to change are chosen as in `capture`; an edit that touches nothing
is refused by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fluoroscope_client.asking import Selection, Text, Where, select, spell, spell_input

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


def zero(site: str, **where: Unpack[Where]) -> dict[str, Any]:
    """Make the values 0: a head's `attn.z`, for one, to take that head away."""
    return spell({"op": "zero", "site": site, **where})


def block(**where: Unpack[Where]) -> dict[str, Any]:
    """Forbid queries to attend to keys; the other keys of the row share its weight again."""
    return spell({"op": "block", **where})


def scale(site: str, by: float, **where: Unpack[Where]) -> dict[str, Any]:
    """Multiply the values by a number."""
    return spell({"op": "scale", "site": site, "by": by, **where})


def add(site: str, value: ArrayLike, **where: Unpack[Where]) -> dict[str, Any]:
    """Add a number, or an array of the selection's shape."""
    return spell({"op": "add", "site": site, "value": value, **where})


def set_to(site: str, value: ArrayLike, **where: Unpack[Where]) -> dict[str, Any]:
    """Put a number in their place, or an array of the selection's shape."""
    return spell({"op": "set", "site": site, "value": value, **where})


def mean(
    site: str, *, over: Literal["selected", "all"] = "selected", **where: Unpack[Where]
) -> dict[str, Any]:
    """Make each value the mean over positions (over queries at attention cells)."""
    return spell({"op": "mean", "site": site, "over": over, **where})


def patch(
    site: str,
    source: Text,
    *,
    source_positions: Selection | None = None,
    **where: Unpack[Where],
) -> dict[str, Any]:
    """Put in what the same site holds in a run of another text (or token ids).

    `source_positions` default to the positions that are changed; there must be as many.
    """
    other = spell_input(source)
    if source_positions is not None:
        other["positions"] = select(source_positions)
    return spell({"op": "patch", "site": site, "source": other, **where})
