"""Tensor: an array that knows what it is, and which layers, heads and positions it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fluoroscope_client.asking import Selection, select
from fluoroscope_client.exports import to_bertviz, to_circuitsvis, to_xarray
from fluoroscope_client.heatmap import tensor_html
from fluoroscope_client.safetensors import Floats

OF_TOKENS = ("position", "query", "key")
STATS = ("mean", "variance", "norm", "min", "max")
Indices = range | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Tensor:
    """Numbers from inside a run.

    `axes` names the axes of `values` in order. `coords` holds the true indices along an axis; an
    axis that is not in it is whole. `at` holds the one index of each axis that `sel` took out.
    `lengths` gives an axis' length in the model or the input where that is known, so that −1 is
    the last one there and not the last one held. `tokens` labels the positions of the input,
    where they are known.
    """

    values: Floats
    name: str
    site: str
    axes: tuple[str, ...]
    coords: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def indices(self, axis: str) -> Indices:
        """The true indices along an axis, in the order of the values. Raises ValueError."""
        place = self._place(axis)
        return self.coords.get(axis, range(self.values.shape[place]))

    def labels(self, axis: str) -> list[str]:
        """What stands along an axis: tokens where it counts them, else indices or statistics."""
        held = self.indices(axis)
        if axis in OF_TOKENS and self.tokens and max(held, default=0) < len(self.tokens):
            return [self.tokens[index] for index in held]
        if axis == "stat" and len(held) == len(STATS):
            return list(STATS)
        return [str(index) for index in held]

    def sel(self, **selections: Selection | str) -> Tensor:
        """The part with these true indices: `sel(layer=2, head=[0, 3], query=-1)`.

        An index takes its axis out; a list or range keeps it, in the order asked for; a slice
        keeps what is held of it. Along `stat` the names of the statistics work too. Raises
        IndexError for an index that is not held, ValueError for an axis that is not there.
        """
        part = self
        for axis, selection in selections.items():
            part = part._sel(axis, selection)
        return part

    def _sel(self, axis: str, selection: Selection | str) -> Tensor:
        place = self._place(axis)
        if axis == "stat" and isinstance(selection, str) and selection in STATS:
            selection = STATS.index(selection)
        wanted = select(selection)  # type: ignore[arg-type]
        if wanted == "all":
            return self
        held = self.indices(axis)
        if isinstance(wanted, dict):
            true = self._held_of(axis, slice(wanted["start"], wanted["stop"], wanted["step"]))
        else:
            true = [self._true(axis, asked) for asked in wanted]  # type: ignore[arg-type]
        places = [held.index(number) for number in true]
        others = {name: found for name, found in self.coords.items() if name != axis}
        if not isinstance(selection, (slice, Sequence, range, np.ndarray)):
            return replace(
                self,
                values=self.values[(slice(None),) * place + (places[0],)],
                axes=self.axes[:place] + self.axes[place + 1 :],
                coords=others,
                at={**self.at, axis: true[0]},
            )
        length = self._length(axis)
        return replace(
            self,
            values=self.values.take(places, axis=place),
            coords={**others, axis: tuple(true)},
            lengths=self.lengths if length is None else {**self.lengths, axis: length},
        )

    def _place(self, axis: str) -> int:
        if axis not in self.axes:
            raise ValueError(f"{self.name} has no axis {axis!r}; it has {', '.join(self.axes)}")
        return self.axes.index(axis)

    def _length(self, axis: str) -> int | None:
        if axis in self.lengths:
            return self.lengths[axis]
        return None if axis in self.coords else self.values.shape[self.axes.index(axis)]

    def _true(self, axis: str, asked: int) -> int:
        held = self.indices(axis)
        true = asked
        if asked < 0:
            length = self._length(axis)
            if length is None:
                raise IndexError(
                    f"{self.name} holds {axis} {_listed(held)} of an unknown number: say which "
                    f"one {asked} is"
                )
            true = asked + length
        if true not in held:
            raise IndexError(f"{self.name} holds {axis} {_listed(held)}; {asked} is not there")
        return true

    def _held_of(self, axis: str, asked: slice) -> list[int]:
        held = self.indices(axis)
        length = self._length(axis)
        if length is None:
            if any(bound is not None and bound < 0 for bound in (asked.start, asked.stop)):
                raise IndexError(f"{self.name}: nothing says how many there are along {axis}")
            length = max(held, default=-1) + 1
        return [number for number in range(length)[asked] if number in held]

    def to_bertviz(self) -> dict[str, Any]:
        """For BertViz: `head_view(**tensor.to_bertviz())`, of whole maps. Imports torch."""
        return to_bertviz(self)

    def to_circuitsvis(self) -> dict[str, Any]:
        """For CircuitsVis: `attention_heads(**tensor.to_circuitsvis())`, of whole maps."""
        return to_circuitsvis(self)

    def to_xarray(self) -> Any:
        """The same as an `xarray.DataArray`. Imports xarray."""
        return to_xarray(self)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if dtype is None and not copy:
            return self.values
        return self.values.astype(dtype or self.values.dtype, copy=bool(copy))

    def _repr_html_(self) -> str | None:
        return tensor_html(self)

    def __repr__(self) -> str:
        parts = [f"{axis} {self.at[axis]}" for axis in self.at]
        for axis, size in zip(self.axes, self.values.shape, strict=True):
            which = f" [{_listed(self.coords[axis])}]" if axis in self.coords else ""
            parts.append(f"{axis} × {size}{which}")
        text = f"{self.name} ({' · '.join(parts)}) {self.values.dtype}"
        if self.values.ndim > 2:
            return text
        numbers = np.array2string(self.values, precision=4, threshold=64, suppress_small=True)
        return f"{text}\n{numbers}"


def _listed(numbers: Indices) -> str:
    if isinstance(numbers, range):
        return f"{numbers.start} to {numbers.stop - 1}" if len(numbers) > 1 else f"{numbers.start}"
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:4], "…", shown[-1]])
