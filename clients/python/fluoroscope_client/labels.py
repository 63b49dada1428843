"""Labels of tokens as a person can read them: one line, no control characters, a known width."""

from __future__ import annotations

from unicodedata import category, east_asian_width

# Of a token that begins inside a character, which is shown whole before it.
CONTINUED = "·"
_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def visible(token: str) -> str:
    """A token on one line; what a screen would obey or hide is spelled out.

    Spaces around it are left out; a token of nothing but spaces is `␣`.
    """
    shown = "".join(_SHOWN.get(character) or _plain(character) for character in token)
    return shown.strip(" ") or "␣"


def _plain(character: str) -> str:
    if character.isprintable() or category(character) == "Mn":
        return character
    return character.encode("unicode_escape").decode()


def width(text: str) -> int:
    """Columns that a terminal gives a text: two to a character of East Asia, none to a mark that
    sits on another (UAX #11).
    """
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def clipped(text: str, columns: int) -> str:
    """The text in at most so many columns, with `…` where it was cut."""
    if width(text) <= columns:
        return text
    kept, left = "", columns - 1
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept += character
    return f"{kept}…" if columns > 0 else ""


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """The text in exactly so many columns."""
    shown = clipped(text, columns)
    space = " " * (columns - width(shown))
    return space + shown if right else shown + space
