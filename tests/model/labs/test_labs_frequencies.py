"""The ladders against transformers' own functions and against a table of published values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model.config import ConfigError, GPTConfig, RopeScaling
from model.labs.frequencies import Ladder, default_distances, of_model, side_by_side
from model.labs.given import LabError
from model.labs.rotation import turn

LLAMA3 = RopeScaling(kind="llama3", factor=32.0, original_context=8192)
YARN = RopeScaling(kind="yarn", factor=4.0, original_context=2048)
DYNAMIC = RopeScaling(kind="dynamic", factor=4.0, original_context=2048)
LINEAR = RopeScaling(kind="linear", factor=4.0)
NTK = RopeScaling(kind="ntk", factor=4.0)

# (base, context, scaling) and the values of pairs 1, 8, 16, 24, 31 of 64 dimensions: made with
# transformers, the NTK row from its formula. To the digits that are written.
TABLE: list[tuple[float, int, RopeScaling | None, tuple[str, ...]]] = [
    (1e4, 2048, None, (".749894202", ".1", ".01", ".001", "1.3335215e-4")),
    (1e4, 8192, LINEAR, (".18747355", ".025", ".0025", "2.5e-4", "3.3338e-5")),
    (1e4, 8192, NTK, (".717098", ".0699245", ".00488944", "3.41892e-4", "3.33380e-5")),
    (1e4, 4096, DYNAMIC, (".711955", ".0660117", ".00435754", "2.87648e-4", "2.66704e-5")),
    (1e4, 8192, YARN, (".749894", ".1", ".00538461516", "2.5e-4", "3.33380e-5")),
    (5e5, 8192, LLAMA3, (".663601", ".0376060", "4.29556705e-4", "1.66196742e-6", "9.41830649e-8")),
]


def ladder(d_head: int, base: float, context: int, scaling: RopeScaling | None) -> Ladder:
    return side_by_side(d_head, base, context, [scaling]).ladders[0]


@pytest.mark.parametrize(("base", "context", "scaling", "values"), TABLE)
def test_side_by_side_equals_the_table(
    base: float, context: int, scaling: RopeScaling | None, values: tuple[str, ...]
) -> None:
    found = ladder(64, base, context, scaling).inverse_frequencies[[1, 8, 16, 24, 31]]
    np.testing.assert_allclose(found, [float(value) for value in values], rtol=2e-6)


def hf_config(base: float, kind: str, **scaling: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=scaling.pop("max_position_embeddings", 8192),
        rope_parameters={"rope_type": kind, "rope_theta": base, **scaling},
    )


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 32.0])
@pytest.mark.parametrize("base", [1e4, 5e5])
def test_side_by_side_agrees_with_transformers(base: float, factor: float) -> None:
    old = 2048
    context = int(old * factor)
    cases: list[tuple[RopeScaling, LlamaConfig]] = [
        (RopeScaling(kind="linear", factor=factor), hf_config(base, "linear", factor=factor)),
        (
            RopeScaling(kind="dynamic", factor=factor, original_context=old),
            hf_config(base, "dynamic", factor=factor, max_position_embeddings=old),
        ),
        (
            RopeScaling(kind="yarn", factor=factor, original_context=old),
            hf_config(base, "yarn", factor=factor, original_max_position_embeddings=old),
        ),
        (
            RopeScaling(kind="llama3", factor=factor, original_context=old),
            hf_config(
                base,
                "llama3",
                factor=factor,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=old,
            ),
        ),
    ]
    for scaling, config in cases:
        theirs, attention_factor = ROPE_INIT_FUNCTIONS[scaling.kind](config, None, seq_len=context)
        ours = ladder(64, base, context, scaling)
        np.testing.assert_allclose(ours.inverse_frequencies, theirs.numpy(), rtol=1e-6)
        assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)
        if factor == 4.0:  # the comparison can fail: another kind's numbers do not pass it
            other = RopeScaling(kind="ntk", factor=factor)
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(
                    ladder(64, base, context, other).inverse_frequencies, theirs.numpy(), rtol=1e-6
                )


def test_side_by_side_yarn_attention_factor() -> None:
    assert ladder(64, 1e4, 8192, YARN).attention_factor == pytest.approx(1.13862944, abs=5e-9)


def test_side_by_side_dynamic_within_the_trained_context_is_no_scaling() -> None:
    plain, dynamic = (ladder(64, 1e4, 2048, scaling) for scaling in (None, DYNAMIC))
    assert np.array_equal(plain.inverse_frequencies, dynamic.inverse_frequencies)


def test_side_by_side_wavelengths_turns_and_reach() -> None:
    """Four numbers, base 100: radians 1 and 1/10, so wavelengths 2π and 20π."""
    known = replace(NTK, original_context=500)
    lab = side_by_side(4, 100.0, 1000, [None, LINEAR, known])
    plain, linear, ntk = lab.ladders
    np.testing.assert_allclose(plain.wavelengths, [2 * math.pi, 20 * math.pi], rtol=1e-15)
    np.testing.assert_allclose(plain.turns, [1000 / (2 * math.pi), 100 / (2 * math.pi)])
    np.testing.assert_allclose(linear.stretch, [4, 4])
    # θ' = 100 · 4^(4/2) = 1600: the slow pair turns by 1/40, four times slower, the fast as ever.
    np.testing.assert_allclose(ntk.inverse_frequencies, [1, 1 / 40])
    np.testing.assert_allclose(ntk.stretch, [1, 4])
    assert (plain.reach, linear.reach) == (None, None)
    assert ntk.reach == pytest.approx(2000)
    assert ladder(64, 1e4, 100, YARN).reach == pytest.approx(4 * 2048)


def test_side_by_side_by_distance_is_the_dot_of_two_equal_vectors() -> None:
    for scaling in (None, NTK, YARN):
        lab = side_by_side(8, 1e4, 4096, [scaling], distances=[0, 1, 7, 300])
        one = lab.ladders[0]
        unit = np.full(8, 8**-0.5)
        steps = turn(unit, unit, [(d, 0) for d in lab.distances], one.inverse_frequencies).steps
        dots = [step.dot * one.attention_factor**2 for step in steps]
        np.testing.assert_allclose(one.by_distance, dots, atol=1e-15)
        assert one.by_distance[0] == pytest.approx(one.attention_factor**2)


def test_default_distances_run_from_zero_to_the_context() -> None:
    assert default_distances(1) == [0, 1]
    distances = default_distances(8192)
    assert distances[:65] == list(range(65)) and distances[-1] == 8192
    assert len(distances) == len(set(distances)) <= 129


def test_of_model_reads_the_config() -> None:
    config = GPTConfig(
        n_layer=1, d_model=32, n_head=2, vocab_size=8, n_ctx=64, rotary_dim=8, rope_base=100.0
    )
    one = of_model(config)
    np.testing.assert_allclose(one.inverse_frequencies, 100.0 ** -np.array([0, 0.25, 0.5, 0.75]))
    assert one.turns[0] == pytest.approx(64 / (2 * math.pi))
    with pytest.raises(LabError, match="context is 65; allowed are 1 to 64"):
        of_model(config, 65)
    learned = GPTConfig(
        n_layer=1, d_model=32, n_head=2, vocab_size=8, n_ctx=64, positions="learned"
    )
    with pytest.raises(LabError, match="positions are 'learned'"):
        of_model(learned)


def test_side_by_side_refuses() -> None:
    with pytest.raises(LabError, match="d_head is 5; RoPE turns pairs"):
        side_by_side(5, 1e4, 64, [None])
    with pytest.raises(LabError, match="d_head is 1026; allowed are 2 to 1024"):
        side_by_side(1026, 1e4, 64, [None])
    with pytest.raises(LabError, match=r"base is 0\.5"):
        side_by_side(4, 0.5, 64, [None])
    with pytest.raises(LabError, match="context is 0; allowed are 1 to"):
        side_by_side(4, 1e4, 0, [None])
    with pytest.raises(LabError, match="scalings has 0 entries; allowed are 1 to 16"):
        side_by_side(4, 1e4, 64, [])
    with pytest.raises(LabError, match="distances is -1; allowed are 0 to"):
        side_by_side(4, 1e4, 64, [None], distances=[-1])
    with pytest.raises(LabError, match=r"factor is 10000000\.0; it must be over 0 and at most 1e"):
        side_by_side(4, 1e4, 64, [RopeScaling(kind="linear", factor=1e7)])
    with pytest.raises(LabError, match="original_context is -5; allowed are 1 to"):
        side_by_side(4, 1e4, 64, [RopeScaling(kind="yarn", factor=2, original_context=-5)])
    with pytest.raises(LabError, match=r"beta_slow is 40\.0; it must be at most beta_fast, 32"):
        side_by_side(
            4, 1e4, 64, [RopeScaling(kind="yarn", factor=2, original_context=64, beta_slow=40.0)]
        )
    with pytest.raises(ConfigError, match="factor is -2; it must be at least 1"):
        RopeScaling(kind="linear", factor=-2)
    with pytest.raises(ConfigError, match="factor is nan"):
        RopeScaling(kind="linear", factor=math.nan)
