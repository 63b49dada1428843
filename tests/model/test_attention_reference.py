"""Attention against a float64 reference that shares no line with it, site by site.

The reference reads the layer's own input from the run and rotates by complex multiplication, one
head at a time. Shapes: T tokens, C d_model, H heads, K key/value heads, D d_head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.capture import Capture
from model.config import GPTConfig, Pairing
from model.edit import Edit
from model.gpt import GPT
from model.sites import SITES
from model.tap import Probe
from model.wiring import MODEL_WIRING, RopeWiring, Wiring

GATE = 2e-5
TOKENS = 33
Array = NDArray[np.float64]
STAGES = (
    "ln1.scale",
    "ln1.normalized",
    "ln1.out",
    "attn.q",
    "attn.k",
    "attn.v",
    "attn.rot_q",
    "attn.rot_k",
    "attn.dots",
    "attn.scores",
    "attn.masked_scores",
    "attn.pattern",
    "attn.z",
    "attn.result",
    "attn_out",
)
SHAPE: dict[str, Any] = {"n_layer": 2, "d_model": 48, "vocab_size": 40, "n_ctx": 64}
CONFIGS = {
    "course": GPTConfig(**SHAPE, n_head=3),
    "llama": GPTConfig(
        **SHAPE,
        n_head=6,
        n_kv_head=2,
        d_head=10,
        rope_pairing="half",
        norm="rmsnorm",
        norm_bias=False,
        qk_norm=True,
        activation="swiglu",
        qkv_bias=False,
        o_bias=False,
    ),
    "a part rotated, window": GPTConfig(
        **SHAPE, n_head=4, rotary_dim=6, rope_pairing="half", window=7, windowed_layers=(1,)
    ),
    "learned": GPTConfig(**SHAPE, n_head=3, positions="learned", norm_bias=False, score_scale=0.4),
}


def trained_like(config: GPTConfig, seed: int = 0) -> GPT:
    """Weights with which attention is far from uniform."""
    model = GPT(config, seed=seed).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=draw)
        weight.copy_(0.2 * noise if weight.dim() > 1 else 1 + 0.2 * noise)
    return model


def some_ids(model: GPT, n_tokens: int = TOKENS) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randint(model.config.vocab_size, (1, n_tokens), generator=draw)


def read(
    model: GPT,
    *names: str,
    ids: Tensor | None = None,
    wiring: Wiring = MODEL_WIRING,
    edits: tuple[Edit, ...] = (),
) -> dict[str, Tensor]:
    """Each site, whole, in the model's own dtype."""
    ids = some_ids(model) if ids is None else ids
    dtype = model.embed.weight.dtype
    captures = [
        Capture.resolve(SITES[name], {}, model.config, ids.shape[1], dtype=dtype) for name in names
    ]
    probe = Probe(captures, edits)
    model(ids, tap=probe, wiring=wiring)
    values = {}
    for recording in probe.recordings:
        assert recording.values is not None
        values[recording.capture.name] = recording.values
    return values


