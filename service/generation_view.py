"""A generation in the terminal: the running text, and for each token what else was likely.

Knows the events as they stand on the wire, and nothing of where they come from.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

BAR = 8  # cells of a bar that stands for certainty
_AROUND = 6  # lines of the terminal that are not the table's


class Screen:
    """Drawn anew with every step where there is a terminal; else a line for each step, and the
    text once it is over."""

    def __init__(self, console: Console, beginning: str) -> None:
        self._console = console
        self._beginning = beginning
        self._live: Live | None = None
        self._sample = -1
        self._greedy = False
        self._steps: list[dict[str, Any]] = []

    def show(self, name: str, said: dict[str, Any]) -> None:
        """One event."""
        if name == "meta":
            self._greedy = said["sampling"]["temperature"] == 0
        elif name == "step":
            self._step(said)
        elif name == "done":
            self.close()
            self._end(said)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _step(self, step: dict[str, Any]) -> None:
        if step["sample"] != self._sample:
            self.close()
            self._sample, self._steps = step["sample"], []
            if self._console.is_terminal:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
        self._steps.append(step)
        if self._live is not None:
            self._live.update(Group(self._text(), self._table()), refresh=True)
        else:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(justify="right", min_width=4)
            grid.add_column(min_width=12)
            grid.add_row(*self._row(step))
            self._console.print(grid)

    def _text(self) -> Text:
        new = "".join(step["text"] or "" for step in self._steps)
        return Text.assemble((printable(self._beginning), "dim"), (printable(new), "bold"), "\n")

    def _table(self) -> Table:
        """The latest steps, as many as the terminal holds beside the text."""
        head = ("", "drawn", "", "choices")
        table = Table(*head, box=None, padding=(0, 2, 0, 0), header_style="dim")
        lines = len(self._text().wrap(self._console, self._console.width))
        room = max(self._console.height - lines - _AROUND, 1)
        for step in self._steps[-room:]:
            table.add_row(*self._row(step))
        return table

    def _row(self, step: dict[str, Any]) -> tuple[Text, ...]:
        """Where greedy, chances are those before the largest was taken."""
        chance = "uncut" if self._greedy else "probability"
        drawn = next(candidate for candidate in step["candidates"] if candidate["drawn"])
        filled = round(BAR * drawn[chance])
        bar = Text.assemble(
            (f"{drawn[chance]:4.0%} ", "bold"), ("█" * filled, "green"), "░" * (BAR - filled)
        )
        choices = Text(no_wrap=True, overflow="ellipsis")
        for candidate in step["candidates"]:
            cut = candidate["cut_by"] in ("top_k", "top_p")
            style = "bold green" if candidate["drawn"] else "dim strike" if cut else ""
            share = "cut" if cut else f"{candidate[chance]:.0%}"
            choices.append("  " if choices else "").append(f"{quoted(candidate)} {share}", style)
        return Text(str(step["position"]), "dim"), Text(quoted(drawn), "bold"), bar, choices

    def _end(self, done: dict[str, Any]) -> None:
        for sample in done["samples"]:
            if not self._console.is_terminal:
                text = self._beginning + (sample["text"] or "")
                self._console.print(printable(text), markup=False, soft_wrap=True)
            why = sample["reason"].replace("_", " ")
            n_tokens = len(sample["token_ids"])
            self._console.print(f"{n_tokens} tokens, ended by {why}", style="dim", markup=False)


def quoted(candidate: dict[str, Any]) -> str:
    """A token's text in quotes, so that its spaces and line breaks can be seen."""
    text = candidate["text"]
    return f"#{candidate['id']}" if text is None else json.dumps(text, ensure_ascii=False)


def printable(text: str) -> str:
    """Without what would move the terminal's cursor: a model's bytes are anybody's."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
