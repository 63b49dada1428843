"""One tiny checkpoint of each family, written in its own format, and what its own library computes.

Weights are random and large, so that attention is far from uniform and every choice shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import torch
import transformers
from torch import Tensor

from model.tokenizer import Tokenizer, train_tokenizer
from tests.conftest import SENTENCES

VOCABULARY = 400
CONTEXT = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 6,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}


@dataclass(frozen=True)
class Tiny:
    """`path` opens the checkpoint; `oracle` is the same model in transformers."""

    path: Path
    oracle: Any

    @torch.no_grad()
    def computes(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """logits (T, V), patterns (L, H, T, T)"""
        answer = self.oracle(torch.tensor([list(ids)]), output_attentions=True, use_cache=False)
        return answer.logits[0], torch.stack(answer.attentions)[:, 0]


def gpt2(folder: Path) -> Tiny:
    """Learned positions, tied, gelu by tanh; OpenAI's two tokenizer files."""
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": CONTEXT}
    made = _random(transformers.GPT2Config(**sizes, vocab_size=VOCABULARY, **ENDS))
    made.save_pretrained(folder)
    _vocabulary_and_merges(folder, _byte_level())
    return Tiny(folder, made)


def neox(folder: Path) -> Tiny:
    """A quarter of each head rotated, attention and feed-forward side by side; tokenizer.json."""
    rotation = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    made = _random(transformers.GPTNeoXConfig(**SHAPE, rope_parameters=rotation, **ENDS))
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(_byte_level().to_str(), encoding="utf-8")
    return Tiny(folder, made)


def llama(folder: Path) -> Tiny:
    """Three query heads to a key/value head; a SentencePiece model, which begins texts with <s>."""
    made = _random(transformers.LlamaConfig(**GROUPED, **ENDS))
    made.save_pretrained(folder)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=3,
        num_threads=1,
    )
    return Tiny(folder, made)


def qwen3(folder: Path) -> Tiny:
    """Queries and keys normed, heads wider than their share, tied; Qwen's way to cut words."""
    choices = GROUPED | {"head_dim": 12, "tie_word_embeddings": True}
    made = _random(transformers.Qwen3Config(**choices, **ENDS))
    made.save_pretrained(folder)
    _vocabulary_and_merges(folder, _byte_level())
    about = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return Tiny(folder, made)


def llama_gguf(folder: Path) -> Tiny:
    """A llama as llama.cpp keeps it: interleaved rows, metadata with the tokenizer, one file."""
    config = transformers.LlamaConfig(**GROUPED, **ENDS)
    made = _random(config)
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens, merges = _parts(_byte_level())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token in tokens])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, weight in made.state_dict().items():
        for letter, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if f"{letter}_proj" in name:  # from halves to neighbours
                halves = weight.unflatten(0, (heads, 2, -1))
                weight = halves.transpose(1, 2).flatten(0, 2)
        writer.add_tensor(_gguf_name(name), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tiny(folder / "tiny.gguf", made)


FAMILIES: dict[str, Callable[[Path], Tiny]] = {
    "gpt2": gpt2,
    "gpt-neox": neox,
    "llama": llama,
    "qwen3": qwen3,
    "llama in GGUF": llama_gguf,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "attn_implementation": "eager"}
_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def _gguf_name(name: str) -> str:
    for theirs, short in _GGUF.items():
        name = name.replace(theirs, short)
    return name


def _random(config: Any) -> Any:
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            gain = weight.dim() == 1 and name.endswith("weight")
            weight.copy_(0.17 * torch.randn(weight.shape, generator=draw) + gain)
    return made


def _byte_level() -> Tokenizer:
    return train_tokenizer(SENTENCES, 360)


def _parts(tokenizer: Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens in the order of their ids, and the merges."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert list(range(len(tokens))) == [model["vocab"][token] for token in tokens]
    return tokens, [(left, right) for left, right in model["merges"]]


def _vocabulary_and_merges(folder: Path, tokenizer: Tokenizer) -> None:
    tokens, merges = _parts(tokenizer)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
