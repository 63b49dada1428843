"""Text that grows by tokens: whole characters, and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.running_text import RunningText

CAT = "🐱".encode()  # f0 9f 90 b1


def said(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """What is said after each piece and at the end, and the stop string that ended it."""
    text = RunningText(stops)
    out: list[str] = []
    for piece in pieces:
        grown = text.grow(piece)
        out.append(grown.text)
        if grown.stop is not None:
            return out, grown.stop
    rest, stop = text.end()
    return [*out, rest], stop


def ended_at(whole: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text up to the stop string whose last character comes first, found character by
    character."""
    for end in range(1, len(whole) + 1):
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return whole[: end - len(longest)], longest
    return whole, None


def test_split_character_is_said_whole_once_it_is_complete() -> None:
    text = RunningText([])
    grown = [text.grow(CAT[place : place + 1]) for place in range(4)]
    assert [one.text for one in grown] == ["", "", "", "🐱"]
    assert [one.display for one in grown] == ["", "", "", "🐱"]
    assert [one.continuation for one in grown] == [False, True, True, True]


def test_token_of_a_whole_character_and_the_start_of_another_says_the_whole_one() -> None:
    assert said([b" " + CAT[:2], CAT[2:] + b"!"], []) == ([" ", "🐱!", ""], None)


def test_token_after_half_a_character_that_does_not_go_on_with_it_begins_anew() -> None:
    text = RunningText([])
    text.grow(CAT[:2])
    grown = text.grow(b"a")
    assert (grown.text, grown.continuation) == ("\ufffda", False)


def test_half_a_character_at_the_end_is_said_as_one_that_cannot_be_read() -> None:
    assert said([b"a", CAT[:3]], []) == (["a", "", "\ufffd"], None)


def test_stop_string_over_three_tokens_is_never_begun() -> None:
    assert said([b"The e", b"n", b"d. More"], ["end."]) == (["The ", "", ""], "end.")


def test_what_was_held_back_is_said_once_it_is_no_stop_string() -> None:
    assert said([b"The e", b"n", b"emy"], ["end."]) == (["The ", "", "enemy", ""], None)


def test_what_is_held_back_when_nothing_follows_is_said() -> None:
    assert said([b"The en"], ["end."]) == (["The ", "en"], None)


def test_stop_string_that_begins_again_inside_itself_is_found() -> None:
    assert said([b"aaa", b"ab"], ["aaab"]) == (["", "a"], "aaab")
    assert said([b"ababa", b"c"], ["abac"]) == (["ab", ""], "abac")


def test_stop_string_that_is_complete_first_wins_wherever_tokens_end() -> None:
    for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"], [b"abc", b"d"]):
        texts, stop = said(pieces, ["abcd", "bc"])
        assert ("".join(texts), stop) == ("a", "bc")


def test_of_two_that_are_complete_at_once_the_longer_wins() -> None:
    assert said([b"xabc"], ["bc", "abc"]) == (["x"], "abc")


def test_stop_string_of_a_character_that_is_split_is_found() -> None:
    assert said([b"a" + CAT[:1], CAT[1:], b"b"], ["🐱"]) == (["a", ""], "🐱")


def test_stop_string_of_what_cannot_be_read_is_found_at_the_end() -> None:
    assert said([b"ab", CAT[:2]], ["b\ufffd"]) == (["a", "", ""], "b\ufffd")


@given(
    data=st.lists(st.sampled_from([b"a", b"b", b"ab", CAT[:1], CAT[1:3], CAT[3:], CAT, b"\xff"])),
    stops=st.lists(st.text("ab🐱\ufffd", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(1, 3)),
)
@example(data=[b"a", b"b"], stops=["ab"], cuts=[])
def test_text_is_the_whole_decoded_up_to_the_first_stop_string(
    data: list[bytes], stops: list[str], cuts: list[int]
) -> None:
    whole = b"".join(data)
    pieces, start = [], 0
    for cut in [*cuts, len(whole) + 1]:
        pieces.append(whole[start : start + cut])
        start += cut
    expected, stop = ended_at(whole.decode("utf-8", "replace"), stops)
    texts, found = said(pieces, stops)
    assert ("".join(texts), found) == (expected, stop)


@pytest.mark.parametrize("stops", [["ab"], ["ab", "b"]])
def test_nothing_that_was_said_is_past_a_stop_string(stops: list[str]) -> None:
    text, out = RunningText(stops), ""
    for byte in b"xaab":
        out += text.grow(bytes([byte])).text
        assert not any(stop in out for stop in stops)
    assert out == "xa"
