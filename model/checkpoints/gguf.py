"""GGUF files of llama, qwen2, qwen3 and gpt2: their metadata and tensor names, in ours.

Source: llama.cpp's converter and model code. It reorders the rows of llama's q and k so that
rotation pairs neighbours; qwen's stay half-split. Weights are (out, in) in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from model.checkpoints.contents import (
    CheckpointError,
    Contents,
    Stored,
    Wanted,
    check_layers,
    drop_tied_head,
    matched,
    unchanged,
)
from model.checkpoints.gguf_header import read_header
from model.checkpoints.gguf_tensors import stored
from model.checkpoints.gguf_tokenizer import tokenizer_of
from model.checkpoints.layout import head, linear, norm, rows_of_third
from model.checkpoints.settings import Settings, read_config
from model.config import GPTConfig, RopeScaling
from model.rope import inverse_frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gpt2")
DIVISORS = "rope_freqs.weight"
SCALINGS = {"none": None, "linear": "linear", "yarn": "yarn"}


def describe(file: Path, id_: str, source: str) -> Contents:
    """What the file holds. Raises CheckpointError."""
    header = read_header(file)
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{file}: architecture {architecture!r} is not supported; "
            f"these are: {', '.join(ARCHITECTURES)}"
        )
    found = {name: stored(file, name, at) for name, at in header.tensors.items()}
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    divisors = found.pop(DIVISORS, None)

    def make(settings: Settings) -> GPTConfig:
        return _config(settings, str(architecture), found, divisors)

    config = read_config(Settings(own, f"{file}, {architecture}"), make)
    check_layers(file, config, found)
    if config.tied:
        drop_tied_head(file, found, "output.weight", "token_embd.weight")
    tokenizer, notes = tokenizer_of(header.metadata, file)
    return Contents(
        id=id_,
        source=source,
        format=f"gguf {architecture}",
        config=config,
        tensors=matched(file, _tensors(config), found),
        tokenizer=tokenizer,
        files=[file],
        notes=notes,
    )


def _config(
    settings: Settings,
    architecture: str,
    found: Mapping[str, Stored],
    divisors: Stored | None,
) -> GPTConfig:
    embedding = found.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{settings.source}: token_embd.weight is missing")
    settings.take("vocab_size")  # the embedding may have more rows
    n_head, d_model = settings.need("attention.head_count"), settings.need("embedding_length")
    sizes: dict[str, Any] = {
        "n_layer": settings.need("block_count"),
        "d_model": d_model,
        "n_head": n_head,
        "d_mlp": settings.need("feed_forward_length"),
        "vocab_size": embedding.shape[0],
        "n_ctx": settings.need("context_length"),
        "tied": "output.weight" not in found,
    }
    if architecture == "gpt2":
        settings.only("attention.head_count_kv", n_head, None)
        eps = settings.need("attention.layer_norm_epsilon")
        return GPTConfig(positions="learned", activation="gelu_tanh", norm_eps=eps, **sizes)
    d_head = settings.take("attention.key_length", default=d_model // n_head)
    settings.only("attention.value_length", d_head, None)
    base = settings.take("rope.freq_base", default=10_000.0)
    rotary_dim = settings.take("rope.dimension_count", default=d_head)
    scaling = _scaling(settings, sizes["n_ctx"])
    if divisors is not None:
        scaling = _llama3(settings, divisors, rotary_dim, base)
    return GPTConfig(
        n_kv_head=settings.take("attention.head_count_kv", default=n_head),
        d_head=d_head,
        rotary_dim=rotary_dim,
        rope_base=base,
        rope_pairing="interleaved" if architecture == "llama" else "half",
        rope_scaling=scaling,
        window=settings.take("attention.sliding_window") or None,
        norm="rmsnorm",
        norm_bias=False,
        norm_eps=settings.need("attention.layer_norm_rms_epsilon"),
        qk_norm=architecture == "qwen3",
        activation="swiglu",
        qkv_bias="blk.0.attn_q.bias" in found,
        o_bias="blk.0.attn_output.bias" in found,
        mlp_bias="blk.0.ffn_up.bias" in found,
        **sizes,
    )


def _scaling(settings: Settings, n_ctx: int) -> RopeScaling | None:
    kind = settings.one_of("rope.scaling.type", SCALINGS, "none")
    factor = settings.take("rope.scaling.factor", "rope.scale_linear")
    original = settings.take("rope.scaling.original_context_length", default=n_ctx)
    settings.take("rope.scaling.finetuned")
    settings.only("rope.scaling.attn_factor", 1.0, None)
    if kind is None or not factor:
        return None
    return RopeScaling(kind=kind, factor=float(factor), original_context=original)


def _llama3(settings: Settings, divisors: Stored, rotary_dim: int, base: float) -> RopeScaling:
    """Llama 3's scaling, which the file keeps only as what each frequency is divided by.

    Its published parameters must give these very numbers. Raises CheckpointError if they don't.
    """
    if divisors.shape != (rotary_dim // 2,):
        raise CheckpointError(
            f"{settings.source}: {DIVISORS} has {list(divisors.shape)} values, "
            f"rotation has {rotary_dim // 2} pairs"
        )
    values = divisors.read().double()
    scaling = RopeScaling(
        kind="llama3", factor=max(1.0, float(values.max())), original_context=8192
    )
    plain, scaled = (inverse_frequencies(rotary_dim, base, each)[0] for each in (None, scaling))
    if not torch.allclose(plain / values, scaled, rtol=1e-5, atol=0.0):
        raise CheckpointError(
            f"{settings.source}: {DIVISORS} is not the scaling of Llama 3 over 8192 positions; "
            "no other is implemented"
        )
    return scaling


def _tensors(config: GPTConfig) -> dict[str, Wanted]:
    c = config.d_model
    wanted = {
        "token_embd.weight": Wanted((config.vocab_size, c), {"embed.weight": unchanged}),
        **norm("output_norm", "ln_final", config),
    }
    if config.positions == "learned":
        wanted["position_embd.weight"] = Wanted((config.n_ctx, c), {"pos_embed.weight": unchanged})
    for layer in range(config.n_layer):
        theirs, ours = f"blk.{layer}", f"blocks.{layer}"
        wanted |= norm(f"{theirs}.attn_norm", f"{ours}.ln1", config)
        wanted |= norm(f"{theirs}.ffn_norm", f"{ours}.ln2", config)
        wanted |= _attention(theirs, ours, config)
        for name in ("gate", "up", "down") if config.gated else ("up", "down"):
            n_in, n_out = (config.d_mlp, c) if name == "down" else (c, config.d_mlp)
            wanted |= linear(
                f"{theirs}.ffn_{name}", f"{ours}.mlp.{name}", n_in, n_out, config.mlp_bias
            )
    return wanted | head("output", config)


def _attention(theirs: str, ours: str, config: GPTConfig) -> dict[str, Wanted]:
    c = config.d_model
    wide, narrow = config.n_head * config.d_head, config.n_kv_head * config.d_head
    wanted = linear(f"{theirs}.attn_output", f"{ours}.attn.o", wide, c, config.o_bias)
    if config.positions == "learned":  # gpt2
        for kind, shape in (("weight", (3 * c, c)), ("bias", (3 * c,))):
            parts = {f"{ours}.attn.{x}.{kind}": rows_of_third(i) for i, x in enumerate("qkv")}
            wanted[f"{theirs}.attn_qkv.{kind}"] = Wanted(shape, parts)
        return wanted
    for letter, n_out in (("q", wide), ("k", narrow), ("v", narrow)):
        name = f"{ours}.attn.{letter}"
        wanted |= linear(f"{theirs}.attn_{letter}", name, c, n_out, config.qkv_bias)
        if config.qk_norm and letter != "v":
            wanted[f"{theirs}.attn_{letter}_norm.weight"] = Wanted(
                (config.d_head,), {f"{name}_norm.weight": unchanged}
            )
    return wanted
