"""The hand-built GPT against transformers: random weights copied over, logits and every map.

Each case also holds wrong choices (pairing, eps, gelu, window, …) that must miss clearly under
the very comparison that the right choice passes. Shapes: T tokens, d d_model, H heads, D d_head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.attention import Attention
from model.capture import Capture
from model.config import GPTConfig, RopeScaling
from model.gpt import GPT
from model.sites import SITES
from model.tap import Probe

GATE = 2e-5
TOKENS = 80
VOCABULARY = 67
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """An oracle, our config for it, our names for its weights, and choices that are wrong.

    A wrong choice changes config fields; its number is the error that it must exceed.
    """

    oracle: Callable[[], transformers.PreTrainedModel]
    config: GPTConfig
    rename: Callable[[Weights, GPTConfig], Weights]
    wrong: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights large enough that attention is far from uniform, gains and biases that show."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if weight.dim() > 1:
                weight.copy_(0.15 * noise)
            else:
                weight.copy_(0.2 * noise + (0.0 if name.endswith("bias") else 1.0))


def split_neox(weights: Weights, config: GPTConfig) -> Weights:
    """GPT-NeoX keeps q, k and v of one head together: rows (H, 3, D)."""
    ours: Weights = {
        "embed.weight": weights["gpt_neox.embed_in.weight"],
        "ln_final.weight": weights["gpt_neox.final_layer_norm.weight"],
        "ln_final.bias": weights["gpt_neox.final_layer_norm.bias"],
        "unembed.weight": weights["lm_head.weight"],
    }
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            theirs = f"gpt_neox.layers.{layer}.{{}}.{kind}"
            mine = f"blocks.{layer}.{{}}.{kind}"
            fused = weights[theirs.format("attention.query_key_value")]
            heads = fused.unflatten(0, (config.n_head, 3, config.d_head))
            for index, letter in enumerate("qkv"):
                ours[mine.format(f"attn.{letter}")] = heads[:, index].flatten(0, 1)
            ours[mine.format("attn.o")] = weights[theirs.format("attention.dense")]
            ours[mine.format("ln1")] = weights[theirs.format("input_layernorm")]
            ours[mine.format("ln2")] = weights[theirs.format("post_attention_layernorm")]
            ours[mine.format("mlp.up")] = weights[theirs.format("mlp.dense_h_to_4h")]
            ours[mine.format("mlp.down")] = weights[theirs.format("mlp.dense_4h_to_h")]
    return ours


def interleave(weights: Weights, config: GPTConfig) -> Weights:
    """GPT-NeoX's rows reordered for a model that pairs neighbours: (D/2 pairs, 2) from (2, D/2)."""
    ours = split_neox(weights, config)
    for name in list(ours):
        if ".attn.q." in name or ".attn.k." in name:
            halves = ours[name].unflatten(0, (config.n_head, 2, config.d_head // 2))
            ours[name] = halves.transpose(1, 2).flatten(0, 2)
    return ours


def split_gpt2(weights: Weights, config: GPTConfig) -> Weights:
    """GPT-2's Conv1D weights are (in, out), q | k | v side by side on the output axis."""
    ours = {
        "embed.weight": weights["transformer.wte.weight"],
        "pos_embed.weight": weights["transformer.wpe.weight"],
        "ln_final.weight": weights["transformer.ln_f.weight"],
        "ln_final.bias": weights["transformer.ln_f.bias"],
        "unembed.weight": weights["lm_head.weight"],
    }
    names = {"attn.o": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            theirs, mine = f"transformer.h.{layer}.{{}}.{kind}", f"blocks.{layer}.{{}}.{kind}"
            for letter, part in zip(
                "qkv", weights[theirs.format("attn.c_attn")].chunk(3, dim=-1), strict=True
            ):
                ours[mine.format(f"attn.{letter}")] = part.T if kind == "weight" else part
            for name, their_name in names.items():
                part = weights[theirs.format(their_name)]
                ours[mine.format(name)] = part.T if kind == "weight" else part
            ours[mine.format("ln1")] = weights[theirs.format("ln_1")]
            ours[mine.format("ln2")] = weights[theirs.format("ln_2")]
    return ours


def rename_llama(weights: Weights, config: GPTConfig) -> Weights:
    """Llama and its descendants: one matrix for each projection, already (out, in)."""
    inner = {
        "input_layernorm": "ln1",
        "post_attention_layernorm": "ln2",
        "self_attn.q_proj": "attn.q",
        "self_attn.k_proj": "attn.k",
        "self_attn.v_proj": "attn.v",
        "self_attn.o_proj": "attn.o",
        "self_attn.q_norm": "attn.q_norm",
        "self_attn.k_norm": "attn.k_norm",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.up",
        "mlp.down_proj": "mlp.down",
    }
    outer = {"model.embed_tokens": "embed", "model.norm": "ln_final", "lm_head": "unembed"}
    ours = {}
    for name, weight in weights.items():
        stem, kind = name.rsplit(".", 1)
        if stem in outer:
            ours[f"{outer[stem]}.{kind}"] = weight
        else:
            _, _, layer, rest = stem.split(".", 3)
            ours[f"blocks.{layer}.{inner[rest]}.{kind}"] = weight
    return ours


def neox(n_head: int, **choices: Any) -> transformers.PreTrainedModel:
    rotary_pct = choices.pop("rotary_pct", 1.0)
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=n_head,
            intermediate_size=96,
            max_position_embeddings=128,
            rope_parameters={"rope_theta": 10_000.0, "partial_rotary_factor": rotary_pct},
            attn_implementation="eager",
            **{"use_parallel_residual": False, "hidden_act": "gelu", **choices},
        )
    )


def gpt2(**choices: Any) -> transformers.PreTrainedModel:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=60,
            n_layer=2,
            n_head=5,
            n_positions=96,
            attn_implementation="eager",
            **choices,
        )
    )