def turned(x: Array, config: GPTConfig, angles: Array, pairing: Pairing) -> Array:
    """x (T, D), its first rotary_dim values as complex numbers times e^(i·angle), (T, D/2)."""
    n = config.rotary_dim
    real, imaginary = (
        (slice(0, n, 2), slice(1, n, 2))
        if pairing == "interleaved"
        else (slice(0, n // 2), slice(n // 2, n))
    )
    product = (x[:, real] + 1j * x[:, imaginary]) * np.exp(1j * angles)
    out = x.copy()
    out[:, real], out[:, imaginary] = product.real, product.imag
    return out


def reference(
    model: GPT,
    layer: int,
    x: Array,
    *,
    causal: bool = True,
    score_scale: float | None = None,
    positions: bool = True,
    base: float | None = None,
    pairing: Pairing | None = None,
    offset: int = 0,
) -> dict[str, Array]:
    """Every stage of one layer's attention for its input x (T, C)."""
    config = model.config
    prefix = f"blocks.{layer}."
    w = {
        name.removeprefix(prefix): weight.double().numpy()
        for name, weight in model.state_dict().items()
        if name.startswith(prefix)
    }
    n_tokens = len(x)
    centred = x if config.norm == "rmsnorm" else x - x.mean(1, keepdims=True)
    scale = np.sqrt((centred**2).mean(1, keepdims=True) + config.norm_eps)
    out = centred / scale * w["ln1.weight"] + w.get("ln1.bias", 0.0)
    site: dict[str, Any] = {"ln1.scale": scale, "ln1.normalized": centred / scale, "ln1.out": out}

    def project(letter: str, head: int) -> Array:
        rows = slice(head * config.d_head, (head + 1) * config.d_head)
        bias = w.get(f"attn.{letter}.bias")
        return out @ w[f"attn.{letter}.weight"][rows].T + (0.0 if bias is None else bias[rows])

    frequency = (base or config.rope_base) ** -(
        np.arange(config.rotary_dim // 2) * 2 / config.rotary_dim
    )
    angles = (np.arange(n_tokens) + offset)[:, None] * frequency

    def met(letter: str, vector: Array) -> Array:
        if config.qk_norm:
            size = np.sqrt((vector**2).mean(1, keepdims=True) + config.norm_eps)
            vector = vector / size * w[f"attn.{letter}_norm.weight"]
        if config.positions != "rope" or not positions:
            return vector
        return turned(vector, config, angles, pairing or config.rope_pairing)

    keys = [project("k", head) for head in range(config.n_kv_head)]
    values = [project("v", head) for head in range(config.n_kv_head)]
    site |= {"attn.k": keys, "attn.v": values, "attn.rot_k": [met("k", key) for key in keys]}
    if score_scale is None:
        score_scale = config.score_scale or 1 / np.sqrt(config.d_head)
    window = config.window_of(layer) or n_tokens
    stages = ("q", "rot_q", "dots", "scores", "masked_scores", "pattern", "z", "result")
    site |= {f"attn.{stage}": [] for stage in stages}
    for head in range(config.n_head):
        serving = head * config.n_kv_head // config.n_head
        q = project("q", head)
        rot_q = met("q", q)
        dots = rot_q @ site["attn.rot_k"][serving].T
        masked = dots * score_scale
        for query in range(n_tokens if causal else 0):
            masked[query, query + 1 :] = -np.inf
            masked[query, : max(0, query - window + 1)] = -np.inf
        weight = np.exp(masked - masked.max(1, keepdims=True))
        pattern = weight / weight.sum(1, keepdims=True)
        z = pattern @ values[serving]
        columns = slice(head * config.d_head, (head + 1) * config.d_head)
        result = z @ w["attn.o.weight"][:, columns].T
        found = (q, rot_q, dots, dots * score_scale, masked, pattern, z, result)
        for stage, value in zip(stages, found, strict=True):
            site[f"attn.{stage}"].append(value)
    site["attn_out"] = np.sum(site["attn.result"], axis=0) + w.get("attn.o.bias", 0.0)
    return {name: np.asarray(value) for name, value in site.items()}


def assert_stages_agree(
    model: GPT, wiring: Wiring = MODEL_WIRING, gate: float = GATE, **reference_choices: Any
) -> None:
    found = read(model, "resid_pre", *STAGES, wiring=wiring)
    for layer in range(model.config.n_layer):
        x = found["resid_pre"][layer].double().numpy()
        expected = reference(model, layer, x, **reference_choices)
        for name in STAGES:
            ours, theirs = found[name][layer].double().numpy(), expected[name]
            assert ours.shape == theirs.shape, name
            hidden = np.isneginf(theirs)
            assert np.array_equal(hidden, np.isneginf(ours)), f"{name}: another mask"
            magnitude = max(1.0, np.abs(theirs[~hidden]).max())
            error = np.abs(ours[~hidden] - theirs[~hidden]).max() / magnitude
            assert error < gate, f"{name}, layer {layer}: {error:.1e}"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_stage_agrees_with_the_reference(name: str) -> None:
    assert_stages_agree(trained_like(CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_in_float64_the_agreement_is_limited_by_float64_alone(name: str) -> None:
    assert_stages_agree(trained_like(CONFIGS[name]).double(), gate=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_future_gets_exactly_nothing_and_rows_sum_to_one(name: str) -> None:
    pattern = read(trained_like(CONFIGS[name]), "attn.pattern")["attn.pattern"]
    assert pattern.triu(1).count_nonzero() == 0
    assert (pattern.double().sum(-1) - 1).abs().max() < 2e-6
    assert pattern.std(-1).mean() > 0.03  # not uniform: the two above would be too easy


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_with_every_key_blocked_is_zero_and_leaves_the_others_alone(name: str) -> None:
    model = trained_like(CONFIGS[name])
    sites = ("attn.pattern", "attn.z", "logits")
    block = Edit.resolve(
        "block",
        SITES["attn.masked_scores"],
        {"layer": [1], "head": [2], "query": [5]},
        model.config,
        TOKENS,
    )
    plain, blocked = read(model, *sites), read(model, *sites, edits=(block,))
    for site in sites[:2]:
        assert plain[site][1, 2, 5].count_nonzero() > 0
        assert blocked[site][1, 2, 5].count_nonzero() == 0
        blocked[site][1, 2, 5] = plain[site][1, 2, 5]
        assert torch.equal(blocked[site], plain[site])
    assert blocked["logits"].isfinite().all()
    changed = (blocked["logits"] - plain["logits"]).abs().amax(-1)
    assert changed[5] > 1e-3 and changed[:5].max() == 0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("wiring", "choices"),
    [
        (Wiring(score_scale=1.0), {"score_scale": 1.0}),
        (Wiring(score_scale=0.1), {"score_scale": 0.1}),
        (Wiring(causal=False), {"causal": False}),
        (Wiring(positions="none"), {"positions": False}),
    ],
    ids=["unscaled", "scaled by a tenth", "no mask", "no positions"],
)
def test_each_switch_changes_the_formula_as_it_says(
    name: str, wiring: Wiring, choices: dict[str, Any]
) -> None:
    model = trained_like(CONFIGS[name])
    assert_stages_agree(model, wiring, **choices)
    if choices == {"positions": False} and model.config.positions == "learned":
        # Here the switch acts before the first block: what enters it is the embedding alone.
        found = read(model, "resid_pre", "embed", wiring=wiring)
        assert torch.equal(found["resid_pre"][0], found["embed"])
        found = read(model, "resid_pre", "embed")
        assert not torch.equal(found["resid_pre"][0], found["embed"])
        return
    with pytest.raises(AssertionError, match=r"attn\."):
        assert_stages_agree(model, wiring)


@pytest.mark.parametrize("name", ["course", "llama", "a part rotated, window"])
@pytest.mark.parametrize(
    ("rope", "choices"),
    [
        (RopeWiring(base=500.0), {"base": 500.0}),
        (RopeWiring(offset=9), {"offset": 9}),
        (RopeWiring(pairing="half"), {"pairing": "half"}),
        (RopeWiring(pairing="interleaved"), {"pairing": "interleaved"}),
    ],
    ids=["base", "offset", "half", "interleaved"],
)
def test_each_rotary_switch_changes_the_rotation_as_it_says(
    name: str, rope: RopeWiring, choices: dict[str, Any]
) -> None:
    model = trained_like(CONFIGS[name])
    assert_stages_agree(model, Wiring(rope=rope), **choices)
    if choices.get("pairing") != model.config.rope_pairing:
        with pytest.raises(AssertionError, match=r"attn\.rot_q"):
            assert_stages_agree(model, Wiring(rope=rope))


def test_without_the_residual_each_write_replaces_the_stream() -> None:
    model = trained_like(CONFIGS["course"])
    sites = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
    found = read(model, *sites, wiring=Wiring(residual=False))
    for layer in range(model.config.n_layer):
        x = found["resid_pre"][layer].double().numpy()
        written = reference(model, layer, x)["attn_out"]
        assert (
            np.abs(found["resid_mid"][layer].numpy() - written).max() < 2e-5 * np.abs(written).max()
        )
    assert torch.equal(found["resid_mid"], found["attn_out"])
    assert torch.equal(found["resid_post"], found["mlp_out"])
    assert torch.equal(found["resid_pre"][1], found["mlp_out"][0])
    parallel = trained_like(GPTConfig(**SHAPE, n_head=3, parallel_residual=True))
    found = read(parallel, "attn_out", "mlp_out", "resid_post", wiring=Wiring(residual=False))
    assert torch.equal(found["resid_post"], found["attn_out"] + found["mlp_out"])


@pytest.mark.parametrize("name", ["course", "llama", "a part rotated, window"])
def test_shifting_every_position_by_the_same_offset_changes_no_logit(name: str) -> None:
    model = trained_like(CONFIGS[name])
    plain = read(model, "logits", "attn.rot_q")
    shifted = read(model, "logits", "attn.rot_q", wiring=Wiring(rope=RopeWiring(offset=50)))
    assert (shifted["attn.rot_q"] - plain["attn.rot_q"]).abs().max() > 0.5
    magnitude = max(1.0, float(plain["logits"].abs().max()))
    assert (shifted["logits"] - plain["logits"]).abs().max() < GATE * magnitude


@pytest.mark.parametrize("name", CONFIGS)
def test_what_comes_later_changes_nothing_before(name: str) -> None:
    model = trained_like(CONFIGS[name])
    ids = some_ids(model)
    other = ids.clone()
    other[0, 20:] = (other[0, 20:] + 1) % model.config.vocab_size
    before, after = (read(model, "logits", ids=each)["logits"] for each in (ids, other))
    assert torch.equal(before[:20], after[:20])
    assert (before[20:] - after[20:]).abs().max() > 0.1
