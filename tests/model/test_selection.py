"""Selections against Python's own slices and numpy's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.selection import Indices, SelectionError, Span, put, resolve, take


@given(
    size=st.integers(1, 12),
    start=st.none() | st.integers(-12, 12),
    stop=st.none() | st.integers(-12, 12),
    step=st.integers(-4, 4).filter(bool),
)
def test_span_selects_what_a_python_slice_does_or_is_refused(
    size: int, start: int | None, stop: int | None, step: int
) -> None:
    span = Span(start=start, stop=stop, step=step)
    inside = all(bound is None or -size - 1 <= bound <= size for bound in (start, stop))
    expected = list(range(size))[start:stop:step]
    if inside and expected:
        assert list(resolve(span, size, "key")) == expected
    else:
        with pytest.raises(SelectionError):
            resolve(span, size, "key")


def test_list_keeps_its_order_and_counts_negatives_from_the_end() -> None:
    assert list(resolve([4, -5, 2], 5, "head")) == [4, 0, 2]


def test_all_is_every_index() -> None:
    assert list(resolve("all", 4, "layer")) == [0, 1, 2, 3]


@pytest.mark.parametrize("index", [-6, 5, 99])
def test_list_out_of_range_at_either_end_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(SelectionError, match=rf"head {index} is out of range; valid are -5 to 4"):
        resolve([0, index], 5, "head")


def test_list_with_one_index_spelled_twice_is_refused() -> None:
    with pytest.raises(SelectionError, match="head 4 is selected more than once"):
        resolve([4, -1], 5, "head")


def test_empty_list_is_refused() -> None:
    with pytest.raises(SelectionError, match="no head is selected"):
        resolve([], 5, "head")


@pytest.mark.parametrize(
    ("span", "says"),
    [
        (Span(start=6), "start 6 is out of range"),
        (Span(stop=-7), "stop -7 is out of range"),
        (Span(step=0), "step is 0"),
        (Span(start=3, stop=3), "selects nothing of 5"),
    ],
)
def test_span_that_leaves_the_axis_or_selects_nothing_is_refused(span: Span, says: str) -> None:
    with pytest.raises(SelectionError, match=says):
        resolve(span, 5, "query")


@st.composite
def _selected_array(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Indices | None]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    indices: list[Indices | None] = []
    for size in shape:
        chosen = draw(
            st.none()
            | st.lists(st.integers(-size, size - 1), min_size=1, unique_by=lambda i, n=size: i % n)
        )
        indices.append(None if chosen is None else resolve(chosen, size, "key"))
    return shape, indices


@given(_selected_array())
def test_take_and_put_agree_with_numpys_open_mesh(
    case: tuple[tuple[int, ...], list[Indices | None]],
) -> None:
    shape, indices = case
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    mesh = np.ix_(
        *(
            range(size) if index is None else list(index)
            for size, index in zip(shape, indices, strict=True)
        )
    )
    assert np.array_equal(take(torch.from_numpy(values.copy()), indices).numpy(), values[mesh])

    new = -1 - np.arange(values[mesh].size, dtype=np.float32).reshape(values[mesh].shape)
    written = torch.from_numpy(values.copy())
    put(written, indices, torch.from_numpy(new))
    values[mesh] = new
    assert np.array_equal(written.numpy(), values)


def test_put_broadcasts_one_number() -> None:
    values = torch.zeros(2, 3)
    put(values, [(1,), range(0, 3, 2)], 7.0)
    assert values.tolist() == [[0, 0, 0], [7, 0, 7]]
