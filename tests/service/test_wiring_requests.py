"""Each switch of the wiring changes the numbers as a reference in numpy says, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.answers import ask, captured, refused

TEXT = "The cat chased the mouse because it was hungry."
ROTATING = ["course", "grouped", "parallel"]


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def turned(x: Any, config: Any, *, pairing: str, base: float, offset: int, divide: float) -> Any:
    """x (…, T, D) with its first rotary_dim values rotated pair by pair, angle by angle."""
    n = config["rotary_dim"]
    out = x.astype(np.float64).copy()
    for position in range(x.shape[-2]):
        for pair in range(n // 2):
            angle = (position + offset) * base ** (-2 * pair / n) / divide
            a, b = (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + n // 2)
            va, vb = (x[..., position, i].astype(np.float64) for i in (a, b))
            out[..., position, a] = va * np.cos(angle) - vb * np.sin(angle)
            out[..., position, b] = va * np.sin(angle) + vb * np.cos(angle)
    return out


def config_of(client: TestClient) -> Any:
    return client.get("/v1/model").json()["config"]


def test_without_the_mask_every_query_sees_every_key(family: str, clients: Any) -> None:
    client, wiring = clients[family], {"causal": False}
    scores, masked, pattern = (
        captured(client, f"attn.{stage}", text=TEXT, wiring=wiring)
        for stage in ("scores", "masked_scores", "pattern")
    )
    assert np.array_equal(scores, masked)
    np.testing.assert_allclose(pattern, softmax(scores.astype(np.float64)), atol=2e-6)
    answer = ask(client, "/v1/attention", text=TEXT, wiring=wiring)
    ahead = np.triu(pattern.astype(np.float64), 1).sum(-1).max()
    assert answer["checks"]["future_mass"] == pytest.approx(ahead, rel=1e-5)
    assert ahead > 0.5


@pytest.mark.parametrize("scale", [1.0, 0.05, -2.0, 0.0])
def test_score_scale_replaces_the_root_of_the_head_size(
    scale: float, family: str, clients: Any
) -> None:
    wiring = {"score_scale": scale}
    dots, scores = (
        captured(clients[family], f"attn.{stage}", text=TEXT, wiring=wiring)
        for stage in ("dots", "scores")
    )
    np.testing.assert_allclose(scores, dots * scale, rtol=1e-6)
    plain = captured(clients[family], "attn.dots", text=TEXT)
    assert np.array_equal(dots[0], plain[0])  # the first layer's come before the change
    assert not np.array_equal(dots[1], plain[1])


def test_null_scale_is_the_models_own(family: str, clients: Any) -> None:
    own = captured(clients[family], "logits", text=TEXT, wiring={"score_scale": None})
    assert np.array_equal(own, captured(clients[family], "logits", text=TEXT))
    said = {"score_scale": config_of(clients[family])["d_head"] ** -0.5}
    assert np.array_equal(own, captured(clients[family], "logits", text=TEXT, wiring=said))


def test_without_positions_order_is_not_seen(family: str, clients: Any) -> None:
    client = clients[family]
    wiring: dict[str, Any] = {"positions": "none"}
    if family != "learned":
        rotated, plain = (
            captured(client, site, text=TEXT, wiring=wiring) for site in ("attn.rot_q", "attn.q")
        )
        assert np.array_equal(rotated, plain)
    # Where every query sees every key, too, the last token has no way to tell an order.
    wiring = {"positions": "none", "causal": False}
    ids, other = [5, 80, 200, 31, 7], [31, 200, 5, 80, 7]
    first, second = (
        captured(client, "logits", text=each, wiring=wiring)[-1] for each in (ids, other)
    )
    np.testing.assert_allclose(first, second, atol=2e-5 * np.abs(first).max())
    wiring = {"causal": False}
    first, second = (
        captured(client, "logits", text=each, wiring=wiring)[-1] for each in (ids, other)
    )
    assert np.abs(first - second).max() > 0.05


@pytest.mark.parametrize("family", ROTATING)
@pytest.mark.parametrize(
    ("rope", "changes"),
    [
        ({}, {}),
        ({"base": 321.0}, {"base": 321.0}),
        ({"pairing": "half"}, {"pairing": "half"}),
        ({"pairing": "interleaved"}, {"pairing": "interleaved"}),
        ({"offset": 11}, {"offset": 11}),
        ({"offset": -4}, {"offset": -4}),
        ({"scaling": {"kind": "linear", "factor": 4.0}}, {"divide": 4.0}),
    ],
    ids=["own", "base", "half", "interleaved", "offset", "offset back", "linear"],
)
def test_rotation_is_turned_as_the_wiring_says(
    rope: Any, changes: Any, family: str, clients: Any
) -> None:
    client = clients[family]
    config = config_of(client)
    choices = {
        "pairing": config["rope_pairing"],
        "base": config["rope_base"],
        "offset": 0,
        "divide": 1.0,
    } | changes
    for vector in ("q", "k"):
        plain, rotated = (
            captured(client, f"attn.{name}", text=TEXT, wiring={"rope": rope})
            for name in (vector, f"rot_{vector}")
        )
        np.testing.assert_allclose(
            rotated, turned(plain, config, **choices), atol=2e-5 * np.abs(plain).max()
        )


@pytest.mark.parametrize("family", ROTATING)
def test_offset_moves_the_vectors_and_no_attention(family: str, clients: Any) -> None:
    wiring = {"rope": {"offset": 20}}
    for site, moved in (("attn.rot_q", True), ("attn.pattern", False)):
        plain = captured(clients[family], site, text=TEXT)
        shifted = captured(clients[family], site, text=TEXT, wiring=wiring)
        assert (np.abs(plain - shifted).max() > 0.1) == moved


def test_scaling_none_drops_the_models_own_and_kinds_that_need_more_say_so(
    client: TestClient,
) -> None:
    plain = captured(client, "attn.rot_q", text=TEXT)
    none = {"rope": {"scaling": {"kind": "none"}}}
    assert np.array_equal(captured(client, "attn.rot_q", text=TEXT, wiring=none), plain)
    for kind in ("yarn", "llama3", "dynamic"):
        wiring = {"rope": {"scaling": {"kind": kind, "factor": 2}}}
        problem = refused(client, "/v1/attention", "invalid-config", text=TEXT, wiring=wiring)
        assert f"'{kind}' needs original_context" in problem["detail"]
        wiring["rope"]["scaling"]["original_context"] = 8
        assert not np.array_equal(
            captured(client, "attn.rot_q", text=TEXT, wiring=wiring), plain
        ), kind


def test_without_the_residual_each_write_replaces_the_stream(family: str, clients: Any) -> None:
    client, wiring = clients[family], {"residual": False}
    attn_out, mlp_out, after = (
        captured(client, site, text=TEXT, wiring=wiring)
        for site in ("attn_out", "mlp_out", "resid_post")
    )
    if family == "parallel":
        assert np.array_equal(after, attn_out + mlp_out)
    else:
        assert np.array_equal(after, mlp_out)
        middle = captured(client, "resid_mid", text=TEXT, wiring=wiring)
        assert np.array_equal(middle, attn_out)


def test_switches_work_together_and_on_every_inspecting_route(client: TestClient) -> None:
    wiring = {"causal": False, "score_scale": 1.0, "residual": False, "positions": "none"}
    for path in ("/v1/attention", "/v1/logits"):
        answer = ask(client, path, text=TEXT, wiring=wiring)
        assert wiring.items() <= answer["input"]["wiring"].items()
    dots, pattern = (
        captured(client, site, text=TEXT, wiring=wiring) for site in ("attn.dots", "attn.pattern")
    )
    np.testing.assert_allclose(pattern, softmax(dots.astype(np.float64)), atol=5e-6)


@pytest.mark.parametrize(
    "rope",
    [
        {"base": 500.0},
        {"pairing": "half"},
        {"offset": 1},
        {"scaling": {"kind": "none"}},
    ],
    ids=["base", "pairing", "offset", "scaling"],
)
def test_rotary_fields_are_refused_by_a_model_that_does_not_rotate(rope: Any, clients: Any) -> None:
    for dry_run in (False, True):
        problem = refused(
            clients["learned"],
            "/v1/attention",
            "invalid-wiring",
            text=TEXT,
            wiring={"rope": rope},
            dry_run=dry_run,
        )
        assert "'learned'" in problem["detail"]


@pytest.mark.parametrize(
    ("wiring", "pointer"),
    [
        ({"causal": "no"}, "/wiring/causal"),
        ({"residual": 0}, "/wiring/residual"),
        ({"score_scale": "1"}, "/wiring/score_scale"),
        ({"positions": "learned"}, "/wiring/positions"),
        ({"rope": {"base": 1}}, "/wiring/rope/base"),
        ({"rope": {"pairing": "pairs"}}, "/wiring/rope/pairing"),
        ({"rope": {"offset": 10**7}}, "/wiring/rope/offset"),
        ({"rope": {"scaling": {"kind": "linear", "factor": 0.5}}}, "/wiring/rope/scaling/factor"),
        ({"rope": {"scaling": {"factor": 2}}}, "/wiring/rope/scaling/kind"),
        ({"mask": True}, "/wiring/mask"),
    ],
)
def test_switch_that_does_not_exist_is_pointed_at(
    wiring: Any, pointer: str, client: TestClient
) -> None:
    problem = refused(client, "/v1/attention", "invalid-request", text=TEXT, wiring=wiring)
    assert problem["errors"][0]["pointer"] == pointer
