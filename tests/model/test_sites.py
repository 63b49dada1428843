"""The vocabulary: its names, axes and aliases, and each site's value against float64 numpy.

The attention sites have their own reference in test_attention_reference; here stands the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.capture import Capture
from model.config import GPTConfig
from model.gpt import GPT
from model.reading import read
from model.sites import SITES, SiteError, resolve
from model.wiring import Wiring

GATE = 2e-5
IDS = [5, 80, 80, 3, 250, 17, 99, 41, 5, 300]
Array = NDArray[np.float64]

AXES = {
    "embed": "T C",
    "pos_embed": "T C",
    "resid_pre": "L T C",
    "ln1.scale": "L T 1",
    "ln1.normalized": "L T C",
    "ln1.out": "L T C",
    "attn.q": "L H T D",
    "attn.k": "L K T D",
    "attn.v": "L K T D",
    "attn.rot_q": "L H T D",
    "attn.rot_k": "L K T D",
    "attn.dots": "L H Q S",
    "attn.scores": "L H Q S",
    "attn.masked_scores": "L H Q S",
    "attn.pattern": "L H Q S",
    "attn.z": "L H T D",
    "attn.result": "L H T C",
    "attn_out": "L T C",
    "resid_mid": "L T C",
    "ln2.scale": "L T 1",
    "ln2.normalized": "L T C",
    "ln2.out": "L T C",
    "mlp.pre": "L T F",
    "mlp.pre_linear": "L T F",
    "mlp.post": "L T F",
    "mlp_out": "L T C",
    "resid_post": "L T C",
    "ln_final.scale": "T 1",
    "ln_final.normalized": "T C",
    "ln_final.out": "T C",
    "logits": "T V",
}
ABSENT = {
    "course": {"pos_embed", "mlp.pre_linear"},
    "grouped": {"pos_embed"},
    "learned": {"mlp.pre_linear"},
    "parallel": {"pos_embed", "mlp.pre_linear", "resid_mid"},
}
# As TransformerLens spells them, layer 2.
TRANSFORMER_LENS = {
    "hook_embed": "embed",
    "blocks.2.hook_resid_pre": "resid_pre",
    "blocks.2.hook_resid_mid": "resid_mid",
    "blocks.2.hook_resid_post": "resid_post",
    "blocks.2.ln1.hook_scale": "ln1.scale",
    "blocks.2.ln2.hook_scale": "ln2.scale",
    "ln_final.hook_scale": "ln_final.scale",
    "blocks.2.attn.hook_q": "attn.q",
    "blocks.2.attn.hook_k": "attn.k",
    "blocks.2.attn.hook_v": "attn.v",
    "blocks.2.attn.hook_rot_q": "attn.rot_q",
    "blocks.2.attn.hook_rot_k": "attn.rot_k",
    "blocks.2.attn.hook_attn_scores": "attn.masked_scores",
    "blocks.2.attn.hook_pattern": "attn.pattern",
    "blocks.2.attn.hook_z": "attn.z",
    "blocks.2.attn.hook_result": "attn.result",
    "blocks.2.hook_attn_out": "attn_out",
    "blocks.2.mlp.hook_pre": "mlp.pre",
    "blocks.2.mlp.hook_post": "mlp.post",
    "blocks.2.hook_mlp_out": "mlp_out",
}


def test_vocabulary_is_the_documented_one_with_its_axes() -> None:
    assert {name: site.symbolic_shape for name, site in SITES.items()} == AXES


@pytest.mark.parametrize("alias", TRANSFORMER_LENS)
def test_transformer_lens_name_finds_its_site_and_layer(
    alias: str, models: Mapping[str, GPT]
) -> None:
    site, layer = resolve(alias, models["course"].config)
    assert site.name == TRANSFORMER_LENS[alias]
    assert layer == (2 if alias.startswith("blocks") else None)


@pytest.mark.parametrize("norm", ["blocks.0.ln1", "blocks.1.ln2", "ln_final"])
def test_hook_normalized_is_refused_naming_both_meanings(
    norm: str, models: Mapping[str, GPT]
) -> None:
    own = norm.split(".")[-1]
    with pytest.raises(SiteError, match=rf"'{own}\.normalized' \(before\) or '{own}\.out'"):
        resolve(f"{norm}.hook_normalized", models["course"].config)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("attn.patern", "there is no site 'attn.patern'; GET /v1/sites lists all 31"),
        ("blocks.3.attn.hook_pattern", "names layer 3; this model has layers 0 to 2"),
        ("blocks.x.attn.hook_pattern", "there is no site"),
        ("blocks.1.hook_embed", "there is no site"),
    ],
)
def test_name_that_is_no_site_is_refused(name: str, says: str, models: Mapping[str, GPT]) -> None:
    with pytest.raises(SiteError, match=says):
        resolve(name, models["course"].config)


def test_absent_sites_are_refused_by_name_and_the_others_captured(
    family: str, models: Mapping[str, GPT]
) -> None:
    config = models[family].config
    present = {name for name, site in SITES.items() if site.present(config)}
    assert set(SITES) - present == ABSENT[family]
    for name in ABSENT[family]:
        with pytest.raises(SiteError, match=f"this model has no '{name}'"):
            resolve(name, config)
    found = whole(models[family], *present)
    for name in present:
        assert found[name].shape == SITES[name].sizes(config, len(IDS)), name


def whole(model: GPT, *names: str, wiring: Wiring | None = None) -> dict[str, Array]:
    captures = [Capture.resolve(SITES[name], {}, model.config, len(IDS)) for name in names]
    reading = read(model, IDS, captures, wiring=wiring or Wiring())
    return {name: tensor.double().numpy() for name, tensor in reading.tensors.items()}


def norm(x: Array, weights: Mapping[str, Array], name: str, config: GPTConfig) -> list[Array]:
    """scale, normalized, out."""
    centred = x if config.norm == "rmsnorm" else x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_eps)
    out = centred / scale * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)
    return [scale, centred / scale, out]


def activated(x: Array, kind: str) -> Array:
    if kind == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if kind == "gelu_tanh":
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))  # silu


def expected_layer(
    run: Mapping[str, Array], layer: int, weights: Mapping[str, Array], config: GPTConfig
) -> dict[str, Array]:
    """What follows from one layer's resid_pre and attn_out."""

    def linear(x: Array, name: str) -> Array:
        name = f"blocks.{layer}.mlp.{name}"
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    pre, attn_out = run["resid_pre"][layer], run["attn_out"][layer]
    site = {}
    middle = pre if config.parallel_residual else pre + attn_out
    if not config.parallel_residual:
        site["resid_mid"] = middle
    for part, value in zip(
        ("scale", "normalized", "out"),
        norm(middle, weights, f"blocks.{layer}.ln2", config),
        strict=True,
    ):
        site[f"ln2.{part}"] = value
    entering = linear(site["ln2.out"], "gate" if config.gated else "up")
    site["mlp.pre"] = entering
    post = activated(entering, config.activation)
    if config.gated:
        site["mlp.pre_linear"] = linear(site["ln2.out"], "up")
        post = post * site["mlp.pre_linear"]
    site["mlp.post"] = post
    site["mlp_out"] = linear(post, "down")
    site["resid_post"] = middle + site["mlp_out"]
    if config.parallel_residual:
        site["resid_post"] = pre + attn_out + site["mlp_out"]
    return site


