"""Configs side by side, against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import ConfigError
from model.parameters import ParameterError, compare, vary
from model.presets import PRESETS


def test_two_more_layers_and_another_vocabulary() -> None:
    six = replace(PRESETS["course"], vocab_size=6144)
    eight = replace(PRESETS["course"], n_layer=8)
    comparison = compare({"six": six, "eight": eight})
    rows = {row.name: row for row in comparison.rows}
    assert comparison.changed == {"n_layer": (6, 8), "vocab_size": (6144, 50257)}
    assert rows["components.embedding"].values == (6144 * 384, 50257 * 384)
    assert rows["components.embedding"].ratios == (1.0, 50257 / 6144)
    assert rows["block"].values == (1_774_464, 1_774_464)
    assert rows["totals.without_embeddings"].values == (
        6 * 1_774_464 + 768,
        8 * 1_774_464 + 768,
    )
    assert rows["bytes.attention_maps"].ratios == (1.0, 8 / 6)
    assert rows["bytes.kv_cache.float32"].values[1] == 8 * 8 * 1024 * 6 * 64


def test_ratio_to_nothing_is_none() -> None:
    rows = compare({"rope": PRESETS["course"], "learned": PRESETS["gpt2"]}).rows
    positions = next(row for row in rows if row.name == "components.positions")
    assert positions.values == (0, 1024 * 768)
    assert positions.ratios == (None, None)


def test_context_is_one_that_all_hold() -> None:
    configs = {"nano": PRESETS["nano"], "gpt2": PRESETS["gpt2"]}
    assert compare(configs).context == 11
    with pytest.raises(ParameterError, match="context is 12"):
        compare(configs, 12)


def test_one_config_is_no_comparison() -> None:
    with pytest.raises(ParameterError, match=r"1 config.*at least 2"):
        compare({"alone": PRESETS["nano"]})


def test_what_follows_from_a_changed_size_follows_again() -> None:
    course = PRESETS["course"]
    assert vary(course, {}) == course
    wider = vary(course, {"d_model": 768, "n_head": 8})
    assert (wider.d_head, wider.n_kv_head, wider.d_mlp, wider.rotary_dim) == (96, 8, 3072, 96)
    assert vary(course, {"d_model": 768, "d_mlp": 1000}).d_mlp == 1000


def test_what_was_chosen_apart_stays() -> None:
    qwen = PRESETS["qwen3-0.6b"]
    varied = vary(qwen, {"d_model": 2048})
    assert (varied.d_head, varied.n_kv_head, varied.d_mlp) == (128, 8, 3072)
    assert all(vary(config, {}) == config for config in PRESETS.values())


def test_impossible_variation_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="d_model 384 is not divisible by n_head 7"):
        vary(PRESETS["course"], {"n_head": 7})
    with pytest.raises(ConfigError, match="unknown config keys"):
        vary(PRESETS["course"], {"layers": 7})
