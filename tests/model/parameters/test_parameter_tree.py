"""Counts against published ones and transformers' models; the tree against itself and slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import GPTConfig
from model.parameters import by_component, count_nodes, grow, inventory, totals
from model.presets import PRESETS

Arithmetic = Callable[..., Fraction]

PUBLISHED = {
    "course": 49_244_928,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
}


def llama2c(d_model: int, n_layer: int, heads: tuple[int, int], d_mlp: int, vocabulary: int) -> Any:
    """karpathy's tinyllamas; the context adds no parameters."""
    return replace(
        PRESETS["llama-2-7b"],
        n_layer=n_layer,
        d_model=d_model,
        n_head=heads[0],
        n_kv_head=heads[1],
        d_head=d_model // heads[0],
        d_mlp=d_mlp,
        rotary_dim=d_model // heads[0],
        vocab_size=vocabulary,
        tied=True,
    )


STORIES = {
    260_032: llama2c(64, 5, (8, 4), 172, 512),
    15_191_712: llama2c(288, 6, (6, 6), 768, 32000),
    41_689_600: llama2c(512, 8, (8, 8), 1376, 32000),
    109_529_856: llama2c(768, 12, (12, 12), 2048, 32000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_is_the_published_one(name: str) -> None:
    config = PRESETS[name]
    assert grow(config).count == PUBLISHED[name]
    assert totals(config, inventory(config)).unique == PUBLISHED[name]


@pytest.mark.parametrize("count", STORIES)
def test_count_of_stories_model_is_the_published_one(count: int) -> None:
    assert grow(STORIES[count]).count == count


@pytest.mark.parametrize(
    ("tied", "biases", "count"),
    [
        (True, True, 29_946_240),
        (False, True, 49_244_928),
        (True, False, 29_920_512),
        (False, False, 49_219_200),
    ],
)
@pytest.mark.parametrize("learned", [False, True])
def test_count_of_the_course_model(tied: bool, biases: bool, count: int, learned: bool) -> None:
    names = ("norm_bias", "qkv_bias", "o_bias", "mlp_bias")
    config = replace(PRESETS["course"], tied=tied, **dict.fromkeys(names, biases))
    if learned:
        config, count = replace(config, positions="learned"), count + 384 * 1024
    tree = grow(config)
    assert tree.count == count
    assert tree.find("embed").count == 19_298_688
    assert tree.find("blocks.5").count == (1_774_464 if biases else 1_770_240)


def test_formulas_are_those_of_the_course() -> None:
    tree = grow(replace(PRESETS["gpt2"], tied=False))
    assert tree.formula.text == "V·d + n_ctx·d + L·(12·d² + 13·d) + 2·d + V·d"
    attention = tree.find("blocks.0.attn").formula
    assert (attention.text, attention.symbols) == ("4·d² + 4·d", {"d": 768})
    assert attention.worked == "4 × 768² + 4 × 768 = 2,362,368"
    assert tree.find("blocks.0.mlp").formula.text == "8·d² + 5·d"
    assert tree.find("blocks.0.attn.heads.7").formula.text == "4·D·d + 3·D"
    llama = grow(PRESETS["qwen3-0.6b"]).formula
    assert llama.text == "V·d + L·(2·H·D·d + 2·K·D·d + 3·d·f + 2·d + 2·D) + d"


def assert_adds_up(config: GPTConfig, arithmetic: Arithmetic) -> None:
    tree = grow(config)
    for node in tree.walk():
        left, right = node.formula.worked.split(" = ")
        assert arithmetic(left) == arithmetic(right) == node.count
        assert arithmetic(node.formula.text, node.formula.symbols) == node.count
        if node.children:
            assert sum(child.count for child in node.children) == node.count, node.id
    ids = [node.id for node in tree.walk()]
    assert len(ids) == len(set(ids))
    tensors = inventory(config)
    assert tree.count == totals(config, tensors).unique == sum(by_component(tensors).values())
    for layer in range(config.n_layer):
        held = sum(tensor.count for tensor in tensors if tensor.layer == layer)
        assert tree.find(f"blocks.{layer}").count == held


@given(config=st.from_type(GPTConfig))
@settings(deadline=None)
def test_tree_of_any_config_adds_up(config: GPTConfig, arithmetic: Arithmetic) -> None:
    assert_adds_up(config, arithmetic)


@pytest.mark.parametrize("name", ["course", "nano", "gpt2", "smollm2-135m", "qwen3-0.6b"])
def test_tree_of_preset_adds_up(name: str, arithmetic: Arithmetic) -> None:
    assert_adds_up(PRESETS[name], arithmetic)


@given(config=st.from_type(GPTConfig))
@settings(deadline=None)
def test_heads_hold_their_slices_and_grouped_keys_count_once(config: GPTConfig) -> None:
    """Slices of real (meta) matrices, cut as the attention cuts them: d_head rows a head."""
    attention = grow(config).find("blocks.0.attn")
    size = config.d_head
    shapes = {t.name.removeprefix("blocks.0.attn."): t.shape for t in inventory(config)}
    held = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}

    def rows(matrix: str, head: int) -> int:
        here = slice(head * size, (head + 1) * size)
        bias = held[f"{matrix}.bias"][here].numel() if config.qkv_bias else 0
        return held[f"{matrix}.weight"][here].numel() + bias

    own = config.n_kv_head == config.n_head
    for head in range(config.n_head):
        node = attention.find(f"blocks.0.attn.heads.{head}")
        share = rows("q", head) + held["o.weight"][:, head * size : (head + 1) * size].numel()
        assert node.count == share + (rows("k", head) + rows("v", head) if own else 0)
    for head in range(0 if own else config.n_kv_head):
        node = attention.find(f"blocks.0.attn.kv_heads.{head}")
        assert node.count == rows("k", head) + rows("v", head)


def test_tree_is_cut_at_the_depth_asked_for() -> None:
    config = PRESETS["smollm2-135m"]
    whole = grow(config)
    for depth in range(7):
        cut = grow(config, depth)
        assert cut == whole.cut(depth)
        assert cut.count == whole.count
    assert grow(config, 0).children == ()
    assert [child.id for child in grow(config, 1).children] == [
        "embed",
        "blocks",
        "ln_final",
        "unembed",
    ]
    assert len(grow(config, 2).find("blocks").children) == 30


@pytest.mark.parametrize("name", ["course", "gpt2", "llama-3.2-1b"])
@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3, 4, 5, 6])
def test_nodes_are_counted_without_growing_them(name: str, depth: int | None) -> None:
    config = PRESETS[name]
    assert count_nodes(config, depth) == sum(1 for _ in grow(config, depth).walk())


