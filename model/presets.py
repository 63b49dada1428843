"""Named configurations. Weights are not part of them. Sources stand behind each group."""

from __future__ import annotations

from model.config import GPTConfig, RopeScaling


def _gpt2(n_layer: int, d_model: int, n_head: int) -> GPTConfig:
    """Radford et al. 2019: learned positions, tied, gelu in its tanh form."""
    return GPTConfig(
        n_layer=n_layer,
        d_model=d_model,
        n_head=n_head,
        vocab_size=50257,
        n_ctx=1024,
        positions="learned",
        activation="gelu_tanh",
        tied=True,
    )


def _llama(
    n_layer: int,
    d_model: int,
    n_head: int,
    n_kv_head: int,
    d_mlp: int,
    *,
    vocab_size: int,
    n_ctx: int,
    tied: bool,
    rope_base: float = 10_000.0,
    rope_scaling: RopeScaling | None = None,
    norm_eps: float = 1e-5,
    d_head: int | None = None,
    qkv_bias: bool = False,
    qk_norm: bool = False,
) -> GPTConfig:
    """Touvron et al. 2023 and its descendants: RMSNorm, SwiGLU, half-split RoPE, no biases."""
    return GPTConfig(
        n_layer=n_layer,
        d_model=d_model,
        n_head=n_head,
        n_kv_head=n_kv_head,
        d_head=d_model // n_head if d_head is None else d_head,
        d_mlp=d_mlp,
        vocab_size=vocab_size,
        n_ctx=n_ctx,
        rope_pairing="half",
        rope_base=rope_base,
        rope_scaling=rope_scaling,
        norm="rmsnorm",
        norm_eps=norm_eps,
        norm_bias=False,
        qk_norm=qk_norm,
        activation="swiglu",
        qkv_bias=qkv_bias,
        o_bias=False,
        mlp_bias=False,
        tied=tied,
    )


_LLAMA_3_2 = RopeScaling(kind="llama3", factor=32.0, original_context=8192)

PRESETS: dict[str, GPTConfig] = {
    # The course's own: RoPE on neighbouring dimensions, GPT-2's vocabulary, untied.
    "course": GPTConfig(n_layer=6, d_model=384, n_head=6, vocab_size=50257, n_ctx=1024),
    # llm-viz's nano-gpt: sorts the letters A, B and C. minGPT's layout, no bias in the unembedding.
    "nano": GPTConfig(
        n_layer=3,
        d_model=48,
        n_head=3,
        vocab_size=3,
        n_ctx=11,
        positions="learned",
        activation="gelu_tanh",
    ),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    # Brown et al. 2020, table 2.1.
    "gpt3": GPTConfig(
        n_layer=96,
        d_model=12288,
        n_head=96,
        vocab_size=50257,
        n_ctx=2048,
        positions="learned",
        activation="gelu_tanh",
        tied=True,
    ),
    # The published config.json of each checkpoint.
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, vocab_size=32000, n_ctx=4096, tied=False),
    "llama-3.2-1b": _llama(
        16,
        2048,
        32,
        8,
        8192,
        vocab_size=128256,
        n_ctx=131072,
        tied=True,
        rope_base=500_000.0,
        rope_scaling=_LLAMA_3_2,
    ),
    "smollm2-135m": _llama(
        30, 576, 9, 3, 1536, vocab_size=49152, n_ctx=8192, tied=True, rope_base=100_000.0
    ),
    "smollm2-360m": _llama(
        32, 960, 15, 5, 2560, vocab_size=49152, n_ctx=8192, tied=True, rope_base=100_000.0
    ),
    "smollm2-1.7b": _llama(
        24, 2048, 32, 32, 8192, vocab_size=49152, n_ctx=8192, tied=True, rope_base=130_000.0
    ),
    "qwen2.5-0.5b": _llama(
        24,
        896,
        14,
        2,
        4864,
        vocab_size=151936,
        n_ctx=32768,
        tied=True,
        rope_base=1_000_000.0,
        norm_eps=1e-6,
        qkv_bias=True,
    ),
    "qwen3-0.6b": _llama(
        28,
        1024,
        16,
        8,
        3072,
        vocab_size=151936,
        n_ctx=40960,
        tied=True,
        rope_base=1_000_000.0,
        norm_eps=1e-6,
        d_head=128,
        qk_norm=True,
    ),
}
