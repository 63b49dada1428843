"""Captures: shapes, coordinates and reductions, against numpy on the whole value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.capture import Capture
from model.gpt import GPT
from model.reading import read
from model.selection import SelectionError, Span
from model.sites import SITES

IDS = [5, 80, 3, 250, 17, 9, 44]


def taken(model: GPT, site: str, asked: dict[Any, Any] | None = None, **choices: Any) -> Capture:
    return Capture.resolve(SITES[site], asked or {}, model.config, len(IDS), **choices)


def values(model: GPT, capture: Capture) -> NDArray[np.float32]:
    return read(model, IDS, [capture]).tensors[capture.name].numpy()


def test_selection_on_every_axis_is_that_part_of_the_whole(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    whole = values(model, taken(model, "attn.pattern"))
    capture = taken(
        model,
        "attn.pattern",
        {"layer": [2, 0], "head": [-1], "query": Span(start=6, stop=0, step=-3), "key": [1, 5]},
    )
    assert np.array_equal(values(model, capture), whole[np.ix_([2, 0], [3], [6, 3], [1, 5])])
    assert capture.shape == (2, 1, 2, 2) and capture.count == 8
    assert capture.coords == {"layer": [2, 0], "head": [3], "query": [6, 3], "key": [1, 5]}


def test_axis_taken_whole_has_no_coords_and_one_reordered_has(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    assert taken(model, "attn.pattern", {"layer": [0, 1, 2]}).coords == {}
    assert taken(model, "attn.pattern", {"layer": [2, 1, 0]}).coords == {"layer": [2, 1, 0]}


def test_key_value_sites_have_their_own_heads(models: Mapping[str, GPT]) -> None:
    model = models["grouped"]
    assert taken(model, "attn.k").shape == (3, 2, 7, 10)
    assert taken(model, "attn.q").shape == (3, 6, 7, 10)
    assert taken(model, "attn.pattern").shape == (3, 6, 7, 7)
    assert taken(model, "attn.v", {"kv_head": [1]}).shape == (3, 1, 7, 10)
    with pytest.raises(SelectionError, match=r"attn\.v has no head axis"):
        taken(model, "attn.v", {"head": [1]})
    with pytest.raises(SelectionError, match=r"attn\.q has no kv_head axis"):
        taken(model, "attn.q", {"kv_head": [1]})


def test_stats_are_those_of_the_last_axis(models: Mapping[str, GPT]) -> None:
    model = models["grouped"]
    whole = values(model, taken(model, "resid_post")).astype(np.float64)
    capture = taken(model, "resid_post", {"layer": [1], "position": [3, 4]}, reduce="stats")
    part = whole[[1]][:, [3, 4]]
    expected = np.stack(
        (
            part.mean(-1),
            part.var(-1),
            np.sqrt((part**2).sum(-1)),
            part.min(-1),
            part.max(-1),
        ),
        axis=-1,
    )
    assert capture.axes == ("layer", "position", "stat") and capture.shape == (1, 2, 5)
    np.testing.assert_allclose(values(model, capture), expected, rtol=2e-5)


@pytest.mark.parametrize(("reduce", "over"), [("head_mean", np.mean), ("head_max", np.max)])
def test_heads_reduce_to_one_map_over_the_chosen_heads(
    reduce: Any, over: Any, models: Mapping[str, GPT]
) -> None:
    model = models["course"]
    whole = values(model, taken(model, "attn.pattern"))
    capture = taken(model, "attn.pattern", {"head": [0, 2], "query": [5]}, reduce=reduce)
    assert capture.axes == ("layer", "query", "key") and capture.coords == {"query": [5]}
    assert capture.shape == (3, 1, 7)
    np.testing.assert_allclose(
        values(model, capture), over(whole[:, [0, 2]][:, :, [5]], axis=1), rtol=1e-6
    )


def test_reductions_that_mean_nothing_are_refused(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    with pytest.raises(SelectionError, match="resid_pre has no head axis to take the mean over"):
        taken(model, "resid_pre", reduce="head_mean")
    with pytest.raises(SelectionError, match="holds −∞"):
        taken(model, "attn.masked_scores", reduce="stats")


def test_half_precision_is_the_nearest_half_of_the_float32_value(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]
    whole = values(model, taken(model, "attn.z"))
    half = values(model, taken(model, "attn.z", dtype=torch.float16))
    assert np.array_equal(half, whole.astype(np.float16))


def test_logits_at_positions_out_of_order_come_back_in_that_order(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]
    whole = values(model, taken(model, "logits"))
    some = values(model, taken(model, "logits", {"position": [5, 1]}))
    np.testing.assert_allclose(some, whole[[5, 1]], rtol=2e-5, atol=2e-5)


def test_one_site_twice_under_two_names_gives_both_parts(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    first = taken(model, "attn.q", {"head": [0]}, name="a")
    second = taken(model, "attn.q", {"head": [1]}, name="b")
    whole = values(model, taken(model, "attn.q"))
    found = read(model, IDS, [first, second]).tensors
    assert np.array_equal(found["a"].numpy(), whole[:, [0]])
    assert np.array_equal(found["b"].numpy(), whole[:, [1]])
