"""GPT-2 and GPT-NeoX (Pythia) as Hugging Face keeps them: config keys and tensor names, in ours.

Sources: the published config.json files and transformers' modelling code. Shapes: C d_model,
F d_mlp, H heads, D d_head.
"""

from __future__ import annotations

from model.checkpoints.contents import Wanted, transposed, unchanged
from model.checkpoints.layout import head, linear, norm, of_each_head, third
from model.checkpoints.rope_settings import rope_of
from model.checkpoints.settings import Settings
from model.config import GPTConfig

GELU = {"gelu": "gelu"} | dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")


def gpt2_config(settings: Settings) -> GPTConfig:
    settings.only("add_cross_attention", False)
    settings.only("scale_attn_by_inverse_layer_idx", False)
    settings.only("is_encoder_decoder", False)
    settings.only("n_ctx", settings.take("n_positions"), None)
    settings.take("reorder_and_upcast_attn")  # the order of rounding: scores are float32 here
    return GPTConfig(
        n_layer=settings.need("n_layer", "num_hidden_layers"),
        d_model=settings.need("n_embd", "hidden_size"),
        n_head=settings.need("n_head", "num_attention_heads"),
        d_mlp=settings.take("n_inner"),
        vocab_size=settings.need("vocab_size"),
        n_ctx=settings.need("n_positions", "max_position_embeddings"),
        positions="learned",
        norm_eps=settings.take("layer_norm_epsilon", default=1e-5),
        activation=settings.one_of("activation_function", GELU, "gelu_new"),
        score_scale=settings.one_of("scale_attn_weights", {True: None, False: 1.0}, True),
        tied=settings.one_of("tie_word_embeddings", {True: True, False: False}, True),
    )


def gpt2_tensors(config: GPTConfig) -> dict[str, Wanted]:
    """Conv1D weights are (in, out), q | k | v side by side on the output axis."""
    c, f = config.d_model, config.d_mlp
    wanted = {
        "transformer.wte.weight": Wanted((config.vocab_size, c), {"embed.weight": unchanged}),
        "transformer.wpe.weight": Wanted((config.n_ctx, c), {"pos_embed.weight": unchanged}),
        **norm("transformer.ln_f", "ln_final", config),
    }
    for layer in range(config.n_layer):
        theirs, ours = f"transformer.h.{layer}", f"blocks.{layer}"
        wanted |= norm(f"{theirs}.ln_1", f"{ours}.ln1", config)
        wanted |= norm(f"{theirs}.ln_2", f"{ours}.ln2", config)
        for part, name, n_in, n_out in (
            ("attn.c_proj", "attn.o", c, c),
            ("mlp.c_fc", "mlp.up", c, f),
            ("mlp.c_proj", "mlp.down", f, c),
        ):
            wanted[f"{theirs}.{part}.weight"] = Wanted(
                (n_in, n_out), {f"{ours}.{name}.weight": transposed}
            )
            wanted[f"{theirs}.{part}.bias"] = Wanted((n_out,), {f"{ours}.{name}.bias": unchanged})
        wanted[f"{theirs}.attn.c_attn.weight"] = Wanted(
            (c, 3 * c),
            {f"{ours}.attn.{letter}.weight": third(i, turn=True) for i, letter in enumerate("qkv")},
        )
        wanted[f"{theirs}.attn.c_attn.bias"] = Wanted(
            (3 * c,),
            {f"{ours}.attn.{letter}.bias": third(i) for i, letter in enumerate("qkv")},
        )
    return wanted | head("lm_head", config)


def neox_config(settings: Settings) -> GPTConfig:
    settings.only("is_decoder", False, True)
    n_head, d_model = settings.need("num_attention_heads"), settings.need("hidden_size")
    n_ctx = settings.need("max_position_embeddings")
    rope = rope_of(settings, d_model // n_head, n_ctx, rotated=0.25)
    biased = settings.one_of("attention_bias", {True: True, False: False}, True)
    return GPTConfig(
        n_layer=settings.need("num_hidden_layers"),
        d_model=d_model,
        n_head=n_head,
        d_mlp=settings.need("intermediate_size"),
        vocab_size=settings.need("vocab_size"),
        norm_eps=settings.take("layer_norm_eps", default=1e-5),
        activation=settings.one_of("hidden_act", GELU, "gelu"),
        qkv_bias=biased,
        o_bias=biased,
        parallel_residual=settings.one_of(
            "use_parallel_residual", {True: True, False: False}, True
        ),
        tied=settings.one_of("tie_word_embeddings", {True: True, False: False}, False),
        **rope,
    )


def neox_tensors(config: GPTConfig) -> dict[str, Wanted]:
    """q, k and v of one head lie together: rows (H, 3, D)."""
    c = config.d_model
    wanted = {
        "gpt_neox.embed_in.weight": Wanted((config.vocab_size, c), {"embed.weight": unchanged}),
        **norm("gpt_neox.final_layer_norm", "ln_final", config),
    }
    for layer in range(config.n_layer):
        theirs, ours = f"gpt_neox.layers.{layer}", f"blocks.{layer}"
        wanted |= norm(f"{theirs}.input_layernorm", f"{ours}.ln1", config)
        wanted |= norm(f"{theirs}.post_attention_layernorm", f"{ours}.ln2", config)
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            wanted[f"{theirs}.attention.query_key_value.{kind}"] = Wanted(
                (3 * c, c) if kind == "weight" else (3 * c,),
                {
                    f"{ours}.attn.{letter}.{kind}": of_each_head(i, config.n_head)
                    for i, letter in enumerate("qkv")
                },
            )
        wanted |= linear(f"{theirs}.attention.dense", f"{ours}.attn.o", c, c, config.o_bias)
        wanted |= linear(f"{theirs}.mlp.dense_h_to_4h", f"{ours}.mlp.up", c, config.d_mlp, True)
        wanted |= linear(f"{theirs}.mlp.dense_4h_to_h", f"{ours}.mlp.down", config.d_mlp, c, True)
    return wanted | head("embed_out", config)
