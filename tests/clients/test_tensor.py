"""Choosing parts of a tensor by true index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fluoroscope_client import Tensor

# values[i, j] = 100 · layer + query: a number says which indices it belongs to.
LAYERS, QUERIES = (4, 1), (2, 3, 7)
PART = Tensor(
    values=np.array([[100.0 * layer + query for query in QUERIES] for layer in LAYERS]),
    name="attn.pattern",
    site="attn.pattern",
    axes=("layer", "query"),
    coords={"layer": LAYERS, "query": QUERIES},
    lengths={"query": 8},
)
WHOLE = Tensor(
    values=np.array([[100.0 * layer + query for query in range(8)] for layer in range(6)]),
    name="whole",
    site="attn.pattern",
    axes=("layer", "query"),
)


def test_index_takes_its_axis_out_and_remembers_it() -> None:
    row = PART.sel(layer=1)
    assert row.values.tolist() == [102, 103, 107]
    assert (row.axes, dict(row.at)) == (("query",), {"layer": 1})
    assert row.coords == {"query": QUERIES}
    cell = PART.sel(layer=1, query=3)
    assert float(cell.values) == 103
    assert cell.axes == ()


def test_list_keeps_its_axis_in_the_order_asked_for() -> None:
    part = PART.sel(query=[7, 2], layer=[4])
    assert part.values.tolist() == [[407, 402]]
    assert part.coords == {"layer": (4,), "query": (7, 2)}
    assert part.sel(query=2).values.tolist() == [402]


def test_index_is_the_models_own_not_the_place_in_the_array() -> None:
    with pytest.raises(IndexError, match=r"holds layer 4, 1; 0 is not there"):
        PART.sel(layer=0)
    with pytest.raises(IndexError, match="0 to 5; 6 is not there"):
        WHOLE.sel(layer=6)


def test_minus_one_is_the_last_of_the_input_not_of_what_is_held() -> None:
    assert PART.sel(layer=1, query=-1).values == 107
    assert WHOLE.sel(layer=-1, query=-1).values == 507
    with pytest.raises(IndexError, match="unknown number"):
        PART.sel(layer=-1)  # nothing says how many layers the model has
    with pytest.raises(IndexError, match="-2 is not there"):
        PART.sel(query=-2)


def test_slice_keeps_what_is_held_of_it() -> None:
    assert PART.sel(layer=1, query=slice(3, None)).values.tolist() == [103, 107]
    assert PART.sel(layer=1, query=slice(-1, None)).values.tolist() == [107]
    assert WHOLE.sel(layer=0, query=slice(0, 6, 2)).values.tolist() == [0, 2, 4]
    assert PART.sel(query=slice(0, 2)).shape == (2, 0)
    with pytest.raises(IndexError, match="along layer"):
        PART.sel(layer=slice(-2, None))


def test_range_must_be_held_and_all_changes_nothing() -> None:
    assert PART.sel(query=range(2, 4)).sel(layer=4).values.tolist() == [402, 403]
    with pytest.raises(IndexError, match="4 is not there"):
        PART.sel(query=range(2, 5))
    assert PART.sel(query="all") is PART


def test_minus_one_still_means_the_last_after_a_selection() -> None:
    part = WHOLE.sel(layer=[5, 0])
    assert part.sel(layer=-1, query=0).values == 500


@pytest.mark.parametrize("wrong", [{"head": 0}, {"position": "all"}])
def test_axis_that_is_not_there_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="it has layer, query"):
        PART.sel(**wrong)


def test_statistics_are_chosen_by_name() -> None:
    stats = Tensor(np.arange(5.0), "s", "resid_post", ("stat",))
    assert stats.sel(stat="norm").values == 2
    assert stats.sel(stat=[1, 4]).values.tolist() == [1, 4]
    with pytest.raises(TypeError, match="median"):
        stats.sel(stat="median")


def test_numpy_reads_it_without_a_copy() -> None:
    assert np.shares_memory(np.asarray(PART), PART.values)
    assert np.asarray(PART, dtype=np.float16).dtype == np.float16
    assert not np.shares_memory(np.array(PART, copy=True), PART.values)


def test_repr_says_what_it_is_and_which_part() -> None:
    assert repr(PART.sel(layer=4)).splitlines() == [
        "attn.pattern (layer 4 · query × 3 [2, 3, 7]) float64",
        "[402. 403. 407.]",
    ]
    deep = Tensor(np.zeros((1, 1, 2), np.float32), "a", "a", ("layer", "head", "position"))
    assert repr(deep) == "a (layer × 1 · head × 1 · position × 2) float32"
