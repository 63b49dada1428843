"""The labs on a running model, against the model's own numbers and against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.capture import Capture
from model.config import RopeScaling
from model.gpt import GPT
from model.labs.attention import attend, hidden_keys
from model.labs.block import look_at_block
from model.labs.cell import errors_of, take_apart
from model.labs.from_model import captured, layer_vectors, to_float64, unturned_pair
from model.labs.given import LabError
from model.labs.heads import together
from model.labs.rotation import turn
from model.reading import read
from model.sites import SITES
from model.wiring import Wiring

Make = Callable[[str], GPT]
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
KINDS = ["course", "grouped", "learned", "windowed", "parallel"]


def site(model: GPT, name: str, wiring: Wiring | None = None) -> np.ndarray:
    capture = Capture.resolve(SITES[name], {}, model.config, len(IDS))
    return to_float64(read(model, IDS, [capture], wiring=wiring or Wiring()).tensors[name])


@pytest.mark.parametrize("kind", KINDS)
def test_layer_vectors_by_hand_give_the_models_own_pattern(make_model: Make, kind: str) -> None:
    model = make_model(kind)
    whole, z = site(model, "attn.pattern"), site(model, "attn.z")
    assert whole[:, :, 3:].max(axis=-1).std() > 0.01  # not even: there is something to miss
    for layer in range(3):
        taken = layer_vectors(model, IDS, layer)
        np.testing.assert_array_equal(taken.patterns, whole[layer])
        for head, vectors in enumerate(taken.heads):
            steps = attend(vectors, causal=True, scale=taken.scale, window=taken.window)
            np.testing.assert_allclose(steps.pattern, whole[layer, head], atol=2e-6)
            np.testing.assert_allclose(steps.z, z[layer, head], atol=2e-5)
    wrong = attend(taken.heads[0], causal=True, scale=taken.scale * 1.5, window=taken.window)
    assert np.abs(wrong.pattern - whole[2, 0]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_together_of_a_layer_gives_the_models_attn_out(make_model: Make, kind: str) -> None:
    model = make_model(kind)
    results = site(model, "attn.result")
    taken = layer_vectors(model, IDS, 1)
    lab = together(
        taken.heads,
        position=-1,
        output=taken.output,
        causal=True,
        scale=taken.scale,
        window=taken.window,
    )
    assert lab.attn_out is not None
    np.testing.assert_allclose(lab.attn_out, taken.attn_out, atol=2e-5)
    np.testing.assert_array_equal(taken.attn_out, site(model, "attn_out")[1])
    for head, found in enumerate(lab.heads):
        assert found.result is not None
        np.testing.assert_allclose(found.result, results[1, head], atol=2e-5)


def test_layer_vectors_refuses(make_model: Make) -> None:
    model = make_model("course")
    with pytest.raises(LabError, match="layer is 3; allowed are -3 to 2"):
        layer_vectors(model, IDS, 3)
    model_of_more = GPT(model.config)
    with pytest.raises(LabError, match="the text has 65 tokens; a lab takes 1 to 64"):
        layer_vectors(model_of_more, [0] * 65, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_take_apart_agrees_with_the_model(make_model: Make, kind: str) -> None:
    model = make_model(kind)
    stages = [site(model, f"attn.{stage}")[2] for stage in ("dots", "scores", "pattern")]
    taken = layer_vectors(model, IDS, 2)
    for head, query, key in ((0, 9, 8), (3, 5, 5), (1, 2, 7), (2, 9, 0)):
        vectors = taken.heads[head]
        hidden = hidden_keys(query, len(IDS), causal=True, window=taken.window)
        cell = take_apart(
            key, vectors.q[query], vectors.k, vectors.v, scale=taken.scale, hidden=hidden
        )
        dot, score, weight = (float(stage[head, query, key]) for stage in stages)
        errors = errors_of(cell, dot=dot, score=score, weight=weight)
        assert errors.dot <= 1e-6
        assert errors.score <= 1e-6
        assert errors.weight <= 2e-6
        assert cell.masked == bool(hidden[key])
        assert (weight == 0.0) == cell.masked == (cell.exp == 0.0)
        np.testing.assert_allclose(cell.weighted_v, weight * vectors.v[key], atol=1e-5)
        off = errors_of(cell, dot=dot + 1e-3 * cell.magnitude, score=score, weight=weight)
        assert off.dot > 9e-4


def test_take_apart_row_with_every_key_hidden_is_zero() -> None:
    ones = np.ones((3, 2))
    cell = take_apart(1, ones[0], ones, ones, scale=1.0, hidden=np.ones(3, dtype=bool))
    assert cell.weight == 0.0
    assert not cell.weighted_v.any()


@pytest.mark.parametrize("kind", KINDS)
def test_look_at_block_norms_sums_and_neurons(make_model: Make, kind: str) -> None:
    model = make_model(kind)
    lab = look_at_block(model, IDS, 1, -2, top=5)
    assert (lab.layer, lab.position) == (1, 8)
    np.testing.assert_array_equal(lab.resid_post.values, site(model, "resid_post")[1, 8])
    assert lab.parallel == (kind == "parallel")
    assert lab.mlp_sum_error <= 1e-5
    for norm in (lab.ln1, lab.ln2):
        if norm.kind == "layernorm":
            assert abs(norm.normalized.mean) < 1e-6
            assert norm.normalized.variance == pytest.approx(1, abs=1e-4)
            assert norm.scale == pytest.approx((norm.before.variance + 1e-5) ** 0.5, rel=1e-5)
        else:
            assert norm.mean_square == pytest.approx(1, abs=1e-4)
        assert norm.before.variance != pytest.approx(1, abs=0.05)
    # Neurons against the feed-forward without all the others.
    post = site(model, "mlp.post")[1, 8]
    down = to_float64(model.blocks[1].mlp.down.weight)  # type: ignore[union-attr]
    lengths = [np.linalg.norm(post[i] * down[:, i]) for i in range(len(post))]
    order = np.argsort(lengths)[::-1][:5]
    assert [neuron.index for neuron in lab.neurons] == order.tolist()
    for neuron in lab.neurons:
        assert neuron.write_norm == pytest.approx(lengths[neuron.index], rel=1e-12)
        assert neuron.post == post[neuron.index]
    assert lab.active_neurons == int((post > 0).sum())


def test_look_at_block_refuses(make_model: Make) -> None:
    model = make_model("course")
    with pytest.raises(LabError, match="position is 10; allowed are -10 to 9"):
        look_at_block(model, IDS, 0, 10)
    with pytest.raises(LabError, match="layer is -4; allowed are -3 to 2"):
        look_at_block(model, IDS, -4, 0)
    with pytest.raises(LabError, match="top is 1025; allowed are 0 to 1024"):
        look_at_block(model, IDS, 0, 0, top=1025)


@pytest.mark.parametrize("kind", ["course", "grouped", "windowed", "parallel"])
def test_unturned_pair_turned_to_its_places_gives_the_models_dot(
    make_model: Make, kind: str
) -> None:
    pair = unturned_pair(make_model(kind), IDS, layer=2, head=3, query=8, key=5)
    places = [(8, 5), (8 + 40, 5 + 40), (8, 6)]
    lab = turn(
        pair.q, pair.k, places, pair.frequencies,
        pairing=pair.pairing, attention_factor=pair.attention_factor,
    )  # fmt: skip
    own, shifted, nearer = (step.dot for step in lab.steps)
    size = float(np.linalg.norm(pair.q) * np.linalg.norm(pair.k))
    assert own == pytest.approx(pair.dot, abs=1e-6 * size)
    assert shifted == pytest.approx(own, abs=1e-13 * size)
    assert abs(nearer - own) > 1e-3 * size


def test_unturned_pair_under_yarn_has_its_factor(make_model: Make) -> None:
    config = replace(
        make_model("course").config,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_context=16),
    )
    model = GPT(config).eval().requires_grad_(False)
    pair = unturned_pair(model, IDS, layer=0, head=0, query=9, key=2)
    lab = turn(
        pair.q, pair.k, [(9, 2)], pair.frequencies,
        pairing=pair.pairing, attention_factor=pair.attention_factor,
    )  # fmt: skip
    step = lab.steps[0]
    assert pair.attention_factor == pytest.approx(1.13862944, abs=5e-9)
    assert step.dot == pytest.approx(pair.dot, rel=1e-4)
    assert step.dot == pytest.approx(step.closed_form, rel=1e-12)


def test_unturned_pair_refuses_models_that_do_not_rotate(make_model: Make) -> None:
    with pytest.raises(LabError, match="positions are 'learned'"):
        unturned_pair(make_model("learned"), IDS, layer=0, head=0, query=1, key=0)


def test_captured_selects_the_axes_it_is_given(make_model: Make) -> None:
    model = make_model("course")
    capture = captured(model, "attn.pattern", 10, layer=[1], head=[0, 2])
    assert capture.shape == (1, 2, 10, 10)
    assert torch.float32 == capture.dtype