def llama_like(kind: str, n_head: int, n_kv_head: int, **choices: Any) -> Any:
    """`kind` is Llama, Mistral, Qwen2 or Qwen3: 3 layers, d 72, d_head 12 unless chosen."""
    config = getattr(transformers, f"{kind}Config")
    return getattr(transformers, f"{kind}ForCausalLM")(
        config(
            vocab_size=VOCABULARY,
            hidden_size=72,
            num_hidden_layers=3,
            num_attention_heads=n_head,
            num_key_value_heads=n_kv_head,
            intermediate_size=100,
            attn_implementation="eager",
            rms_norm_eps=1e-5,
            **{"max_position_embeddings": 128, **choices},
        )
    )


NEOX: dict[str, Any] = {
    "n_layer": 2,
    "d_model": 48,
    "n_head": 4,
    "d_mlp": 96,
    "vocab_size": VOCABULARY,
    "n_ctx": 128,
    "rope_pairing": "half",
}
GPT2: dict[str, Any] = {
    "n_layer": 2,
    "d_model": 60,
    "n_head": 5,
    "vocab_size": VOCABULARY,
    "n_ctx": 96,
    "positions": "learned",
    "activation": "gelu_tanh",
    "tied": True,
}
LLAMA: dict[str, Any] = {
    "n_layer": 3,
    "d_model": 72,
    "n_head": 6,
    "n_kv_head": 2,
    "d_mlp": 100,
    "vocab_size": VOCABULARY,
    "n_ctx": 128,
    "rope_pairing": "half",
    "norm": "rmsnorm",
    "norm_bias": False,
    "activation": "swiglu",
    "qkv_bias": False,
    "o_bias": False,
    "mlp_bias": False,
}


def ours_for(family: dict[str, Any], **choices: Any) -> GPTConfig:
    return GPTConfig(**(family | choices))


PAIRING: dict[str, tuple[dict[str, Any], float]] = {
    "the other pairing": ({"rope_pairing": "interleaved"}, 1e-2)
}


