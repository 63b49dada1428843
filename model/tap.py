"""Tap: what reads and edits the sites while the model runs. Knows nothing of how they are computed.

A run hands every named quantity through its tap once. The default returns what it gets; a Probe
copies out what was asked for, puts in what was edited, and ends the run once nothing is left to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from model.capture import Capture, Recording
from model.edit import Edit

Observer = Callable[[int | None, Tensor], None]


class EndOfRun(Exception):
    """Raised by a tap at a site, caught by the model's forward: nothing further is computed."""


class Tap:
    """Returns what it gets. Passed into the forward call, never kept in a module."""

    edits = False  # whether this tap may change values

    def __call__(self, site: str, value: Tensor) -> Tensor:
        return value

    def at(self, layer: int) -> Tap:
        """The same tap, knowing that the sites it meets next are this layer's."""
        return self

    def wants(self, site: str) -> bool:
        """Whether a site that costs extra is to be computed."""
        return False


NO_TAP = Tap()


class Probe(Tap):
    """Serves the captures and edits of one run over one row of tokens.

    At a site the edits come first, in their order, so a capture shows the edited value. Observers
    are called with every layer's value (without the batch axis) of the site that they stand under.
    When the last capture is taken the run ends, unless `to_the_end`. `stopped` is asked before
    every block; once it says yes the run ends and `cancelled` is True.
    """

    def __init__(
        self,
        captures: Sequence[Capture],
        edits: Sequence[Edit] = (),
        *,
        observers: Mapping[str, Observer] = MappingProxyType({}),
        stopped: Callable[[], bool] = lambda: False,
        to_the_end: bool = False,
    ) -> None:
        self.recordings = [Recording(capture) for capture in captures]
        self.edits = bool(edits)
        self.cancelled = False
        self._stopped = stopped
        self._observers = observers
        self._edits_at: dict[tuple[str, int | None], list[Edit]] = defaultdict(list)
        self._recordings_at: dict[tuple[str, int | None], list[Recording]] = defaultdict(list)
        for edit in edits:
            for layer in edit.layers:
                self._edits_at[edit.site.name, layer].append(edit)
        for recording in self.recordings:
            for layer in recording.capture.layers:
                self._recordings_at[recording.capture.site.name, layer].append(recording)
        self._left = sum(len(recording.capture.layers) for recording in self.recordings)
        self._left += to_the_end

    def __call__(self, site: str, value: Tensor) -> Tensor:
        return self.visit(site, None, value)

    def at(self, layer: int) -> Tap:
        return _LayerProbe(self, layer)

    def visit(self, site: str, layer: int | None, value: Tensor) -> Tensor:
        """One site of one layer (None for sites outside the blocks), value (1, …)."""
        if site == "resid_pre" and self._stopped():
            self.cancelled = True
            raise EndOfRun
        for edit in self._edits_at.get((site, layer), ()):
            value = edit.apply(layer, value)
        if site in self._observers:
            self._observers[site](layer, value[0])
        recordings = self._recordings_at.get((site, layer))
        if recordings:
            for recording in recordings:
                recording.take(layer, value[0])
            self._left -= len(recordings)
            if not self._left:
                raise EndOfRun
        return value

    def busy_at(self, layer: int) -> frozenset[str]:
        """The sites of a layer at which there is something to do; most have nothing."""
        edited_or_recorded = (
            site for site, at in (*self._edits_at, *self._recordings_at) if at == layer
        )
        return frozenset((*edited_or_recorded, *self._observers, "resid_pre"))

    def wanted(self, site: str, layer: int | None) -> bool:
        at = (site, layer)
        return at in self._edits_at or at in self._recordings_at or site in self._observers


class _LayerProbe(Tap):
    def __init__(self, probe: Probe, layer: int) -> None:
        self.edits = probe.edits
        self._probe = probe
        self._layer = layer
        self._busy = probe.busy_at(layer)

    def __call__(self, site: str, value: Tensor) -> Tensor:
        if site in self._busy:
            return self._probe.visit(site, self._layer, value)
        return value

    def wants(self, site: str) -> bool:
        return self._probe.wanted(site, self._layer)
