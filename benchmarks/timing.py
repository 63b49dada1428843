"""Interleaved timing: contestants take turns, so that what the machine does meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Contestant = Callable[[], float]  # runs once; milliseconds


@dataclass(frozen=True)
class Effort:
    """How long to measure: at least `rounds` of each contestant, more while `seconds` are left."""

    rounds: int
    seconds: float


class Times:
    """Milliseconds of each contestant by round; None where a slow one sat a round out."""

    def __init__(self, names: list[str]) -> None:
        self.by_name: dict[str, list[float | None]] = {name: [] for name in names}

    def median(self, name: str) -> float:
        return median(ms for ms in self.by_name[name] if ms is not None)

    def runs(self, name: str) -> int:
        return sum(ms is not None for ms in self.by_name[name])

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds that both ran in of name ÷ base."""
        pairs = zip(self.by_name[name], self.by_name[base], strict=True)
        return median(a / b for a, b in pairs if a is not None and b is not None)


def interleave(contestants: Mapping[str, Contestant], effort: Effort) -> Times:
    """Rounds in which each contestant runs once, in an order that changes from round to round.

    One that has had its rounds and more than its share of the time sits out.
    """
    names = list(contestants)
    for name in names:
        contestants[name]()  # first calls allocate and compile; nobody is judged by them
    times = Times(names)
    spent = dict.fromkeys(names, 0.0)
    share = effort.seconds / len(names)
    start, number = time.perf_counter(), 0
    while number < effort.rounds or time.perf_counter() - start < effort.seconds:
        turn = number % len(names)
        order = names[turn:] + names[:turn]
        for name in order if number % 2 else reversed(order):
            if number >= effort.rounds and spent[name] > share:
                times.by_name[name].append(None)
                continue
            began = time.perf_counter()
            times.by_name[name].append(contestants[name]())
            spent[name] += time.perf_counter() - began
        number += 1
        if number >= effort.rounds and all(spent[name] > share for name in names):
            break
    return times
