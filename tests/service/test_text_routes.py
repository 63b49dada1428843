"""POST /v1/tokenize and /v1/detokenize: text and ids, both ways, and offsets that cut right."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.answers import ask, refused

TEXTS = [
    "The cat chased the mouse.",
    "猫追老鼠，因为它饿了。",
    "thumbs 👍🏽 up",
    "cafe\u0301 naïve",
    "  spaces\n\tand lines ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
]


@pytest.mark.parametrize("text", TEXTS)
def test_offsets_cut_the_text_in_bytes_characters_and_utf16(text: str, client: TestClient) -> None:
    answer = ask(client, "/v1/tokenize", text=text)
    assert answer["text"] == text
    data, wide = text.encode(), text.encode("utf-16-le")
    for token in answer["tokens"]:
        own = data[token["byte_start"] : token["byte_end"]]
        assert own.hex() == token["bytes_hex"]
        characters = text[token["char_start"] : token["char_end"]]
        assert (
            wide[2 * token["utf16_start"] : 2 * token["utf16_end"]].decode("utf-16-le")
            == characters
        )
        assert own in characters.encode()
    assert "".join(token["display"] for token in answer["tokens"]) == text
    assert b"".join(bytes.fromhex(token["bytes_hex"]) for token in answer["tokens"]) == data
    assert answer["n_tokens"] == len(answer["token_ids"]) == len(answer["tokens"])


@pytest.mark.parametrize("text", TEXTS)
def test_ids_give_the_text_back(text: str, client: TestClient) -> None:
    ids = ask(client, "/v1/tokenize", text=text)["token_ids"]
    assert ask(client, "/v1/detokenize", token_ids=ids) == {"text": text, "n_tokens": len(ids)}


def test_split_character_is_shown_whole_on_its_first_token(client: TestClient) -> None:
    tokens = ask(client, "/v1/tokenize", text="𝔘")["tokens"]
    assert [token["display"] for token in tokens] == ["𝔘"] + [""] * (len(tokens) - 1)
    assert [token["continuation"] for token in tokens] == [False] + [True] * (len(tokens) - 1)
    assert len(tokens) > 1 and {token["group"] for token in tokens} == {0}
    assert {(token["char_start"], token["char_end"]) for token in tokens} == {(0, 1)}


def test_empty_text_has_no_tokens_and_no_ids_no_text(client: TestClient) -> None:
    assert ask(client, "/v1/tokenize", text="")["tokens"] == []
    assert ask(client, "/v1/detokenize", token_ids=[]) == {"text": "", "n_tokens": 0}


def test_longer_than_the_context_is_tokenized_all_the_same(client: TestClient) -> None:
    assert ask(client, "/v1/tokenize", text="z" * 500)["n_tokens"] == 500


def test_beginning_and_special_spellings(client: TestClient) -> None:
    added = ask(client, "/v1/tokenize", text="cat", add_bos=True)
    assert added["bos_added"] is True and added["token_ids"][0] == 0
    parsed = ask(client, "/v1/tokenize", text="<|endoftext|>", parse_special=True)
    assert parsed["token_ids"] == [0] and parsed["tokens"][0]["special"] is True
    assert 0 not in ask(client, "/v1/tokenize", text="<|endoftext|>")["token_ids"]
    assert ask(client, "/v1/detokenize", token_ids=[0])["text"] == "<|endoftext|>"


def test_bytes_that_are_no_text_become_replacement_characters(client: TestClient) -> None:
    first, *_ = ask(client, "/v1/tokenize", text="𝔘")["token_ids"]
    assert ask(client, "/v1/detokenize", token_ids=[first])["text"] == "\ufffd"


@pytest.mark.parametrize(
    ("path", "body", "slug"),
    [
        ("/v1/tokenize", {"text": "a" * 65537}, "text-too-long"),
        ("/v1/tokenize", {}, "invalid-request"),
        ("/v1/tokenize", {"text": 3}, "invalid-request"),
        ("/v1/detokenize", {"token_ids": [1, 360]}, "invalid-text"),
        ("/v1/detokenize", {"token_ids": [-1]}, "invalid-request"),
        ("/v1/detokenize", {"token_ids": "1"}, "invalid-request"),
        ("/v1/detokenize", {"token_ids": [1] * 65537}, "invalid-request"),
    ],
    ids=range(7),
)
def test_what_cannot_be_read_is_refused(
    path: str, body: Any, slug: str, client: TestClient
) -> None:
    refused(client, path, slug, **body)
