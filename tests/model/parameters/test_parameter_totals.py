"""The names under which counts are quoted, against what those who use them print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import GPTConfig
from model.parameters import Totals, inventory, totals
from model.presets import PRESETS


def of(config: GPTConfig) -> Totals:
    return totals(config, inventory(config))


def without_biases(config: GPTConfig) -> GPTConfig:
    return replace(config, norm_bias=False, qkv_bias=False, o_bias=False, mlp_bias=False)


@pytest.mark.parametrize(
    ("sizes", "printed"),
    [
        # nanoGPT's README trains both; its log prints these.
        ({"n_layer": 6, "d_model": 384, "vocab_size": 65, "n_ctx": 256}, "10.65M"),
        ({"n_layer": 12, "d_model": 768, "vocab_size": 50304, "n_ctx": 1024}, "123.59M"),
    ],
)
def test_nanogpt_prints_its_count_without_position_embeddings(
    sizes: dict[str, int], printed: str
) -> None:
    heads = sizes["d_model"] // 64
    config = GPTConfig(n_head=heads, positions="learned", tied=True, **sizes)
    counts = of(without_biases(config))
    assert f"{counts.as_nanogpt / 1e6:.2f}M" == printed
    assert counts.unique - counts.as_nanogpt == sizes["d_model"] * sizes["n_ctx"]


def test_transformerlens_counts_matrices_in_blocks_only() -> None:
    """Its model table: gpt2-small 85M, gpt2-xl 1.5B; 12·L·d² by its own formula."""
    assert of(PRESETS["gpt2"]).as_transformerlens == 12 * 12 * 768**2 == 84_934_656
    assert of(PRESETS["gpt2-xl"]).as_transformerlens == 12 * 48 * 1600**2


def test_transformerlens_counts_grouped_keys_as_if_each_query_head_had_its_own() -> None:
    grouped = PRESETS["smollm2-135m"]
    ungrouped = replace(grouped, n_kv_head=grouped.n_head)
    assert of(grouped).as_transformerlens == of(ungrouped).as_transformerlens
    assert of(grouped).unique < of(ungrouped).unique


@pytest.mark.parametrize(
    ("name", "billions"),
    # Qwen's model cards: "Number of Parameters (Non-Embedding)".
    [("qwen2.5-0.5b", "0.36"), ("qwen3-0.6b", "0.44")],
)
def test_without_embeddings_is_what_qwen_calls_non_embedding(name: str, billions: str) -> None:
    assert f"{of(PRESETS[name]).without_embeddings / 1e9:.2f}" == billions


def test_without_embeddings_leaves_out_an_untied_unembedding_too() -> None:
    tied, untied = PRESETS["gpt2"], replace(PRESETS["gpt2"], tied=False)
    assert of(tied).without_embeddings == of(untied).without_embeddings
    assert of(tied).without_embeddings == 12 * (12 * 768**2 + 13 * 768) + 2 * 768


def test_ties_are_counted_twice_only_where_there_are_any() -> None:
    gpt2 = of(PRESETS["gpt2"])
    assert gpt2.with_ties_twice - gpt2.unique == 50257 * 768
    course = of(PRESETS["course"])
    assert course.with_ties_twice == course.unique
