"""GET /v1/model and /v1/sites: what the server says of itself is what it does."""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi.testclient import TestClient

from model.gpt import GPT
from service.app import open_configured
from tests.answers import SAFETENSORS, ask, refused
from tests.conftest import Serve


def test_model_describes_its_choices(
    family: str, clients: Any, models: dict[str, GPT], folders: Any
) -> None:
    said = clients[family].get("/v1/model").json()
    assert said["id"] == family and said["trained"] is True
    assert said["config"] == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in models[family].config.to_dict().items()
    }
    weights = (folders[family] / "model.safetensors").read_bytes()
    assert said["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert said["parameters"] == sum(weight.numel() for weight in models[family].parameters())
    assert (said["dtype"], said["device"]) == ("float32", "cpu")
    assert said["tokenizer"]["vocab_size"] == 360
    assert said["tokenizer"]["special_tokens"] == {"<|endoftext|>": 0}
    assert said["formats"] == ["application/json", SAFETENSORS]
    assert said["stream_formats"] == ["text/event-stream"]


def test_formats_are_what_each_route_with_tensors_documents(client: TestClient) -> None:
    said = client.get("/v1/model").json()
    forms, streams = set(said["formats"]), set(said["stream_formats"])
    with_tensors: dict[str, set[str]] = {}
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for operation in operations.values():
            offered = set(operation["responses"]["200"]["content"])
            if offered - {"application/json"} and path != "/metrics":
                with_tensors[path] = offered
    assert with_tensors.pop("/v1/generate") == forms | streams
    assert len(with_tensors) >= 5
    assert all(offered == forms for offered in with_tensors.values()), with_tensors


def test_formats_are_what_can_be_asked_for(client: TestClient) -> None:
    said = client.get("/v1/model").json()
    body = {"text": "The cat", "max_new_tokens": 1}

    def asked(path: str, body: dict[str, Any], form: str) -> tuple[int, str]:
        answer = client.post(path, json=body, headers={"accept": form})
        return answer.status_code, answer.headers["content-type"].partition(";")[0]

    for form in said["formats"]:
        assert asked("/v1/attention", {"text": "The cat"}, form) == (200, form)
    for form in said["formats"] + said["stream_formats"]:
        assert asked("/v1/generate", body, form) == (200, form)
    for form in said["stream_formats"]:
        assert asked("/v1/attention", {"text": "The cat"}, form)[0] == 406


def test_head_map_says_which_key_value_head_a_query_head_reads(clients: Any) -> None:
    maps = {
        name: client.get("/v1/model").json()["kv_head_of_head"] for name, client in clients.items()
    }
    assert maps["course"] == [0, 1, 2, 3]
    assert maps["grouped"] == [0, 0, 0, 1, 1, 1]


def test_limits_are_those_of_the_settings(serve: Serve) -> None:
    client = serve(max_body_bytes=1000, max_text_bytes=200, max_tokens=9, run_seconds=2.5)
    limits = client.get("/v1/model").json()["limits"]
    assert limits["body_bytes"] == 1000 and limits["text_bytes"] == 200
    assert limits["tokens"] == 9 and limits["run_seconds"] == 2.5
    assert client.post("/v1/attention", json={"token_ids": [1] * 10}).json()["limit"] == 9


def test_random_weights_say_so(serve: Serve) -> None:
    client = serve(
        open_with=lambda settings: open_configured(
            settings.model_copy(update={"model": "preset:nano"})
        )
    )
    said = client.get("/v1/model").json()
    assert said["trained"] is False and said["id"] == "preset:nano"
    assert any("random" in note for note in said["notes"])
    answer = client.post("/v1/attention", json={"token_ids": [0, 1, 2]}).json()
    assert answer["model"]["trained"] is False


def test_sites_are_the_vocabulary_in_the_order_of_a_run(family: str, clients: Any) -> None:
    client = clients[family]
    sites = client.get("/v1/sites").json()["sites"]
    assert len(sites) == 31
    names = [site["site"] for site in sites]
    assert names[0] == "embed" and names[-1] == "logits"
    assert names.index("attn.q") < names.index("attn.pattern") < names.index("mlp.pre")
    for site in sites:
        assert site["editable"] is True and site["meaning"]
        assert site["layered"] == (site["axes"][0] == "layer")
    present = [site["site"] for site in sites if site["present"]]
    answer = ask(client, "/v1/inspect", text="a", captures=[{"site": name} for name in present])
    assert list(answer["tensors"]) == present
    for name in set(names) - set(present):
        refused(client, "/v1/inspect", "invalid-site", text="a", captures=[{"site": name}])


def test_every_alias_is_taken(client: TestClient) -> None:
    aliases = {
        alias.format(layer=1): site["site"]
        for site in client.get("/v1/sites").json()["sites"]
        for alias in site["aliases"]
        if site["present"]
    }
    assert len(aliases) > 18
    answer = ask(client, "/v1/inspect", text="a", captures=[{"site": alias} for alias in aliases])
    assert list(answer["tensors"]) == list(aliases.values())


def test_symbolic_shape_names_the_sizes(client: TestClient) -> None:
    size = {"L": 3, "H": 4, "K": 4, "T": 3, "Q": 3, "S": 3, "D": 12, "C": 48, "F": 192, "V": 360}
    sites = {s["site"]: s for s in client.get("/v1/sites").json()["sites"] if s["present"]}
    captures = [{"site": name} for name in sites]
    found = ask(client, "/v1/inspect", token_ids=[1, 2, 3], captures=captures)["tensors"]
    for name, site in sites.items():
        shape = [size.get(letter, 1) for letter in site["shape"].split()]
        assert found[name]["shape"] == shape, name