def test_tied_unembedding_is_a_node_of_0_that_names_its_tensor() -> None:
    node = grow(PRESETS["gpt2"]).find("unembed")
    assert (node.count, node.tied_to, node.formula.worked) == (0, "embed.weight", "0 = 0")
    assert grow(PRESETS["course"]).find("unembed").tied_to is None


GPT2_SIZES = {"nano": (3, 48, 3, 3, 11), "gpt2": (12, 768, 12, 50257, 1024)}
GPT2_SIZES |= {"gpt2-xl": (48, 1600, 25, 50257, 1024), "gpt3": (96, 12288, 96, 50257, 2048)}


def transformers_count(kind: Any, config: Any) -> int:
    with torch.device("meta"):
        return int(sum(weight.numel() for weight in kind(config).parameters()))


@pytest.mark.parametrize("name", GPT2_SIZES)
def test_count_is_that_of_transformers_gpt2(name: str) -> None:
    n_layer, n_embd, n_head, vocab_size, n_positions = GPT2_SIZES[name]
    theirs = transformers.GPT2Config(
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        vocab_size=vocab_size,
        n_positions=n_positions,
        tie_word_embeddings=PRESETS[name].tied,
    )
    assert transformers_count(transformers.GPT2LMHeadModel, theirs) == grow(PRESETS[name]).count


LLAMAS = ["smollm2-135m", "smollm2-1.7b", "llama-2-7b", "llama-3.2-1b", "qwen2.5-0.5b"]


@pytest.mark.parametrize("name", [*LLAMAS, "qwen3-0.6b"])
def test_count_is_that_of_transformers_llama_and_qwen(name: str) -> None:
    ours = PRESETS[name]
    family = {"qwen2.5-0.5b": "Qwen2", "qwen3-0.6b": "Qwen3"}.get(name, "Llama")
    theirs = getattr(transformers, f"{family}Config")(
        num_hidden_layers=ours.n_layer,
        hidden_size=ours.d_model,
        num_attention_heads=ours.n_head,
        num_key_value_heads=ours.n_kv_head,
        intermediate_size=ours.d_mlp,
        vocab_size=ours.vocab_size,
        max_position_embeddings=ours.n_ctx,
        tie_word_embeddings=ours.tied,
        **({"head_dim": ours.d_head} if name == "qwen3-0.6b" else {}),
    )
    kind = getattr(transformers, f"{family}ForCausalLM")
    assert transformers_count(kind, theirs) == grow(ours).count
