"""nanoGPT's ckpt.pt and minGPT's state dicts: files of torch.save, opened with weights_only.

Sources: karpathy/nanoGPT and karpathy/minGPT, model.py. Both name their modules as GPT-2 does, with
Linear weights (out, in); nanoGPT ties its head and uses erf gelu, minGPT does neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from model.checkpoints.layout import head, linear, norm, rows_of_third
from model.checkpoints.settings import Settings, read_config, read_json
from model.checkpoints.tokenizer_files import tokenizer_in
from model.checkpoints.torch_files import load_torch, read_torch
from model.config import GPTConfig

# minGPT's model_type: layers, heads, width. Its config.json may name one instead of the sizes.
MINGPT_TYPES = {
    "gpt-nano": (3, 3, 48),
    "gpt-micro": (4, 4, 128),
    "gpt-mini": (6, 6, 192),
    "gopher-44m": (8, 16, 512),
    "openai-gpt": (12, 12, 768),
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"


def describe(file: Path, id_: str, source: str) -> Contents:
    """What the file holds. A minGPT state dict needs its config.json beside it.

    Raises CheckpointError.
    """
    whole = load_torch(file)
    if "model_args" in whole:
        return _nanogpt(file, whole["model_args"], id_, source)
    beside = file.parent / "config.json"
    if not beside.is_file():
        raise CheckpointError(
            f"{file}: neither nanoGPT's model_args are in it nor minGPT's config.json beside it; "
            "the number of heads is in no tensor's shape"
        )
    values = read_json(beside)
    return _mingpt(file, Settings(values.get("model", values), beside), id_, source)


def _nanogpt(file: Path, arguments: Any, id_: str, source: str) -> Contents:
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{file}: model_args is {type(arguments).__name__}, not a dict")
    config = read_config(Settings(arguments, f"{file}, model_args"), nanogpt_config)
    found = _named(read_torch(file, "model"))
    drop_tied_head(file, found, HEAD, EMBEDDING)
    return _contents(file, config, found, id_, source, "nanoGPT")


def _mingpt(file: Path, settings: Settings, id_: str, source: str) -> Contents:
    found = _named(read_torch(file))
    positions = found.get("transformer.wpe.weight")
    if positions is None or EMBEDDING not in found:
        raise CheckpointError(f"{file}: no state dict of minGPT: it has no transformer.wte and wpe")
    n_ctx, vocab_size = positions.shape[0], found[EMBEDDING].shape[0]

    def config(settings: Settings) -> GPTConfig:
        return mingpt_config(settings, vocab_size, n_ctx)

    return _contents(file, read_config(settings, config), found, id_, source, "minGPT")


def _contents(
    file: Path, config: GPTConfig, found: dict[str, Stored], id_: str, source: str, format_: str
) -> Contents:
    check_layers(file, config, found)
    return Contents(
        id=id_,
        source=source,
        format=format_,
        config=config,
        tensors=matched(file, tensors(config), found),
        tokenizer=tokenizer_in(file.parent),
        files=[file],
    )


def nanogpt_config(settings: Settings) -> GPTConfig:
    settings.take("dropout")
    bias = settings.one_of("bias", {True: True, False: False}, True)
    return GPTConfig(
        n_layer=settings.need("n_layer"),
        d_model=settings.need("n_embd"),
        n_head=settings.need("n_head"),
        vocab_size=settings.need("vocab_size"),
        n_ctx=settings.need("block_size"),
        positions="learned",
        activation="gelu",
        norm_bias=bias,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
    )


def mingpt_config(settings: Settings, vocab_size: int, n_ctx: int) -> GPTConfig:
    settings.take("resid_pdrop", "attn_pdrop", "embd_pdrop")
    kind = settings.take("model_type")
    n_layer, n_head, n_embd = MINGPT_TYPES.get(kind, (None, None, None))
    for key, size in (("vocab_size", vocab_size), ("block_size", n_ctx)):
        settings.only(key, size, None)
    return GPTConfig(
        n_layer=settings.take("n_layer", default=n_layer),
        d_model=settings.take("n_embd", default=n_embd),
        n_head=settings.take("n_head", default=n_head),
        vocab_size=vocab_size,
        n_ctx=n_ctx,
        positions="learned",
        activation="gelu_tanh",
        tied=False,
    )


def tensors(config: GPTConfig) -> dict[str, Wanted]:
    """GPT-2's names with (out, in) weights: q | k | v one below the other."""
    c, f = config.d_model, config.d_mlp
    wanted = {
        EMBEDDING: Wanted((config.vocab_size, c), {"embed.weight": unchanged}),
        "transformer.wpe.weight": Wanted((config.n_ctx, c), {"pos_embed.weight": unchanged}),
        **norm("transformer.ln_f", "ln_final", config),
    }
    for layer in range(config.n_layer):
        theirs, ours = f"transformer.h.{layer}", f"blocks.{layer}"
        wanted |= norm(f"{theirs}.ln_1", f"{ours}.ln1", config)
        wanted |= norm(f"{theirs}.ln_2", f"{ours}.ln2", config)
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            wanted[f"{theirs}.attn.c_attn.{kind}"] = Wanted(
                (3 * c, c) if kind == "weight" else (3 * c,),
                {f"{ours}.attn.{x}.{kind}": rows_of_third(i) for i, x in enumerate("qkv")},
            )
        wanted |= linear(f"{theirs}.attn.c_proj", f"{ours}.attn.o", c, c, config.o_bias)
        wanted |= linear(f"{theirs}.mlp.c_fc", f"{ours}.mlp.up", c, f, config.mlp_bias)
        wanted |= linear(f"{theirs}.mlp.c_proj", f"{ours}.mlp.down", f, c, config.mlp_bias)
    return wanted | head("lm_head", config)


def _named(found: dict[str, Stored]) -> dict[str, Stored]:
    """Names without what torch.compile puts before them; causal masks are made anew."""
    named = {name.removeprefix("_orig_mod."): stored for name, stored in found.items()}
    return {name: stored for name, stored in named.items() if not name.endswith(".attn.bias")}
