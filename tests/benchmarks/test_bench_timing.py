"""Interleaving, ratios and bars, on numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import grid, table
from benchmarks.row import Bar
from benchmarks.timing import Effort, Times, interleave


def test_ratio_is_the_median_within_rounds() -> None:
    times = Times(["slow", "fast"])
    times.by_name["slow"] = [10.0, 40.0, 60.0, None]
    times.by_name["fast"] = [1.0, 20.0, 20.0, 7.0]
    assert times.ratio("slow", "fast") == 3.0  # of 10, 2 and 3; the last round had no pair
    assert times.median("slow") == 40.0
    assert times.runs("slow") == 3


def test_every_contestant_runs_once_a_round_in_changing_order() -> None:
    seen: list[str] = []

    def contestant(name: str) -> Callable[[], float]:
        def run() -> float:
            seen.append(name)
            return 1.0

        return run

    times = interleave({name: contestant(name) for name in "abc"}, Effort(rounds=4, seconds=0))
    rounds = ["".join(seen[start : start + 3]) for start in range(0, len(seen), 3)]
    assert rounds[0] == "abc"  # the first calls, which nobody is judged by
    assert len(rounds) == 5 and all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds[1:])) > 2
    assert times.runs("a") == 4


def test_a_bar_is_missed_by_the_smallest_excess() -> None:
    assert Bar("", 1.35, "≤", 1.35).met
    assert not Bar("", 1.3501, "≤", 1.35).met
    assert Bar("", 15.0, "≥", 15.0).met
    assert not Bar("", 14.99, "≥", 15.0).met


def test_grid_leaves_what_was_not_measured_empty() -> None:
    lines = [
        {"who": "ours", "tokens": 32, "ms": 1},
        {"who": "ours", "tokens": 64, "ms": 2},
        {"who": "theirs", "tokens": 32, "ms": 3},
    ]
    assert grid(lines, "who", "tokens", lambda line: str(line["ms"])) == table(
        ("who", "T = 32", "T = 64"), [("ours", "1", "2"), ("theirs", "3", "")]
    )
