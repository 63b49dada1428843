"""Maps and tables as lines of a terminal, checked by the columns that a terminal would use."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from fluoroscope_client import Tensor
from fluoroscope_client.labels import width
from fluoroscope_client.terminal import RESET, Screen, bar, draw_map, table

ANSI = re.compile(r"\x1b\[[0-9;]*m")
CHINESE = ("猫", "追", "老", "鼠", "，", "因", "为")
ENGLISH = ("The", " cat", " chased", " the", " mouse")


def tensor(tokens: tuple[str, ...], values: Any = None, **more: Any) -> Tensor:
    n = len(tokens)
    if values is None:
        values = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    array = np.asarray(values, np.float32)
    return Tensor(array, "attn.pattern", "attn.pattern", ("query", "key"), tokens=tokens, **more)


def drawn(tensor: Tensor, columns: int, colours: Any = 0) -> list[str]:
    """Its lines, none of them wider than the screen."""
    lines = draw_map(tensor, Screen(columns, colours))
    assert max(width(ANSI.sub("", line)) for line in lines) <= columns
    return lines


def test_chinese_and_numbers_stand_in_their_columns() -> None:
    lines = drawn(tensor(CHINESE), 80)
    assert lines[0] == "     " + "    ".join(CHINESE)
    assert lines[1] == "0 猫  1.00"
    assert lines[3] == "2 老  0.33  0.33  0.33"
    starts = [width(lines[0].partition(word)[0]) for word in CHINESE]
    assert starts == [5 + 6 * place for place in range(7)]


def test_english_words_are_cut_to_their_cells() -> None:
    lines = drawn(tensor(ENGLISH), 34)
    assert lines[0] == "         The  cat  cha… the  mou…"
    assert lines[3] == "2 chased  0.33 0.33 0.33"


def test_narrow_chinese_still_has_its_words_and_english_numbers() -> None:
    lines = drawn(tensor(CHINESE), 20)
    assert lines[0] == "     " + "".join(CHINESE)
    assert lines[1] == "0 猫 @@"
    lines = drawn(tensor(ENGLISH), 15)
    assert lines[0] == "         0"
    assert [line[9:] for line in lines[1:]] == ["@", "==", "---", "::::", ":::::"]


def test_map_wider_than_the_screen_shows_the_largest_of_several() -> None:
    values = np.zeros((100, 100))
    values[70, 35] = 1
    lines = drawn(tensor(("a",) * 100, values), 60)
    assert lines[-1] == "each cell is the largest of 2 × 2"
    assert len(lines) == 1 + 50 + 1
    (marked,) = (line for line in lines if "@" in line)
    assert marked.startswith("70 a")
    assert marked.index("@") - len("70 a ") == 17
    marks = lines[0][5:].split()
    assert marks == ["0", "20", "40", "60", "80"]


def test_masked_and_negative_numbers() -> None:
    values = [[0.5, -np.inf], [-0.5, 0.0]]
    lines = drawn(tensor(("a", "b"), values), 80)
    assert lines[1:] == ["0 a  0.50", "1 b -0.50  0.00"]


def test_large_numbers_lose_decimals_and_never_their_column() -> None:
    values = [[-1.25, 12.5], [-12.25, 123.5], [-123.25, 1234.5], [-99999.0, 123456.0]]
    lines = drawn(Tensor(np.array(values), "x", "x", ("query", "key"), tokens=()), 80)
    assert [line.split()[2:] for line in lines[1:]] == [
        ["-1.25", "12.50"],
        ["-12.2", "123.5"],
        ["-123", "1234"],
        ["…", "…"],
    ]
    assert len(set(map(width, lines[1:4]))) == 1


@pytest.mark.parametrize("colours", [256, 16777216])
def test_colours_change_no_width_and_end_with_the_line(colours: Any) -> None:
    plain, coloured = drawn(tensor(CHINESE), 80), drawn(tensor(CHINESE), 80, colours)
    assert [ANSI.sub("", line).rstrip() for line in coloured] == plain
    for line in coloured[1:]:
        assert line.endswith(RESET)
    grounds = re.findall(r"\x1b\[48;(5;\d+|2;\d+;\d+;\d+);", coloured[1])
    assert grounds == ["5;221" if colours == 256 else "2;246;196;64"]


def test_control_characters_of_a_token_are_spelled_out() -> None:
    lines = drawn(tensor(("\x1b[31m", "\n")), 80)
    assert not any("\x1b" in line for line in lines)
    assert lines[1].startswith("0 \\x1b[31m ")


def test_part_of_a_map_has_its_true_indices() -> None:
    part = tensor(CHINESE).sel(query=[6, 2], key=slice(2, 4))
    lines = drawn(part, 80)
    assert [line[:3] for line in lines[1:]] == ["6 为", "2 老"]
    assert lines[0].split() == ["老", "鼠"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colours"),
    [
        (Terminal(), {}, 256),
        (Terminal(), {"COLORTERM": "truecolor"}, 16777216),
        (Terminal(), {"COLORTERM": "truecolor", "NO_COLOR": "1"}, 0),
        (Terminal(), {"NO_COLOR": ""}, 256),
        (Terminal(), {"TERM": "dumb"}, 0),
        (io.StringIO(), {"COLORTERM": "truecolor"}, 0),
    ],
)
def test_screen_is_coloured_only_where_wanted(stream: Any, environ: Any, colours: int) -> None:
    assert Screen.of(stream, environ).colours == colours


def test_screen_is_as_wide_as_the_terminal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "42")
    assert Screen.of(Terminal(), {}).columns == 42


def test_table_lines_up_words_of_any_alphabet() -> None:
    assert table([["猫", "1"], ["cat", "20"]], " r") == ["猫    1", "cat  20"]


def test_bar_is_as_long_as_its_share() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(1, 4) == "████" and bar(0, 4) == "    " and bar(2, 4) == "████"
    assert bar(0.375, 2) == "▊ "
