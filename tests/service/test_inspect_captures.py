"""POST /v1/inspect: any site in one run, named, selected and reduced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.capture import Capture
from model.gpt import GPT
from model.reading import read
from model.sites import SITES
from model.tokenizer import Tokenizer
from tests.answers import EXACT, ask, captured, refused, safetensors, single

PATH = "/v1/inspect"
TEXT = "The cat chased the mouse."
EDIT_REPORT = ("values_touched", "change_norm")


def test_every_site_in_one_answer_is_what_the_model_gives(
    family: str, clients: Any, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    model = models[family]
    ids = tokenizer.encode(TEXT)
    present = [site for site in SITES.values() if site.present(model.config)]
    captures = [Capture.resolve(site, {}, model.config, len(ids)) for site in present]
    expected = read(model, ids, captures).tensors
    answer, found = safetensors(
        clients[family], PATH, text=TEXT, captures=[{"site": site.name} for site in present]
    )
    assert set(found) == set(expected)
    for site in present:
        assert np.array_equal(found[site.name], expected[site.name].numpy()), site.name
        assert answer["tensors"][site.name]["axes"] == list(site.axes)


def test_name_is_the_site_unless_given(client: TestClient) -> None:
    captures = [
        {"site": "embed"},
        {"site": "attn.z", "layers": [0], "name": "first"},
        {"site": "attn.z", "layers": [2], "name": "last"},
    ]
    found = ask(client, PATH, text=TEXT, captures=captures, format=EXACT)["tensors"]
    assert list(found) == ["embed", "first", "last"]
    assert [tensor["site"] for tensor in found.values()] == ["embed", "attn.z", "attn.z"]
    whole = captured(client, "attn.z", text=TEXT)
    assert np.array_equal(single(found["first"]), whole[[0]])
    assert np.array_equal(single(found["last"]), whole[[2]])


@pytest.mark.parametrize(
    "captures",
    [
        [{"site": "embed"}, {"site": "embed"}],
        [{"site": "embed"}, {"site": "hook_embed"}],
        [{"site": "embed", "name": "a"}, {"site": "logits", "name": "a"}],
    ],
)
def test_two_captures_of_one_name_are_refused(captures: Any, client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-selection", text=TEXT, captures=captures)
    assert "two captures are named" in problem["detail"]


def test_no_capture_may_hide_behind_the_comparisons_own(client: TestClient) -> None:
    captures = [{"site": "embed", "name": "comparison.logits"}]
    answer = ask(client, PATH, text=TEXT, captures=captures, compare=True)
    assert list(answer["tensors"]) == ["comparison.logits"]


@pytest.mark.parametrize("name", ["", "a b", "a" * 129, "näme", "a\n"])
def test_name_that_breaks_headers_and_files_is_refused(name: str, client: TestClient) -> None:
    captures = [{"site": "embed", "name": name}]
    problem = refused(client, PATH, "invalid-request", text=TEXT, captures=captures)
    assert problem["errors"][0]["pointer"] == "/captures/0/name"


def test_transformer_lens_name_gives_that_sites_layer(client: TestClient) -> None:
    captures = [{"site": "blocks.2.attn.hook_pattern", "heads": [1]}]
    tensor = ask(client, PATH, text=TEXT, captures=captures, format=EXACT)["tensors"][
        "attn.pattern"
    ]
    assert tensor["coords"] == {"layer": [2], "head": [1]}
    whole = captured(client, "attn.pattern", text=TEXT)
    assert np.array_equal(single(tensor), whole[[2]][:, [1]])


def test_transformer_lens_scores_are_the_masked_ones(client: TestClient) -> None:
    captures = [{"site": "blocks.0.attn.hook_attn_scores"}]
    assert list(ask(client, PATH, text=TEXT, captures=captures)["tensors"]) == [
        "attn.masked_scores"
    ]


@pytest.mark.parametrize(
    ("family", "capture", "slug", "says"),
    [
        ("course", {"site": "attn.patterns"}, "invalid-site", "no site 'attn.patterns'"),
        ("course", {"site": "blocks.3.hook_mlp_out"}, "invalid-site", "layers 0 to 2"),
        (
            "course",
            {"site": "blocks.1.ln1.hook_normalized"},
            "invalid-site",
            "'ln1.normalized' (before) or 'ln1.out' (after)",
        ),
        ("course", {"site": "pos_embed"}, "invalid-site", "positions are not learned"),
        ("course", {"site": "mlp.pre_linear"}, "invalid-site", "feed-forward is not gated"),
        ("parallel", {"site": "resid_mid"}, "invalid-site", "in parallel"),
        (
            "course",
            {"site": "blocks.2.attn.hook_pattern", "layers": [2]},
            "invalid-selection",
            "names layer 2 already",
        ),
        ("grouped", {"site": "attn.k", "kv_heads": [2]}, "invalid-selection", "-2 to 1"),
        ("grouped", {"site": "attn.pattern", "heads": [6]}, "invalid-selection", "-6 to 5"),
        (
            "course",
            {"site": "attn.masked_scores", "reduce": "stats"},
            "invalid-selection",
            "holds −∞",
        ),
        ("course", {"site": "embed", "reduce": "head_mean"}, "invalid-selection", "no head axis"),
    ],
)
def test_capture_that_this_model_does_not_have_is_refused(
    family: str, capture: Any, slug: str, says: str, clients: Any
) -> None:
    problem = refused(clients[family], PATH, slug, text=TEXT, captures=[capture])
    assert says in problem["detail"]


def test_no_captures_or_too_many_are_refused(client: TestClient) -> None:
    many = [{"site": "embed", "name": str(n)} for n in range(257)]
    for captures in ([], many):
        problem = refused(client, PATH, "invalid-request", text=TEXT, captures=captures)
        assert problem["errors"][0]["pointer"] == "/captures"


def test_statistics_are_those_of_the_last_axis(client: TestClient) -> None:
    whole = captured(client, "mlp.post", text=TEXT).astype(np.float64)
    captures = [{"site": "mlp.post", "layers": [1], "positions": [4, 2], "reduce": "stats"}]
    tensor = ask(client, PATH, text=TEXT, captures=captures, format=EXACT)["tensors"]["mlp.post"]
    assert tensor["axes"] == ["layer", "position", "stat"]
    part = whole[1, [4, 2]]
    expected = [
        [row.mean(), row.var(), np.sqrt((row**2).sum()), row.min(), row.max()] for row in part
    ]
    np.testing.assert_allclose(single(tensor)[0], expected, rtol=2e-5, atol=1e-6)


def test_grouped_queries_read_neighbouring_key_value_heads(clients: Any) -> None:
    client = clients["grouped"]
    assert client.get("/v1/model").json()["kv_head_of_head"] == [0, 0, 0, 1, 1, 1]
    rot_q, rot_k, dots = (
        captured(client, site, text=TEXT).astype(np.float64)
        for site in ("attn.rot_q", "attn.rot_k", "attn.dots")
    )
    for head, kv_head in enumerate([0, 0, 0, 1, 1, 1]):
        expected = rot_q[:, head] @ rot_k[:, kv_head].transpose(0, 2, 1)
        np.testing.assert_allclose(dots[:, head], expected, atol=2e-5 * np.abs(expected).max())


def test_answer_says_enough_to_be_made_again(client: TestClient) -> None:
    body: dict[str, Any] = {
        "text": TEXT,
        "captures": [{"site": "resid_post"}],
        "edits": [{"op": "scale", "site": "attn.z", "heads": [0], "by": 2}],
        "wiring": {"score_scale": 0.25},
    }
    answer = ask(client, PATH, **body, format=EXACT)
    model = client.get("/v1/model").json()
    assert answer["model"] == {
        key: model[key]
        for key in ("id", "weights_sha256", "trained", "dtype", "device", "server_version")
    }
    said = answer["input"]
    again = ask(
        client,
        PATH,
        token_ids=[token["id"] for token in answer["tokens"]],
        captures=body["captures"],
        edits=[
            {k: v for k, v in edit.items() if k not in ("values_touched", "change_norm")}
            for edit in said["edits"]
        ],
        wiring=said["wiring"],
        format=EXACT,
    )
    assert again["tensors"] == answer["tensors"]
    assert said["wiring"]["score_scale"] == 0.25 and said["wiring"]["causal"] is True


def test_checks_come_with_every_answer_and_more_if_asked(family: str, clients: Any) -> None:
    body: dict[str, Any] = {"text": TEXT, "captures": [{"site": "attn.pattern"}]}
    basic = ask(clients[family], PATH, **body)["checks"]
    assert set(basic) == {"row_sum_error", "future_mass", "empty_rows", "finite"}
    assert basic["row_sum_error"] <= 2e-6
    assert basic["future_mass"] == 0 and basic["empty_rows"] == 0 and basic["finite"] is True
    full = ask(clients[family], PATH, **body, checks_level="full")["checks"]
    assert set(full) - set(basic) == {"residual_sum_error", "head_sum_error", "logits_error"}
    for name in set(full) - set(basic):
        assert full[name] < 2e-5, name


def test_failed_check_is_told(client: TestClient) -> None:
    body: dict[str, Any] = {"text": TEXT, "captures": [{"site": "embed"}], "checks_level": "full"}

    def checks(**edit: Any) -> Any:
        return ask(client, PATH, **body, edits=[edit])["checks"]

    doubled = checks(op="scale", site="attn.pattern", layers=[1], by=2)
    assert doubled["row_sum_error"] == pytest.approx(1, abs=1e-5)
    assert checks(op="add", site="resid_mid", layers=[0], value=1)["residual_sum_error"] > 0.9
    assert checks(op="add", site="attn_out", layers=[0], value=1)["head_sum_error"] > 0.9
    assert checks(op="scale", site="ln_final.out", by=2)["logits_error"] > 0.9
