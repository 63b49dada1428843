"""Llama, Mistral, Qwen2, Qwen3 as Hugging Face keeps them: config keys and tensor names, in ours.

Sources: the published config.json files and transformers' modelling code. Shapes: C d_model,
F d_mlp.
"""

from __future__ import annotations

from typing import Any

from model.checkpoints.contents import Wanted, unchanged
from model.checkpoints.layout import head, linear, norm
from model.checkpoints.rope_settings import rope_of
from model.checkpoints.settings import Settings
from model.config import GPTConfig


def llama_config(settings: Settings, **choices: Any) -> GPTConfig:
    """What Llama, Mistral, Qwen2 and Qwen3 share; `choices` is what the others do differently."""
    n_head, d_model = settings.need("num_attention_heads"), settings.need("hidden_size")
    d_head = settings.take("head_dim", default=choices.pop("d_head", d_model // n_head))
    settings.one_of("hidden_act", {"silu": "swiglu"}, "silu")
    biased = choices.pop("biased", False)
    if biased is not None:
        biased = settings.one_of("attention_bias", {True: True, False: False}, biased)
        choices |= {"qkv_bias": biased, "o_bias": biased}
    rope = rope_of(settings, d_head, settings.need("max_position_embeddings"))
    return GPTConfig(
        n_layer=settings.need("num_hidden_layers"),
        d_model=d_model,
        n_head=n_head,
        n_kv_head=settings.take("num_key_value_heads", default=n_head),
        d_head=d_head,
        d_mlp=settings.need("intermediate_size"),
        vocab_size=settings.need("vocab_size"),
        norm="rmsnorm",
        norm_bias=False,
        norm_eps=settings.take("rms_norm_eps", default=1e-6),
        activation="swiglu",
        mlp_bias=settings.one_of("mlp_bias", {True: True, False: False}, False),
        tied=settings.one_of("tie_word_embeddings", {True: True, False: False}, False),
        **rope,
        **choices,
    )


def mistral_config(settings: Settings) -> GPTConfig:
    return llama_config(settings, window=settings.nullable("sliding_window", 4096))


def qwen2_config(settings: Settings) -> GPTConfig:
    return llama_config(settings, biased=None, qkv_bias=True, o_bias=False, **windows(settings))


def qwen3_config(settings: Settings) -> GPTConfig:
    return llama_config(settings, d_head=128, qk_norm=True, **windows(settings))


def windows(settings: Settings) -> dict[str, Any]:
    """Qwen's sliding windows: off unless use_sliding_window; then in layer_types' layers."""
    size = settings.nullable("sliding_window", 4096)
    first = settings.take("max_window_layers", default=28)
    layers = range(settings.need("num_hidden_layers"))
    kinds = settings.take("layer_types")
    if not settings.take("use_sliding_window", default=False) or size is None:
        settings.only("layer_types", None, ["full_attention"] * len(layers))
        return {}
    if kinds is None:
        return {"window": size, "windowed_layers": tuple(layers[first:])}
    if len(kinds) != len(layers) or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types {kinds} for {len(layers)} layers is not implemented")
    sliding = tuple(layer for layer in layers if kinds[layer] == "sliding_attention")
    return {"window": size, "windowed_layers": sliding}


def llama_tensors(config: GPTConfig) -> dict[str, Wanted]:
    c, f = config.d_model, config.d_mlp
    wide, narrow = config.n_head * config.d_head, config.n_kv_head * config.d_head
    wanted = {
        "model.embed_tokens.weight": Wanted((config.vocab_size, c), {"embed.weight": unchanged}),
        **norm("model.norm", "ln_final", config),
    }
    for layer in range(config.n_layer):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        wanted |= norm(f"{theirs}.input_layernorm", f"{ours}.ln1", config)
        wanted |= norm(f"{theirs}.post_attention_layernorm", f"{ours}.ln2", config)
        wanted |= linear(f"{attention}.q_proj", f"{ours}.attn.q", c, wide, config.qkv_bias)
        wanted |= linear(f"{attention}.k_proj", f"{ours}.attn.k", c, narrow, config.qkv_bias)
        wanted |= linear(f"{attention}.v_proj", f"{ours}.attn.v", c, narrow, config.qkv_bias)
        wanted |= linear(f"{attention}.o_proj", f"{ours}.attn.o", wide, c, config.o_bias)
        if config.qk_norm:
            for letter in "qk":
                name = f"{ours}.attn.{letter}_norm.weight"
                wanted[f"{attention}.{letter}_norm.weight"] = Wanted(
                    (config.d_head,), {name: unchanged}
                )
        wanted |= linear(f"{mlp}.gate_proj", f"{ours}.mlp.gate", c, f, config.mlp_bias)
        wanted |= linear(f"{mlp}.up_proj", f"{ours}.mlp.up", c, f, config.mlp_bias)
        wanted |= linear(f"{mlp}.down_proj", f"{ours}.mlp.down", f, c, config.mlp_bias)
    return wanted | head("lm_head", config)