def scaled(kind: str, wrong: dict[str, Any], original: int = 32, **values: Any) -> Case:
    """A Llama whose rotation is scaled; `wrong` are fields of RopeScaling that must show."""
    scaling = RopeScaling(**{"kind": kind, "factor": 4.0, "original_context": original} | values)
    theirs: dict[str, Any] = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind in ("yarn", "llama3"):
        theirs |= {"original_max_position_embeddings": original} | values
    trained = original if kind == "dynamic" else 4 * original  # what transformers takes it from
    return Case(
        lambda: llama_like(
            "Llama", 6, 2, rope_parameters=dict(theirs), max_position_embeddings=trained
        ),
        ours_for(LLAMA, rope_scaling=scaling),
        rename_llama,
        PAIRING
        | {
            "no scaling": ({"rope_scaling": None}, 1e-2),
            str(wrong): ({"rope_scaling": replace(scaling, **wrong)}, 1e-3),
        },
    )


CASES = {
    "GPT-NeoX": Case(
        lambda: neox(4),
        ours_for(NEOX),
        split_neox,
        PAIRING
        | {
            "eps": ({"norm_eps": 1e-2}, 1e-3),
            "gelu": ({"activation": "gelu_tanh"}, 1e-4),
            "base": ({"rope_base": 9_000.0}, 1e-3),
        },
    ),
    "GPT-NeoX, interleaved through permuted rows": Case(
        lambda: neox(4),
        ours_for(NEOX, rope_pairing="interleaved"),
        interleave,
        {"the other pairing": ({"rope_pairing": "half"}, 1e-2)},
    ),
    "GPT-NeoX, 3 heads, a quarter rotated, parallel residual, tanh": Case(
        lambda: neox(3, rotary_pct=0.25, use_parallel_residual=True, hidden_act="gelu_new"),
        ours_for(
            NEOX,
            n_head=3,
            rotary_dim=4,
            parallel_residual=True,
            activation="gelu_tanh",
        ),
        split_neox,
        PAIRING
        | {
            "sequential residual": ({"parallel_residual": False}, 1e-2),
            "all rotated": ({"rotary_dim": 16}, 1e-2),
            "gelu": ({"activation": "gelu"}, 1e-4),
        },
    ),
    "GPT-2": Case(
        gpt2,
        ours_for(GPT2),
        split_gpt2,
        {
            "gelu": ({"activation": "gelu"}, 1e-4),
            "eps": ({"norm_eps": 1e-2}, 1e-3),
            "unscaled": ({"score_scale": 1.0}, 1e-2),
        },
    ),
    "GPT-2, scores unscaled": Case(
        lambda: gpt2(scale_attn_weights=False),
        ours_for(GPT2, score_scale=1.0),
        split_gpt2,
        {"scaled": ({"score_scale": None}, 1e-2)},
    ),
    "Llama": Case(
        lambda: llama_like("Llama", 6, 2),
        ours_for(LLAMA),
        rename_llama,
        PAIRING | {"eps": ({"norm_eps": 1e-2}, 1e-3)},
    ),
    "Llama, 9 heads over 3, every bias, tied": Case(
        lambda: llama_like(
            "Llama",
            9,
            3,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
        ours_for(
            LLAMA,
            n_head=9,
            n_kv_head=3,
            d_head=8,
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
            tied=True,
        ),
        rename_llama,
        PAIRING,
    ),
    "Llama, linear": scaled("linear", {"factor": 3.0}),
    "Llama, dynamic": scaled("dynamic", {"original_context": 40}),
    "Llama, yarn": scaled("yarn", {"attention_factor": 1.0}),
    "Llama, yarn with its own betas and factor": scaled(
        "yarn", {"beta_fast": 32.0}, 512, beta_fast=8.0, beta_slow=2.0, attention_factor=1.25
    ),
    "Llama, llama3": scaled(
        "llama3", {"low_freq_factor": 2.0}, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "Mistral, window 24": Case(
        lambda: llama_like("Mistral", 6, 2, sliding_window=24, head_dim=8),
        ours_for(LLAMA, d_head=8, window=24),
        rename_llama,
        PAIRING | {"no window": ({"window": None}, 1e-2), "one key more": ({"window": 25}, 1e-3)},
    ),
    "Qwen2, windows from layer 1": Case(
        lambda: llama_like(
            "Qwen2", 6, 2, use_sliding_window=True, sliding_window=20, max_window_layers=1
        ),
        ours_for(LLAMA, qkv_bias=True, window=20, windowed_layers=(1, 2)),
        rename_llama,
        PAIRING | {"windows everywhere": ({"windowed_layers": None}, 1e-2)},
    ),
    "Qwen3": Case(
        lambda: llama_like("Qwen3", 5, 5, head_dim=16),
        ours_for(LLAMA, n_head=5, n_kv_head=5, d_head=16, qk_norm=True),
        rename_llama,
        PAIRING | {"eps": ({"norm_eps": 1e-2}, 1e-3)},
    ),
}


def build(config: GPTConfig, weights: Weights) -> GPT:
    model = GPT(config)
    if config.tied:
        assert torch.equal(weights["unembed.weight"], weights["embed.weight"])
    model.load_state_dict(weights)
    return model.eval()


@torch.no_grad()
def run(model: GPT, ids: Tensor) -> tuple[Tensor, Tensor]:
    """logits (T, V) and the patterns of all layers (L, H, T, T)."""
    n_tokens = ids.shape[1]
    probe = Probe(
        [
            Capture.resolve(SITES[site], {}, model.config, n_tokens)
            for site in ("attn.pattern", "logits")
        ]
    )
    model(ids, tap=probe)
    pattern, logits = (recording.values for recording in probe.recordings)
    assert pattern is not None and logits is not None
    return logits, pattern


@torch.no_grad()
def run_oracle(oracle: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    answer = oracle.eval()(ids, output_attentions=True, use_cache=False)
    return answer.logits[0], torch.stack(answer.attentions)[:, 0]


def error(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Largest differences of logits and of patterns, relative to magnitudes over 1."""
    logits, pattern = (
        float((a - b).abs().max() / max(1.0, float(b.abs().max())))
        for a, b in zip(ours, theirs, strict=True)
    )
    return logits, pattern


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CASES)
def test_logits_and_every_map_agree_and_wrong_choices_do_not(name: str, ids: Tensor) -> None:
    case = CASES[name]
    oracle = case.oracle()
    randomize(oracle)
    weights = case.rename(dict(oracle.state_dict()), case.config)
    theirs = run_oracle(oracle, ids)
    spread = theirs[1].std(dim=-1).mean()
    assert spread > 0.02, "attention is too uniform for this to show anything"

    logits, pattern = error(run(build(case.config, weights), ids), theirs)
    assert logits < GATE and pattern < GATE, f"logits {logits:.1e}, patterns {pattern:.1e}"
    for wrong, (change, at_least) in case.wrong.items():
        missed = max(error(run(build(replace(case.config, **change), weights), ids), theirs))
        assert missed > at_least, f"{wrong}: only {missed:.1e} off"


@contextmanager
def key_heads_taken_in_turn() -> Iterator[None]:
    """The wrong map: query head h reads key/value head h mod K instead of h // (H/K)."""
    right = Attention.for_queries
    Attention.for_queries = lambda self, x: x.repeat(1, self.share, 1, 1)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Attention.for_queries = right  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["Llama", "Mistral, window 24", "Qwen2, windows from layer 1"])
def test_key_value_heads_serve_neighbouring_query_heads(name: str, ids: Tensor) -> None:
    case = CASES[name]
    oracle = case.oracle()
    randomize(oracle)
    model = build(case.config, case.rename(dict(oracle.state_dict()), case.config))
    theirs = run_oracle(oracle, ids)
    assert max(error(run(model, ids), theirs)) < GATE
    with key_heads_taken_in_turn():
        assert min(error(run(model, ids), theirs)) > 1e-2
