"""What an inspecting route takes as input, and what it refuses with which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from model.checkpoints.open import OpenedModel
from model.config import GPTConfig
from model.tokenizer import Tokenizer, train_tokenizer
from tests.answers import ask, refused
from tests.conftest import SENTENCES, Serve, with_large_weights

ROUTES = {
    "/v1/attention": {},
    "/v1/logits": {},
    "/v1/inspect": {"captures": [{"site": "embed"}]},
}
PATH = "/v1/attention"


@pytest.fixture(params=list(ROUTES))
def route(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, ROUTES[request.param]


def test_empty_text_is_refused_with_the_numbers(route: Any, client: TestClient) -> None:
    path, body = route
    problem = refused(client, path, "no-tokens", text="", **body)
    assert (problem["limit"], problem["actual"]) == (1, 0)


def test_too_many_tokens_are_refused_with_the_numbers(route: Any, client: TestClient) -> None:
    path, body = route
    problem = refused(client, path, "too-many-tokens", text="z" * 65, **body)
    assert (problem["limit"], problem["actual"]) == (64, 65)


def test_text_too_long_is_refused_before_it_is_tokenized(route: Any, client: TestClient) -> None:
    path, body = route
    problem = refused(client, path, "text-too-long", text="猫" * 21846, **body)
    assert (problem["limit"], problem["actual"]) == (65536, 65538)


def test_both_or_neither_of_text_and_ids_is_refused(route: Any, client: TestClient) -> None:
    path, body = route
    for given in ({"text": "a", "token_ids": [1]}, {}, {"text": None, "token_ids": None}):
        problem = refused(client, path, "invalid-request", **given, **body)
        assert "exactly one of text and token_ids" in problem["detail"]


@pytest.mark.parametrize("ids", [[0, 360], [3, 2**31 - 1]])
def test_id_outside_the_vocabulary_is_refused_with_its_place(
    ids: list[int], client: TestClient
) -> None:
    problem = refused(client, PATH, "invalid-text", token_ids=ids)
    assert f"token id {ids[1]} at index 1" in problem["detail"]
    assert (problem["limit"], problem["actual"]) == (359, ids[1])


@pytest.mark.parametrize("ids", [[-1], [1.5], ["1"], [True], [2**31], []])
def test_what_is_no_list_of_ids_is_refused(ids: list[Any], client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", token_ids=ids)
    pointer = "/token_ids/0" if ids else "/token_ids"
    assert problem["errors"][0]["pointer"] == pointer


def test_text_and_its_ids_give_the_same_numbers(client: TestClient, tokenizer: Tokenizer) -> None:
    text = "I love cats 我爱猫"
    by_text = ask(client, PATH, text=text)
    by_ids = ask(client, PATH, token_ids=tokenizer.encode(text))
    assert by_text["tensors"] == by_ids["tensors"]
    assert by_text["tokens"] == by_ids["tokens"]
    assert by_ids["input"]["text"] == text


def test_beginning_is_added_where_asked_and_told(client: TestClient) -> None:
    plain = ask(client, PATH, text="The cat")
    added = ask(client, PATH, text="The cat", add_bos=True)
    assert plain["input"]["bos_added"] is False and added["input"]["bos_added"] is True
    assert added["input"]["n_tokens"] == plain["input"]["n_tokens"] + 1
    first, *others = added["tokens"]
    assert first["special"] and first["id"] == 0 and first["char_start"] is None
    assert [token["char_start"] for token in others] == [
        token["char_start"] for token in plain["tokens"]
    ]
    by_ids = ask(client, PATH, token_ids=[token["id"] for token in plain["tokens"]], add_bos=True)
    assert by_ids["tensors"] == added["tensors"]


def test_text_that_spells_a_special_token_is_text_unless_asked(client: TestClient) -> None:
    text = "<|endoftext|>cat"
    spelled = ask(client, PATH, text=text)["tokens"]
    parsed = ask(client, PATH, text=text, parse_special=True)["tokens"]
    assert not any(token["special"] for token in spelled)
    assert "".join(token["display"] for token in spelled) == text
    assert parsed[0]["id"] == 0 and parsed[0]["special"] and len(parsed) < len(spelled)


def test_tokens_come_in_full_as_ids_or_not_at_all(client: TestClient, tokenizer: Tokenizer) -> None:
    text = "The cat 猫"
    full, ids, none = (
        ask(client, PATH, text=text, tokens=kind)["tokens"] for kind in ("full", "ids", "none")
    )
    assert ids == tokenizer.encode(text) == [token["id"] for token in full]
    assert none == []
    assert set(full[0]) == {
        *("index", "id", "raw", "text", "display", "bytes_hex", "byte_start", "byte_end"),
        *("char_start", "char_end", "utf16_start", "utf16_end", "group", "continuation"),
        "special",
    }
    assert ask(client, PATH, text=text)["tokens"] == full


def test_model_without_a_tokenizer_takes_ids_alone(serve: Serve, clients: Any) -> None:
    bare = replace(clients["course"].app.state.inspector.opened, tokenizer=None)
    client = serve(open_with=lambda settings: bare)
    assert "send token_ids" in refused(client, PATH, "no-tokenizer", text="a")["detail"]
    answer = ask(client, PATH, token_ids=[1, 2, 3])
    assert answer["input"]["text"] is None and answer["tokens"] == [1, 2, 3]
    refused(client, PATH, "no-tokenizer", token_ids=[1, 2], add_bos=True)
    assert client.get("/v1/model").json()["tokenizer"] is None


def test_token_that_the_embedding_has_no_row_for_is_refused(route: Any, serve: Serve) -> None:
    """Some checkpoints' tokenizers have more ids than the model has rows."""
    path, body = route
    config = GPTConfig(n_layer=1, d_model=8, n_head=1, vocab_size=258, n_ctx=64)
    small = OpenedModel(with_large_weights(config), _tokenizer(), "m", "0" * 64, True, "t", "t")
    client = serve(open_with=lambda settings: small)
    ask(client, path, text="qzxj", **body)  # single bytes are the first ids
    tokens = client.post("/v1/tokenize", json={"text": "the cat"}).json()["token_ids"]
    largest = max(tokens)
    assert largest >= 258
    for given in ({"text": "the cat"}, {"token_ids": tokens}):
        problem = refused(client, path, "invalid-text", **given, **body)
        assert (problem["limit"], problem["actual"]) == (257, largest)
        assert f"index {tokens.index(largest)} has the id {largest}" in problem["detail"]
        assert "cat" not in problem["detail"]
    assert client.post("/v1/detokenize", json={"token_ids": tokens}).json()["text"] == "the cat"
    edit = {"op": "patch", "site": "embed", "source": {"text": "the cat"}, "positions": [0]}
    if path == "/v1/inspect":
        refused(client, path, "invalid-text", text="qzxj", edits=[edit], **body)


def _tokenizer() -> Tokenizer:
    return train_tokenizer(["the cat and the cat"] * 9 + SENTENCES, 340)


def test_server_may_take_fewer_tokens_than_the_context(serve: Serve) -> None:
    client = serve(max_tokens=4, max_text_bytes=100)
    ask(client, PATH, token_ids=[1, 2, 3, 4])
    problem = refused(client, PATH, "too-many-tokens", token_ids=[1, 2, 3, 4, 5])
    assert (problem["limit"], problem["actual"]) == (4, 5)
    problem = refused(client, PATH, "text-too-long", text="a" * 101)
    assert (problem["limit"], problem["actual"]) == (100, 101)
    assert client.get("/v1/model").json()["limits"]["tokens"] == 4


def test_a_field_that_does_not_exist_is_refused_by_name(route: Any, client: TestClient) -> None:
    path, body = route
    problem = refused(client, path, "invalid-request", text="a", layer=0, **body)
    assert problem["errors"] == [{"detail": "there is no such field", "pointer": "/layer"}]
