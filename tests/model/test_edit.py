"""Edits, each against a second way of getting the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.capture import Capture
from model.edit import Edit, EditError
from model.gpt import GPT
from model.reading import read
from model.selection import SelectionError
from model.sites import SITES, Site

IDS = [5, 80, 3, 250, 17, 9, 44, 80, 80, 12]
OTHER = [7, 301, 22, 22, 150, 61, 8, 90, 331, 4]
N = len(IDS)


def present(model: GPT) -> list[Site]:
    return [site for site in SITES.values() if site.present(model.config)]


def edit(model: GPT, op: Any, site: str, asked: dict[Any, Any] | None = None, **more: Any) -> Edit:
    return Edit.resolve(op, SITES[site], asked or {}, model.config, N, **more)


def run(model: GPT, *names: str, edits: Any = (), ids: list[int] = IDS) -> dict[str, Tensor]:
    captures = [Capture.resolve(SITES[name], {}, model.config, len(ids)) for name in names]
    return read(model, ids, captures, edits=edits).tensors


def changed(model: GPT, name: str, weight: Tensor) -> GPT:
    """A copy with one weight replaced."""
    other = copy.deepcopy(model)
    other.get_parameter(name).copy_(weight)
    return other


@pytest.mark.parametrize("head", [0, 3])
def test_zeroing_a_head_at_z_equals_zeroing_its_columns_of_w_o(
    head: int, family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    weight = model.blocks[1].attn.o.weight.clone()
    weight[:, head * model.config.d_head : (head + 1) * model.config.d_head] = 0
    expected = run(changed(model, "blocks.1.attn.o.weight", weight), "logits")["logits"]
    zeroed = edit(model, "zero", "attn.z", {"layer": [1], "head": [head]})
    assert torch.equal(run(model, "logits", edits=[zeroed])["logits"], expected)
    result = edit(model, "zero", "attn.result", {"layer": [1], "head": [head]})
    by_result = run(model, "logits", edits=[result])["logits"]
    assert (by_result - expected).abs().max() < 2e-5 * max(1.0, expected.abs().max())
    assert (expected - run(model, "logits")["logits"]).abs().max() > 0.05


def test_patch_of_the_whole_first_residual_gives_the_other_texts_logits(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    source = run(model, "resid_pre", ids=OTHER)["resid_pre"][:1]
    patch = edit(model, "set", "resid_pre", {"layer": [0]}, value=source)
    assert torch.equal(
        run(model, "logits", edits=[patch])["logits"], run(model, "logits", ids=OTHER)["logits"]
    )


@pytest.mark.parametrize(("op", "value"), [("scale", 1.0), ("add", 0.0)])
def test_scale_one_and_add_nothing_change_no_bit(
    op: str, value: float, family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    plain = run(model, "logits")["logits"]
    for site in present(model):
        nothing = edit(model, op, site.name, value=value)
        assert torch.equal(run(model, "logits", edits=[nothing])["logits"], plain), site.name
        assert nothing.values_touched == np.prod(site.sizes(model.config, N)), site.name
        assert nothing.change_norm == 0, site.name


def test_every_site_can_be_edited_and_the_edit_is_seen_downstream(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    plain = run(model, "logits")["logits"]
    for site in present(model):
        scaled = edit(model, "scale", site.name, {"layer": [1]} if site.layered else {}, value=0.5)
        moved = run(model, "logits", edits=[scaled])["logits"] - plain
        assert moved.abs().max() > 1e-4, site.name


def test_blocked_cell_equals_its_masked_score_at_minus_infinity_in_numpy(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    plain = run(model, "attn.masked_scores", "attn.v")
    scores = plain["attn.masked_scores"][1].double().numpy().copy()
    scores[2, 6, 3] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    share = model.config.n_head // model.config.n_kv_head
    z = weights @ np.repeat(plain["attn.v"][1].double().numpy(), share, axis=0)

    block = edit(
        model, "block", "attn.masked_scores", {"layer": [1], "head": [2], "query": [6], "key": [3]}
    )
    blocked = run(model, "attn.pattern", "attn.z", edits=[block])
    assert blocked["attn.pattern"][1, 2, 6, 3] == 0
    np.testing.assert_allclose(blocked["attn.pattern"][1].numpy(), weights, atol=2e-6)
    np.testing.assert_allclose(blocked["attn.z"][1].numpy(), z, atol=2e-5, rtol=2e-5)
    assert block.values_touched == 1


def test_mean_is_over_the_chosen_positions_or_all_of_them(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    plain = run(model, "attn.z")["attn.z"][0].numpy()
    chosen = {"layer": [0], "head": [1], "position": [2, 5, 6]}
    some = run(model, "attn.z", edits=[edit(model, "mean", "attn.z", chosen)])["attn.z"][0].numpy()
    np.testing.assert_allclose(
        some[1, [2, 5, 6]], np.tile(plain[1, [2, 5, 6]].mean(0), (3, 1)), atol=1e-6
    )
    whole_edit = edit(model, "mean", "attn.z", chosen, over="all")
    whole = run(model, "attn.z", edits=[whole_edit])["attn.z"][0].numpy()
    np.testing.assert_allclose(whole[1, [2, 5, 6]], np.tile(plain[1].mean(0), (3, 1)), atol=1e-6)
    for edited in (some, whole):
        edited[1, [2, 5, 6]] = plain[1, [2, 5, 6]]
        assert np.array_equal(edited, plain)


def test_mean_at_cells_is_over_the_queries(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    plain = run(model, "attn.pattern")["attn.pattern"][0].numpy()
    mean = edit(model, "mean", "attn.pattern", {"layer": [0], "query": [7, 8, 9], "key": [0, 1]})
    edited = run(model, "attn.pattern", edits=[mean])["attn.pattern"][0].numpy()
    expected = plain[:, 7:10, :2].mean(1, keepdims=True).repeat(3, axis=1)
    np.testing.assert_allclose(edited[:, 7:10, :2], expected, atol=1e-6)


def test_array_is_set_in_the_selections_own_order(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    value = torch.arange(2 * 1 * 2 * 3, dtype=torch.float32).reshape(2, 1, 2, 3)
    asked = {"layer": [2, 0], "head": [3], "query": [4, 1], "key": [0, 3, 1]}
    placed = edit(model, "set", "attn.dots", asked, value=value)
    dots = run(model, "attn.dots", edits=[placed])["attn.dots"]
    for place in np.ndindex(*value.shape):
        layer, head, query, key = (
            choice[index] for choice, index in zip(asked.values(), place, strict=True)
        )
        assert dots[layer, head, query, key] == value[place]
    assert placed.values_touched == 12


def test_change_norm_is_the_length_of_the_change(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    added = edit(model, "add", "resid_post", {"layer": [0, 1], "position": [3]}, value=-0.5)
    run(model, "logits", edits=[added])
    assert added.change_norm == pytest.approx(0.5 * (2 * 48) ** 0.5)
    zeroed = edit(model, "zero", "embed", {"position": [0, 1]})
    run(model, "logits", edits=[zeroed])
    rows = model.embed.weight[IDS[:2]].double().numpy()
    assert zeroed.change_norm == pytest.approx(np.sqrt((rows**2).sum()), rel=1e-6)


def test_edit_leaves_the_models_weights_and_the_next_run_alone(models: Mapping[str, GPT]) -> None:
    model = models["learned"]
    before = run(model, "logits")["logits"]
    run(model, "logits", edits=[edit(model, "zero", "embed"), edit(model, "zero", "logits")])
    assert torch.equal(run(model, "logits")["logits"], before)


@pytest.mark.parametrize(
    ("op", "site", "more", "says"),
    [
        ("block", "attn.scores", {}, r"block works at attn\.masked_scores, not at attn\.scores"),
        ("mean", "attn.masked_scores", {}, "has no mean"),
        (
            "set",
            "attn.z",
            {"value": torch.zeros(3, 4, N)},
            r"value has shape \[3, 4, 10\]; the selection of attn\.z has \[3, 4, 10, 12\]",
        ),
        ("add", "logits", {"value": torch.zeros(N, 359)}, r"has \[10, 360\]"),
    ],
)
def test_edit_that_does_not_fit_its_site_is_refused(
    op: str, site: str, more: dict[str, Any], says: str, models: Mapping[str, GPT]
) -> None:
    with pytest.raises(EditError, match=says):
        edit(models["course"], op, site, **more)


def test_edit_outside_its_site_is_refused(models: Mapping[str, GPT]) -> None:
    with pytest.raises(SelectionError, match="position 10 is out of range; valid are -10 to 9"):
        edit(models["course"], "zero", "embed", {"position": [10]})
    with pytest.raises(SelectionError, match="embed has no layer axis"):
        edit(models["course"], "zero", "embed", {"layer": [0]})