def assert_close(ours: Array, theirs: Array, what: str) -> None:
    assert ours.shape == theirs.shape, what
    error = np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())
    assert error < GATE, f"{what}: {error:.1e}"


def test_every_site_outside_attention_agrees_with_float64_numpy(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    config = model.config
    weights = {name: weight.double().numpy() for name, weight in model.state_dict().items()}
    run = whole(model, *(name for name in SITES if name not in ABSENT[family]))

    assert_close(run["embed"], weights["embed.weight"][IDS], "embed")
    stream = run["embed"]
    if config.positions == "learned":
        assert_close(run["pos_embed"], weights["pos_embed.weight"][: len(IDS)], "pos_embed")
        stream = stream + run["pos_embed"]
    for layer in range(config.n_layer):
        assert_close(run["resid_pre"][layer], stream, f"resid_pre {layer}")
        for name, value in expected_layer(run, layer, weights, config).items():
            assert_close(run[name][layer], value, f"{name} {layer}")
        stream = run["resid_post"][layer]
    scale, normalized, out = norm(stream, weights, "ln_final", config)
    assert_close(run["ln_final.scale"], scale, "ln_final.scale")
    assert_close(run["ln_final.normalized"], normalized, "ln_final.normalized")
    assert_close(run["ln_final.out"], out, "ln_final.out")
    assert_close(run["logits"], out @ weights["unembed.weight"].T, "logits")


def test_norm_of_the_other_kind_would_be_noticed(models: Mapping[str, GPT]) -> None:
    model = models["grouped"]
    weights = {name: weight.double().numpy() for name, weight in model.state_dict().items()}
    run = whole(model, "resid_post", "ln_final.scale")
    centred = run["resid_post"][-1] - run["resid_post"][-1].mean(-1, keepdims=True)
    wrong = np.sqrt((centred**2).mean(-1, keepdims=True) + model.config.norm_eps)
    assert weights["ln_final.weight"].std() > 0.1  # before and after the gain are not the same
    with pytest.raises(AssertionError, match=r"ln_final\.scale"):
        assert_close(run["ln_final.scale"], wrong, "ln_final.scale")


def test_heads_write_sum_and_bias_to_attn_out(family: str, models: Mapping[str, GPT]) -> None:
    model = models[family]
    run = whole(model, "attn.result", "attn_out")
    for layer, block in enumerate(model.blocks):
        bias = block.attn.o.bias
        written = run["attn.result"][layer].sum(0)
        if bias is not None:
            written = written + bias.double().numpy()
        assert_close(run["attn_out"][layer], written, f"attn_out {layer}")


def test_asking_for_heads_results_changes_no_later_bit(
    family: str, models: Mapping[str, GPT]
) -> None:
    plain = whole(models[family], "attn_out", "logits")
    beside = whole(models[family], "attn.result", "attn_out", "logits")
    assert np.array_equal(plain["attn_out"], beside["attn_out"])
    assert np.array_equal(plain["logits"], beside["logits"])


def test_without_positions_the_stream_starts_from_the_embedding_alone(
    models: Mapping[str, GPT],
) -> None:
    run = whole(models["learned"], "embed", "resid_pre", wiring=Wiring(positions="none"))
    assert np.array_equal(run["resid_pre"][0], run["embed"])


def test_embedding_rows_of_one_id_are_equal() -> None:
    model = GPT(GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=400, n_ctx=16))
    rows = torch.from_numpy(whole(model, "embed")["embed"])
    assert torch.equal(rows[1], rows[2]) and not torch.equal(rows[0], rows[1])
