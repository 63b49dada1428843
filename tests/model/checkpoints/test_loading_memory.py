"""What opening takes at its peak: the model in its dtype and little beside it, in any format."""

from __future__ import annotations

import ctypes
import gc
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from model.checkpoints.convert import convert
from model.checkpoints.families import FAMILIES
from model.checkpoints.open import describe, open_model
from model.checkpoints.settings import Settings
from model.gpt import GPT

SIZES = {"layers": 6, "wide": 512, "mlp": 1376, "heads": 8, "vocabulary": 8192, "context": 128}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": SIZES["wide"],
    "num_hidden_layers": SIZES["layers"],
    "num_attention_heads": SIZES["heads"],
    "intermediate_size": SIZES["mlp"],
    "vocab_size": SIZES["vocabulary"],
    "max_position_embeddings": SIZES["context"],
    "tie_word_embeddings": True,
}
WEIGHTS = 8192 * 512 + 6 * (4 * 512**2 + 3 * 512 * 1376 + 2 * 512) + 512


def tensors(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = FAMILIES["LlamaForCausalLM"]
    wanted = config.wanted(config.config(Settings(CONFIG, "here")))
    return {name: torch.full(want.shape, 0.01, dtype=dtype) for name, want in wanted.items()}


def safetensors(dtype: torch.dtype) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save_file(tensors(folder, dtype), folder / "model.safetensors")
        return folder

    return write


def torch_file(folder: Path) -> Path:
    torch.save(tensors(folder, torch.float32), folder / "pytorch_model.bin")
    return folder


def llama2c(folder: Path) -> Path:
    folder.mkdir()
    sizes = [SIZES[k] for k in ("wide", "mlp", "layers", "heads", "heads", "vocabulary", "context")]
    count = WEIGHTS + SIZES["context"] * SIZES["wide"] // SIZES["heads"]
    data = struct.pack("<7i", *sizes) + np.full(count, 0.01, "<f4").tobytes()
    (folder / "m.bin").write_bytes(data)
    return folder / "m.bin"


def quantized(folder: Path) -> Path:
    made = tensors(folder, torch.float32)
    names = {"model.layers": "blk", "self_attn.o_proj": "attn_output", "self_attn": "attn"}
    names |= {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "mlp": "ffn"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"attn.": "attn_", "ffn.": "ffn_", "_proj": ""}
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
    writer.add_block_count(SIZES["layers"])
    writer.add_context_length(SIZES["context"])
    writer.add_embedding_length(SIZES["wide"])
    writer.add_feed_forward_length(SIZES["mlp"])
    writer.add_head_count(SIZES["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    for name, tensor in made.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        kind = gguf.GGMLQuantizationType.Q8_0 if tensor.dim() > 1 else None
        values = tensor.numpy() if kind is None else gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m.gguf"


FORMATS = {
    "safetensors, float32": safetensors(torch.float32),
    "safetensors, bfloat16": safetensors(torch.bfloat16),
    "torch": torch_file,
    "llama2.c": llama2c,
    "gguf, Q8_0": quantized,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("format_", FORMATS)
def test_opening_takes_the_model_and_a_fifth(
    format_: str, dtype: torch.dtype, tmp_path: Path, memory_within: Any
) -> None:
    path = FORMATS[format_](tmp_path / "model")
    for attempt in range(3):
        gc.collect()
        # Memory that an earlier attempt freed must not hide what this one takes.
        ctypes.CDLL(None).malloc_trim(0)
        try:
            with memory_within(1.2 * WEIGHTS * dtype.itemsize):
                model: GPT = open_model(str(path), device=torch.device("cpu"), dtype=dtype).model
        except AssertionError:  # other threads of the process can only add: the least counts
            if attempt == 2:
                raise
            continue
        break
    assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS


@pytest.mark.parametrize("format_", FORMATS)
def test_looking_at_a_checkpoint_takes_nearly_nothing(
    format_: str, tmp_path: Path, memory_within: Any
) -> None:
    path = FORMATS[format_](tmp_path / "model")
    gc.collect()
    with memory_within(4 * 2**20):
        describe(str(path))


def test_converting_takes_less_than_the_model(tmp_path: Path, memory_within: Any) -> None:
    path = FORMATS["safetensors, float32"](tmp_path / "model")
    gc.collect()
    with memory_within(0.5 * WEIGHTS * 4):
        convert(str(path), tmp_path / "out", dtype=torch.float32)
