"""Every number of the derivation works out, and no sentence says what the config is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import GPTConfig
from model.parameters import ParameterError, derive, explain, grow, vary
from model.presets import PRESETS

EQUATION = re.compile(r"([\d(][\d,()²³ +×−/]*) = ((?:[\d,()²³ +×−/]* = )?[\d,]*\d)")


def equations(text: str) -> list[tuple[str, str]]:
    """Everything like `6 × 64 = 384`, but not a symbol's value, `d = 384`."""
    return [
        (left.rstrip(), right)
        for left, right in EQUATION.findall(text)
        if re.search(r"[×+−/²]", left)
    ]


@given(config=st.from_type(GPTConfig))
@settings(deadline=None)
def test_every_equation_works_out_and_both_languages_have_the_same(
    config: GPTConfig, arithmetic: Callable[..., Fraction]
) -> None:
    for step in derive(config):
        en, zh = equations(step.en), equations(step.zh)
        assert sorted(en) == sorted(zh)
        for left, right in en:
            assert arithmetic(left) == arithmetic(right), step.en
        numbers = [sorted(re.findall(r"\d[\d,.]*\d|\d", text)) for text in (step.en, step.zh)]
        assert numbers[0] == numbers[1]


def test_equations_are_found_in_a_derivation() -> None:
    """The guard above would pass on a text in which it finds nothing."""
    found = equations(explain(PRESETS["course"])["en"])
    assert ("4 × 384² + 4 × 384", "591,360") in found
    assert ("591,360 − 590,976", "384") in found
    assert len(found) > 20


# A phrase, and the configs of which it is true.
CLAIMS: dict[str, tuple[str, Callable[[GPTConfig], bool]]] = {
    "RoPE turns": ("RoPE 按位置", lambda c: c.positions == "rope"),
    "Positions: learned": ("学出来的位置嵌入", lambda c: c.positions == "learned"),
    "neither position vectors nor": ("既没有位置嵌入", lambda c: c.positions == "none"),
    "tied, it is": ("与词嵌入共享（tied）", lambda c: c.tied),
    "not tied": ("不与词嵌入共享", lambda c: not c.tied),
    "counted twice": ("算两次", lambda c: c.tied),
    "Each LayerNorm has": ("每个 LayerNorm", lambda c: c.norm == "layernorm"),
    "Each RMSNorm has": ("每个 RMSNorm", lambda c: c.norm == "rmsnorm"),
    "d gains and d biases": ("个增益和 d 个偏置", lambda c: c.norm_bias),
    "fewer than the query heads": ("键/值头比查询头少", lambda c: c.n_kv_head < c.n_head),
    "as large as W_q": ("与 W_q 一样大", lambda c: c.n_kv_head == c.n_head),
    "with their biases": ("连同偏置", lambda c: c.qkv_bias),
    "q_norm and k_norm are": ("q_norm 和 k_norm 对", lambda c: c.qk_norm),
    "the output bias": ("输出偏置", lambda c: c.o_bias),
    "which is all of attention": ("正好是整个注意力", lambda c: not c.o_bias and not c.qk_norm),
    "Feed-forward, gated": ("前馈网络（门控）", lambda c: c.gated),
    "more or fewer heads": (
        "切成更多或更少的头",
        lambda c: c.n_head * c.d_head == c.d_model and c.n_kv_head == c.n_head and not c.qk_norm,
    ),
}
BIASES = {"queries": "qkv_bias", "output": "o_bias", "feed_forward": "mlp_bias"}


@given(config=st.from_type(GPTConfig))
@settings(deadline=None)
def test_a_sentence_stands_exactly_where_it_is_true(config: GPTConfig) -> None:
    text = explain(config)
    for en, (zh, true) in CLAIMS.items():
        assert (en in text["en"]) == true(config), en
        assert (zh in text["zh"]) == true(config), zh
    steps = {step.about: step for step in derive(config)}
    for about, option in BIASES.items():
        assert ("no biases" in steps[about].en) == (not getattr(config, option))
        assert ("没有偏置" in steps[about].zh) == (not getattr(config, option))


def test_head_count_claim_is_true_of_the_counts() -> None:
    sizes = [vary(PRESETS["gpt2"], {"n_head": n_head}) for n_head in (1, 3, 24)]
    assert {grow(size).find("blocks.0.attn").count for size in sizes} == {2_362_368}


@pytest.mark.parametrize("name", PRESETS)
def test_derivation_arrives_at_the_count(name: str) -> None:
    text = explain(PRESETS[name])
    for language in ("en", "zh"):
        assert f"= {grow(PRESETS[name]).count:,}" in text[language]


def test_derivation_has_a_paragraph_a_line_and_no_half_translated_one() -> None:
    for name in PRESETS:
        text = explain(PRESETS[name])
        lines = text["en"].split("\n"), text["zh"].split("\n")
        assert len(lines[0]) == len(lines[1])
        assert not any(re.search(r"[一-鿿，。：；（）]", line) for line in lines[0])
        assert not any(re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", line) for line in lines[1])
        assert all(line.endswith(".") for line in lines[0])
        assert all(line.endswith("。") for line in lines[1])


def test_costs_are_those_of_the_context_asked_for() -> None:
    assert "T = 512" in explain(PRESETS["course"], 512)["en"]
    with pytest.raises(ParameterError, match="context is 4096"):
        explain(PRESETS["course"], 4096)
