"""Configurations that no model can have are refused with the numbers that clash."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.config import ConfigError, GPTConfig, RopeScaling

LEAST: dict[str, Any] = {"n_layer": 2, "d_model": 48, "n_head": 4, "vocab_size": 10, "n_ctx": 8}


def test_what_is_left_out_follows_from_the_width_and_the_heads() -> None:
    config = GPTConfig(**LEAST)
    assert (config.n_kv_head, config.d_head, config.d_mlp, config.rotary_dim) == (4, 12, 192, 12)


def test_head_size_of_its_own_needs_no_divisible_width() -> None:
    assert GPTConfig(**{**LEAST, "n_head": 5}, d_head=16).d_head == 16


def test_query_heads_share_key_value_heads_in_neighbouring_groups() -> None:
    config = GPTConfig(**{**LEAST, "n_head": 6}, n_kv_head=2)
    assert config.kv_head_of == [0, 0, 0, 1, 1, 1]


def test_window_holds_only_for_the_layers_named() -> None:
    config = GPTConfig(**LEAST, window=5, windowed_layers=(1,))
    assert [config.window_of(layer) for layer in range(2)] == [None, 5]
    assert GPTConfig(**LEAST, window=5).window_of(0) == 5


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_head": 5}, "d_model 48 is not divisible by n_head 5"),
        ({"n_kv_head": 3}, "n_head 4 is not divisible by n_kv_head 3"),
        ({"n_layer": 0}, "n_layer is 0; it must be a whole number of at least 1"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"n_ctx": 8.0}, r"n_ctx is 8\.0"),
        ({"rotary_dim": 14}, "rotary_dim 14 is over d_head 12"),
        ({"rotary_dim": 5}, "rotary_dim 5 is odd"),
        ({"norm": "rmsnorm"}, "an rmsnorm has no bias"),
        ({"norm_eps": 0.0}, r"norm_eps is 0\.0"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"rope_base": 1.0}, r"rope_base is 1\.0"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_numbers_that_clash_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GPTConfig(**{**LEAST, **wrong})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "linear", "factor": 0.5}, r"factor is 0\.5; it must be at least 1"),
        ({"kind": "ntk", "factor": float("nan")}, "factor is nan"),
        ({"kind": "yarn", "factor": 2.0}, "'yarn' needs original_context"),
        ({"kind": "dynamic", "factor": 2.0}, "'dynamic' needs original_context"),
        (
            {"kind": "llama3", "factor": 8.0, "original_context": 64, "low_freq_factor": 4.0},
            r"low_freq_factor 4\.0 must be below high_freq_factor 4\.0",
        ),
    ],
)
def test_rope_scaling_that_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RopeScaling(**wrong)


def test_json_round_trip_gives_an_equal_config() -> None:
    config = GPTConfig(
        **LEAST,
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_context=64),
        window=4,
        windowed_layers=(1,),
    )
    assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown config keys \['n_heads'\]"):
        GPTConfig.from_dict({**LEAST, "n_heads": 4})
    with pytest.raises(ConfigError, match=r"config keys \['n_ctx'\] are missing"):
        GPTConfig.from_dict({name: value for name, value in LEAST.items() if name != "n_ctx"})
