"""The Python client against a real server over a socket, and against the model run directly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fluoroscope_client import (
    AsyncFluoroscope,
    Fluoroscope,
    InvalidRequest,
    Reading,
    Unauthorized,
    capture,
    edits,
)

from model.capture import Capture
from model.gpt import GPT
from model.reading import read
from model.sites import SITES
from model.tokenizer import Tokenizer
from service.app import create_app
from service.settings import Settings
from tests.clients.conftest import listening, wait_until_ready

CHINESE = "猫追老鼠，因为它饿了。"
ENGLISH = "The cat chased the mouse."


@pytest.fixture(scope="session")
def grouped(folders: Mapping[str, Path]) -> Iterator[Fluoroscope]:
    """A model with 6 query heads on 2 key/value heads, behind a key."""
    settings = Settings(model=str(folders["grouped"]), key="芝麻开门")
    with listening(create_app(settings)) as url, Fluoroscope(url, key="芝麻开门") as client:
        wait_until_ready(client)
        yield client


def directly(model: GPT, ids: list[int], site: str, **asked: Any) -> np.ndarray[Any, Any]:
    """A site of a run in this process, without text, HTTP or the wire."""
    whole = Capture.resolve(SITES[site], asked, model.config, len(ids))
    with torch.inference_mode():
        return read(model, ids, [whole]).tensors[site].numpy()


@pytest.mark.parametrize("wire", ["safetensors", "json"])
def test_every_stage_is_the_models_own_to_the_last_bit(
    wire: Any, remote: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    stages = ("dots", "scores", "masked_scores", "pattern")
    reading = remote.attention(CHINESE, stages=stages, wire=wire)
    ids = tokenizer.encode(CHINESE)
    assert reading.token_ids == ids
    for stage in stages:
        tensor = reading[f"attn.{stage}"]
        np.testing.assert_array_equal(
            tensor.values, directly(models["course"], ids, f"attn.{stage}")
        )
        assert tensor.axes == ("layer", "head", "query", "key")
        assert tensor.coords == {}
    future = np.triu(np.ones((len(ids), len(ids)), bool), k=1)
    assert (reading["attn.masked_scores"].values[..., future] == -np.inf).all()
    assert (reading["attn.pattern"].values[..., future] == 0).all()


@pytest.mark.parametrize("wire", ["safetensors", "json"])
def test_parts_come_back_with_their_true_indices(
    wire: Any, remote: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(ENGLISH)
    whole = directly(models["course"], ids, "attn.pattern")
    last = len(ids) - 1
    part = remote.attention(
        ENGLISH, layers=[2, 0], heads=-1, queries=slice(-2, None), keys=range(3), wire=wire
    )["attn.pattern"]
    assert part.coords == {
        "layer": (2, 0),
        "head": (3,),
        "query": (last - 1, last),
        "key": (0, 1, 2),
    }
    for layer in (0, 2):
        row = part.sel(layer=layer, head=3, query=-1)
        np.testing.assert_array_equal(row.values, whole[layer, 3, last, :3])
        assert dict(row.at) == {"layer": layer, "head": 3, "query": last}
    with pytest.raises(IndexError, match="1 is not there"):
        part.sel(layer=1)


def test_aggregate_takes_the_head_axis_out(remote: Fluoroscope) -> None:
    every = remote.attention(ENGLISH)["attn.pattern"].values
    mean = remote.attention(ENGLISH, aggregate="mean")["attn.pattern"]
    assert mean.axes == ("layer", "query", "key")
    np.testing.assert_allclose(mean.values, every.mean(axis=1), atol=1e-6)


def test_rounded_json_is_the_same_within_half_a_digit(remote: Fluoroscope) -> None:
    exact = remote.attention(ENGLISH)["attn.pattern"].values
    rounded = remote.attention(ENGLISH, wire="json", decimals=3)["attn.pattern"].values
    assert not np.array_equal(exact, rounded)
    assert np.abs(exact - rounded).max() <= 0.0005 + 1e-7


def test_half_precision_halves_the_numbers(remote: Fluoroscope) -> None:
    exact = remote.attention(ENGLISH)["attn.pattern"].values
    half = remote.attention(ENGLISH, dtype="float16")["attn.pattern"].values
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, exact, atol=1e-3)


def test_text_and_its_ids_give_the_same_numbers(remote: Fluoroscope) -> None:
    by_text = remote.logits(CHINESE, full=True)
    by_ids = remote.logits(by_text.token_ids, full=True)
    np.testing.assert_array_equal(by_text["logits"].values, by_ids["logits"].values)
    assert by_ids.input["text"] == CHINESE


def test_predictions_are_the_softmax_of_the_logits(
    remote: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(ENGLISH)
    logits = directly(models["course"], ids, "logits").astype(np.float64)
    reading = remote.logits(ENGLISH, positions=[0, -1], top=3)
    assert reading.tensors == {}
    assert [said["position"] for said in reading.predictions] == [0, len(ids) - 1]
    for said, row in zip(reading.predictions, logits[[0, -1]], strict=True):
        chances = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        order = np.argsort(-row, kind="stable")[:3]
        assert [token["id"] for token in said["top"]] == order.tolist()
        np.testing.assert_allclose(
            [token["probability"] for token in said["top"]], chances[order], rtol=1e-6
        )
    following = reading.predictions[0]["next"]
    assert following is not None and following["id"] == ids[1]
    assert reading.predictions[1]["next"] is None


def test_chinese_sentence_comes_back_whole(remote: Fluoroscope) -> None:
    said = remote.tokenize(CHINESE)
    assert "".join(token["display"] for token in said["tokens"]) == CHINESE
    assert all(
        CHINESE[token["char_start"] : token["char_end"]] == token["display"]
        for token in said["tokens"]
        if not token["continuation"]
    )
    assert remote.detokenize(said["token_ids"]) == CHINESE
    assert remote.attention(CHINESE).input["text"] == CHINESE


def test_captures_edits_and_comparison_in_one_run(
    remote: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    reading = remote.inspect(
        ENGLISH,
        [capture("attn.z", layers=1, heads=[2, 0]), "ln_final.scale"],
        edits=[edits.zero("attn.z", layers=1, heads=2)],
        compare=True,
        checks_level="full",
    )
    z = reading["attn.z"]
    expected = directly(models["course"], tokenizer.encode(ENGLISH), "attn.z")
    assert not z.sel(layer=1, head=2).values.any()
    np.testing.assert_array_equal(z.sel(layer=1, head=0).values, expected[1, 0])
    (edit,) = reading.input["edits"]
    assert edit["values_touched"] == expected[1, 2].size
    assert edit["change_norm"] == pytest.approx(np.linalg.norm(expected[1, 2]), rel=1e-5)
    assert reading.comparison is not None
    assert max(reading.comparison["kl_nats"]) > 0
    assert reading.checks["residual_sum_error"] is not None
    assert reading["ln_final.scale"].axes == ("position", "one")


def test_statistics_carry_their_names(
    remote: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    stats = remote.inspect(ENGLISH, capture("resid_post", layers=0, reduce="stats"))["resid_post"]
    whole = directly(models["course"], tokenizer.encode(ENGLISH), "resid_post")[0]
    for name, expected in {
        "mean": whole.mean(-1),
        "variance": whole.var(-1),
        "norm": np.linalg.norm(whole, axis=-1),
        "min": whole.min(-1),
        "max": whole.max(-1),
    }.items():
        np.testing.assert_allclose(stats.sel(layer=0, stat=name).values, expected, rtol=1e-5)


def test_dry_run_estimates_the_bytes_that_then_come(remote: Fluoroscope) -> None:
    captures = [capture("attn.pattern"), capture("mlp.post", layers=1)]
    dry = remote.inspect(ENGLISH, captures, dry_run=True)
    assert dry.tensors == {}
    assert dry.estimate is not None
    real = remote.inspect(ENGLISH, captures)
    assert real.estimate is None
    assert dry.estimate["tensor_bytes"] == sum(
        tensor.values.nbytes for tensor in real.tensors.values()
    )


def test_wiring_and_edits_reach_attention_too(remote: Fluoroscope) -> None:
    open_ended = remote.attention(ENGLISH, wiring={"causal": False})
    assert np.triu(open_ended["attn.pattern"].values[0, 0], k=1).any()
    blocked = remote.attention(ENGLISH, edits=[edits.block(layers=0, keys=0, queries=slice(1, 9))])
    assert not blocked["attn.pattern"].sel(layer=0, key=0).values[:, 1:9].any()


def test_refusals_carry_the_servers_numbers(remote: Fluoroscope) -> None:
    with pytest.raises(InvalidRequest, match="valid are -3 to 2"):
        remote.attention(ENGLISH, layers=3)
    with pytest.raises(InvalidRequest) as caught:
        remote.attention("cat " * 200)
    assert caught.value.type.endswith(":too-many-tokens")
    assert caught.value.limit == 64
    assert caught.value.actual is not None and caught.value.actual > 64
    assert caught.value.request_id
    with pytest.raises(InvalidRequest, match="0 tokens"):
        remote.logits("")
    wrong: Any = "softmax"
    with pytest.raises(InvalidRequest) as caught:
        remote.attention(ENGLISH, stages=[wrong])
    assert caught.value.errors[0]["pointer"] == "/stages/0"


def test_key_is_asked_for(grouped: Fluoroscope) -> None:
    assert grouped.model()["id"] == "grouped"
    with Fluoroscope(grouped.base_url) as stranger, pytest.raises(Unauthorized):
        stranger.model()


def test_grouped_heads_keep_their_own_axis(
    grouped: Fluoroscope, models: Mapping[str, GPT], tokenizer: Tokenizer
) -> None:
    k = grouped.inspect(ENGLISH, capture("attn.k", layers=[1], kv_heads=-1))["attn.k"]
    assert k.axes == ("layer", "kv_head", "position", "d_head")
    expected = directly(models["grouped"], tokenizer.encode(ENGLISH), "attn.k")
    np.testing.assert_array_equal(k.sel(layer=1, kv_head=1).values, expected[1, 1])
    assert grouped.model()["kv_head_of_head"] == [0, 0, 0, 1, 1, 1]


def test_model_sites_and_parameters(remote: Fluoroscope, models: Mapping[str, GPT]) -> None:
    about = remote.model()
    assert about["config"]["n_layer"] == 3
    assert about["parameters"] == sum(weight.numel() for weight in models["course"].parameters())
    assert {site["site"] for site in remote.sites()} == SITES.keys()
    report = remote.parameters(context=32, depth=2, explain=True)
    assert report["totals"]["unique"] == about["parameters"]
    assert {"zh", "en"} <= report["explain"].keys()


def test_compressed_answers_are_the_same(base_url: str, remote: Fluoroscope) -> None:
    text = ENGLISH * 6
    with Fluoroscope(base_url, compress=True) as compressing:
        packed = compressing.attention(text, stages=("scores", "pattern"))
    plain = remote.attention(text, stages=("scores", "pattern"))
    for name, tensor in plain.tensors.items():
        np.testing.assert_array_equal(packed[name].values, tensor.values)


def test_async_client_gives_the_same(base_url: str, remote: Fluoroscope) -> None:
    async def ask() -> list[Reading]:
        async with AsyncFluoroscope(base_url) as client:
            with pytest.raises(InvalidRequest, match="valid are -3 to 2"):
                await client.attention(ENGLISH, layers=3)
            assert (await client.model())["id"] == "course"
            assert await client.detokenize((await client.tokenize(CHINESE))["token_ids"]) == CHINESE
            questions = [client.attention(text, layers=1) for text in (ENGLISH, CHINESE) * 4]
            return list(await asyncio.gather(*questions))

    readings = asyncio.run(ask())
    for reading, text in zip(readings, (ENGLISH, CHINESE) * 4, strict=True):
        blocking = remote.attention(text, layers=1)
        assert reading.input == blocking.input
        assert reading.tokens == blocking.tokens
        mine, its = reading["attn.pattern"], blocking["attn.pattern"]
        np.testing.assert_array_equal(mine.values, its.values)
        assert (mine.axes, mine.coords) == (its.axes, its.coords)


def test_both_clients_have_the_same_methods() -> None:
    def calls(client: type) -> set[str]:
        return {name for name in vars(client) if not name.startswith("_")}

    assert calls(Fluoroscope) - {"close"} == calls(AsyncFluoroscope) - {"aclose"}


def test_closed_client_does_not_ask() -> None:
    client = Fluoroscope(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.model()
