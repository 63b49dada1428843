"""Edits over HTTP: what each does, what it reports, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.gpt import GPT
from tests.answers import EXACT, ask, captured, exact, refused

PATH = "/v1/inspect"
TEXT = "The cat chased the mouse."  # ten tokens here
OTHER = "Once upon a time there was"


@pytest.fixture(scope="module")
def n_tokens(client: TestClient) -> int:
    return int(ask(client, "/v1/attention", text=TEXT)["input"]["n_tokens"])


def logits(client: TestClient, text: str = TEXT, **body: Any) -> Any:
    return captured(client, "logits", text=text, **body)


def test_zeroed_head_equals_a_model_without_its_columns(
    family: str, clients: Any, models: Mapping[str, GPT]
) -> None:
    weight = clients[family].app.state.inspector.opened.model.blocks[1].attn.o.weight
    d_head = models[family].config.d_head
    edited = logits(
        clients[family], edits=[{"op": "zero", "site": "attn.z", "layers": [1], "heads": [2]}]
    )
    whole = weight.clone()
    try:
        weight[:, 2 * d_head : 3 * d_head] = 0
        expected = logits(clients[family])
    finally:
        weight.copy_(whole)
    assert np.array_equal(edited, expected)
    assert np.abs(edited - logits(clients[family])).max() > 0.05


def test_patched_first_residual_gives_the_other_texts_logits(family: str, clients: Any) -> None:
    client = clients[family]
    expected = logits(client, OTHER)
    ids = [9] * len(expected)
    patch = {"op": "patch", "site": "resid_pre", "layers": [0], "source": {"text": OTHER}}
    patched = captured(client, "logits", text=ids, edits=[patch])
    assert np.array_equal(patched, expected)
    assert not np.array_equal(captured(client, "logits", text=ids), expected)


def test_patch_of_some_positions_moves_them_where_the_selection_says(client: TestClient) -> None:
    patch = {
        "op": "patch",
        "site": "embed",
        "positions": [4, 1],
        "source": {"token_ids": [7, 8, 9], "positions": [0, 2]},
    }
    edited = captured(client, "embed", text=TEXT, edits=[patch])
    plain = captured(client, "embed", text=TEXT)
    source = captured(client, "embed", text=[7, 8, 9])
    assert np.array_equal(edited[4], source[0]) and np.array_equal(edited[1], source[2])
    for position in (0, 2, 3, 5, 6):
        assert np.array_equal(edited[position], plain[position])


@pytest.mark.parametrize(
    "edit",
    [
        {"op": "scale", "site": "attn.pattern", "by": 1},
        {"op": "add", "site": "resid_mid", "value": 0},
        {"op": "scale", "site": "attn.result", "by": 1.0},
        {"op": "add", "site": "logits", "value": 0.0},
    ],
    ids=lambda edit: f"{edit['op']} {edit['site']}",
)
def test_edit_that_leaves_values_as_they_are_changes_no_bit(
    edit: dict[str, Any], client: TestClient
) -> None:
    assert np.array_equal(logits(client, edits=[edit]), logits(client))


def test_blocked_cell_equals_its_score_at_minus_infinity(client: TestClient) -> None:
    cell = {"layers": [0], "heads": [1], "queries": [5], "keys": [2]}
    scores = captured(client, "attn.masked_scores", text=TEXT)[0].astype(np.float64)
    scores[1, 5, 2] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    blocked = exact(
        client,
        "/v1/attention",
        "attn.pattern",
        text=TEXT,
        layers=[0],
        edits=[{"op": "block", **cell}],
    )
    assert blocked[0, 1, 5, 2] == 0
    np.testing.assert_allclose(blocked[0], weights, atol=2e-6)


def test_row_with_every_key_blocked_is_empty_counted_and_left_out_of_the_sums(
    client: TestClient, n_tokens: int
) -> None:
    answer = ask(
        client,
        "/v1/attention",
        text=TEXT,
        edits=[{"op": "block", "layers": [0, 2], "heads": [1, 3], "queries": [4]}],
        format=EXACT,
    )
    assert answer["checks"]["empty_rows"] == 4
    assert answer["checks"]["row_sum_error"] <= 2e-6
    assert answer["checks"]["finite"] is True
    pattern = np.array(answer["tensors"]["attn.pattern"]["data"])
    assert not pattern[0, 1, 4].any() and not pattern[2, 3, 4].any()
    assert pattern[1, 1, 4].sum() == pytest.approx(1, abs=2e-6)
    gathered = captured(
        client,
        "attn.z",
        text=TEXT,
        edits=[{"op": "block", "layers": [0], "heads": [1], "queries": [4]}],
    )
    assert not gathered[0, 1, 4].any() and gathered[0, 1, 5].any()


def test_mean_is_the_mean_by_hand(client: TestClient) -> None:
    plain = captured(client, "mlp_out", text=TEXT)[1]
    edit = {"op": "mean", "site": "mlp_out", "layers": [1], "positions": [2, 3, 7]}
    for over, source in (("selected", plain[[2, 3, 7]]), ("all", plain)):
        edited = captured(client, "mlp_out", text=TEXT, edits=[{**edit, "over": over}])[1]
        for position in (2, 3, 7):
            np.testing.assert_allclose(edited[position], source.mean(0), atol=2e-6)
        assert np.array_equal(edited[:2], plain[:2])


def test_array_is_set_to_the_selections_shape(client: TestClient) -> None:
    value = np.arange(1, 13, dtype=float).reshape(1, 2, 2, 3) / 8
    edit = {
        "op": "set",
        "site": "attn.pattern",
        "layers": [1],
        "heads": [3, 0],
        "queries": [5, 6],
        "keys": {"start": 2, "step": -1},
        "value": value.tolist(),
    }
    edited = captured(client, "attn.pattern", text=TEXT, edits=[edit])
    assert np.array_equal(edited[np.ix_([1], [3, 0], [5, 6], [2, 1, 0])], value)


def test_edits_apply_in_their_order_and_captures_show_the_result(client: TestClient) -> None:
    first = {"op": "set", "site": "embed", "positions": [1], "value": 3}
    second = {"op": "scale", "site": "embed", "positions": [1], "by": -2}
    assert (captured(client, "embed", text=TEXT, edits=[first, second])[1] == -6).all()
    assert (captured(client, "embed", text=TEXT, edits=[second, first])[1] == 3).all()


def test_edit_never_reaches_the_next_request(client: TestClient) -> None:
    before = logits(client)
    logits(client, edits=[{"op": "zero", "site": "embed"}])
    assert np.array_equal(logits(client), before)


def test_report_says_what_was_asked_touched_and_changed(client: TestClient) -> None:
    edits = [
        {"op": "add", "site": "resid_post", "layers": [0, 1], "positions": [3], "value": 0.5},
        {"op": "block", "layers": [1], "heads": [0], "queries": [2], "keys": [0, 1]},
    ]
    answer = ask(client, PATH, text=TEXT, captures=[{"site": "logits"}], edits=edits)
    added, blocked = answer["input"]["edits"]
    assert added.items() >= edits[0].items() and blocked.items() >= edits[1].items()
    assert added["values_touched"] == 2 * 48 and blocked["values_touched"] == 2
    assert added["change_norm"] == pytest.approx(0.5 * np.sqrt(2 * 48))
    plain = captured(client, "embed", text=TEXT)
    answer = ask(
        client,
        PATH,
        text=TEXT,
        captures=[{"site": "embed"}],
        edits=[{"op": "zero", "site": "embed"}],
    )
    report = answer["input"]["edits"][0]
    assert report["values_touched"] == plain.size
    assert report["change_norm"] == pytest.approx(np.sqrt((plain.astype("f8") ** 2).sum()))


def test_edits_work_on_every_inspecting_route(client: TestClient) -> None:
    edits = [{"op": "zero", "site": "attn.q", "layers": [0], "heads": [0]}]
    body: dict[str, Any] = {"text": TEXT, "edits": edits}
    uniform = exact(client, "/v1/attention", "attn.pattern", **body, layers=[0], heads=[0])[0, 0]
    for query, row in enumerate(uniform):
        np.testing.assert_allclose(row[: query + 1], 1 / (query + 1), rtol=1e-6)
    for path in ("/v1/attention", "/v1/logits"):
        assert ask(client, path, **body)["input"]["edits"][0]["values_touched"] > 0


REFUSED: list[tuple[str, Any, str, str]] = [
    ("course", {"op": "zero", "site": "nowhere"}, "invalid-site", "no site 'nowhere'"),
    ("course", {"op": "zero", "site": "pos_embed"}, "invalid-site", "not learned vectors"),
    ("parallel", {"op": "zero", "site": "resid_mid"}, "invalid-site", "in parallel"),
    ("grouped", {"op": "zero", "site": "attn.v", "heads": [0]}, "invalid-selection", "kv_head"),
    (
        "grouped",
        {"op": "zero", "site": "attn.z", "kv_heads": [0]},
        "invalid-selection",
        "no kv_head axis",
    ),
    ("course", {"op": "zero", "site": "attn.z", "layers": [3]}, "invalid-selection", "-3 to 2"),
    ("course", {"op": "zero", "site": "embed", "positions": [99]}, "invalid-selection", "99"),
    (
        "course",
        {"op": "set", "site": "attn.z", "layers": [0], "value": [1, 2, 3]},
        "invalid-edit",
        "value has shape [3]; the selection of attn.z has [1, 4, 10, 12]",
    ),
    (
        "course",
        {"op": "add", "site": "embed", "positions": [0], "value": [[1, 2], [3]]},
        "invalid-edit",
        "rows differ in length",
    ),
    ("course", {"op": "mean", "site": "attn.masked_scores"}, "invalid-edit", "no mean"),
    (
        "course",
        {"op": "patch", "site": "embed", "source": {"text": "a"}},
        "invalid-edit",
        "the source gives [1, 48]",
    ),
    (
        "course",
        {"op": "patch", "site": "embed", "source": {"text": "a", "positions": [3]}},
        "invalid-selection",
        "in the source of 1 tokens: position 3 is out of range",
    ),
    ("course", {"op": "patch", "site": "embed", "source": {"text": ""}}, "no-tokens", "0 tokens"),
    (
        "course",
        {"op": "patch", "site": "embed", "source": {"text": "z" * 65}},
        "too-many-tokens",
        "65 tokens; at most 64",
    ),
    (
        "course",
        {"op": "patch", "site": "embed", "source": {"token_ids": [360]}},
        "invalid-text",
        "token id 360",
    ),
]


@pytest.mark.parametrize(
    ("family", "edit", "slug", "says"), REFUSED, ids=[str(n) for n in range(len(REFUSED))]
)
def test_edit_that_does_not_fit_is_refused(
    family: str, edit: Any, slug: str, says: str, clients: Any
) -> None:
    good = {"op": "scale", "site": "attn.z", "by": 2}
    problem = refused(
        clients[family],
        PATH,
        slug,
        text=TEXT,
        captures=[{"site": "logits"}],
        edits=[good, edit],
    )
    assert says in problem["detail"]
    if slug.startswith("invalid-") and slug != "invalid-text":
        assert problem["detail"].startswith("edit 1: ")


@pytest.mark.parametrize(
    ("path", "more", "edit"),
    [
        ("/v1/attention", {"layers": [0]}, {"site": "attn.z", "layers": [0]}),
        ("/v1/attention", {"layers": [1]}, {"site": "attn.q", "layers": [0, 2]}),
        ("/v1/attention", {}, {"site": "logits"}),
        (PATH, {"captures": [{"site": "embed"}]}, {"site": "resid_pre", "layers": [0]}),
        (PATH, {"captures": [{"site": "attn_out", "layers": [1]}]}, {"site": "mlp.pre"}),
    ],
)
def test_edit_past_everything_asked_for_is_refused_not_ignored(
    path: str, more: Any, edit: Any, client: TestClient
) -> None:
    body = {"text": TEXT, **more, "edits": [{"op": "zero", **edit}]}
    for dry_run in (False, True):
        problem = refused(client, path, "invalid-edit", **body, dry_run=dry_run)
        assert "would change nothing that is asked for: the run ends at" in problem["detail"]
    ask(client, path, **body, compare=True)  # the comparison asks for all of it


def test_edit_that_this_wiring_never_meets_is_refused(clients: Any) -> None:
    body: dict[str, Any] = {
        "text": TEXT,
        "captures": [{"site": "logits"}],
        "edits": [{"op": "zero", "site": "pos_embed"}],
    }
    ask(clients["learned"], PATH, **body)
    problem = refused(
        clients["learned"], PATH, "invalid-edit", **body, wiring={"positions": "none"}
    )
    assert "does not occur under this wiring" in problem["detail"]


def test_too_many_edits_are_refused(client: TestClient) -> None:
    edits = [{"op": "scale", "site": "embed", "by": 1}] * 257
    problem = refused(client, "/v1/attention", "invalid-request", text=TEXT, edits=edits)
    assert problem["errors"][0]["pointer"] == "/edits"
