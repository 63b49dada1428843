"""Sources on disk → documents. Knows files and their errors, nothing of tokens."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "<|endoftext|>"
TEXT_SUFFIXES = (".txt", ".tsv", ".jsonl")
ID_SUFFIXES = (".npy", ".bin")
SECTION_CHARACTERS = 8000


class CorpusError(ValueError):
    """Text that cannot be trained on; the message names the file and the place in it."""


@dataclass(frozen=True)
class Document:
    """One text and the unit it belongs to.

    All documents of a unit (both orders of a sentence pair, every copy of one text) fall on the
    same side of the held-out split.
    """

    text: str
    unit: int


def find_sources(folder: Path) -> dict[str, Path]:
    """The files of a folder by source name, the name without its suffix.

    Raises CorpusError when the folder is missing, holds no source, or two files share a name.
    """
    if not folder.is_dir():
        raise CorpusError(f"{folder} is no folder of texts")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in TEXT_SUFFIXES + ID_SUFFIXES:
            continue
        if path.stem in found:
            raise CorpusError(
                f"{found[path.stem].name} and {path.name} in {folder} are both named {path.stem!r}"
            )
        found[path.stem] = path
    if not found:
        kinds = ", ".join(TEXT_SUFFIXES + ID_SUFFIXES)
        raise CorpusError(f"{folder} holds no source: no file ends in {kinds}")
    return found


def read_documents(path: Path) -> list[Document]:
    """The documents of a `.txt`, `.tsv` or `.jsonl` file, in order.

    `.txt`: documents between lines that say `<|endoftext|>`. `.tsv`: columns 1 and 2, as two
    documents `1\\n2` and `2\\n1`. `.jsonl`: the field `text` of each line. A text of more than
    SECTION_CHARACTERS is cut at line ends into documents of that size, so that a book can be
    partly held out. Raises CorpusError for a file that cannot be read, is not UTF-8 or is empty.
    """
    text = _read_utf8(path)
    entries: list[tuple[str, tuple[str, ...]]]
    if path.suffix == ".txt":
        entries = [(section, (section,)) for section in _sections(text)]
    elif path.suffix == ".tsv":
        entries = list(_pairs(path, text))
    elif path.suffix == ".jsonl":
        entries = [(section, (section,)) for line in _fields(path, text)
                   for section in _cut(line)]  # fmt: skip
    else:
        raise CorpusError(f"{path} ends in none of {', '.join(TEXT_SUFFIXES)}")
    units: dict[str, int] = {}
    documents: dict[str, int] = {}
    for key, texts in entries:
        unit = units.setdefault(key, len(units))
        for document in texts:
            documents.setdefault(document, unit)
    if not documents:
        raise CorpusError(f"{path} holds no text")
    return [Document(text, unit) for text, unit in documents.items()]


def is_held_out(unit: int, every: int) -> bool:
    """Whether a unit is never trained on: the last of each `every` units."""
    return unit % every == every - 1


def _read_utf8(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # utf-8-sig reports offsets after the mark that it dropped.
        at = error.start + 3 * raw.startswith(b"\xef\xbb\xbf")
        line = raw[:at].count(b"\n") + 1
        raise CorpusError(
            f"{path} is not UTF-8: byte 0x{raw[at]:02x} at offset {at} (line {line})"
        ) from error
    return text.replace("\r\n", "\n")


def _sections(text: str) -> Iterator[str]:
    block: list[str] = []
    for line in text.split("\n"):
        if line.strip() == SEPARATOR:
            yield from _cut("\n".join(block))
            block = []
        else:
            block.append(line)
    yield from _cut("\n".join(block))


def _cut(text: str) -> Iterator[str]:
    text = text.strip()
    while len(text) > SECTION_CHARACTERS:
        end = text.rfind("\n", 1, SECTION_CHARACTERS)
        end = end if end > 0 else SECTION_CHARACTERS
        yield text[:end].strip()
        text = text[end:].strip()
    if text:
        yield text


def _pairs(path: Path, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for number, row in enumerate(
        csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE), start=1
    ):
        if not row:
            continue
        if len(row) < 2 or not (row[0].strip() and row[1].strip()):
            raise CorpusError(f"{path} line {number} has no two columns split by a tab")
        first, second = row[0].strip(), row[1].strip()
        yield first, (f"{first}\n{second}", f"{second}\n{first}")


def _fields(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{path} line {number} is not JSON: {error.msg}") from error
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise CorpusError(f"{path} line {number} has no text field that is a string")
        yield value["text"]
