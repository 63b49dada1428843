"""The families of Hugging Face checkpoints that can be opened, by the architecture they name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model.checkpoints.contents import Wanted
from model.checkpoints.family_gpt import gpt2_config, gpt2_tensors, neox_config, neox_tensors
from model.checkpoints.family_llama import (
    llama_config,
    llama_tensors,
    mistral_config,
    qwen2_config,
    qwen3_config,
)
from model.checkpoints.settings import Settings
from model.config import GPTConfig


@dataclass(frozen=True)
class Family:
    """How to read one family.

    `prefix` is what a checkpoint of the bare model leaves off; tensors that end in `buffers` are
    tables that a run makes anew; `embedding` and `head` are two names that may share one tensor.
    """

    name: str
    prefix: str
    config: Callable[[Settings], GPTConfig]
    wanted: Callable[[GPTConfig], dict[str, Wanted]]
    buffers: tuple[str, ...]
    embedding: str
    head: str = "lm_head.weight"


def _llama(name: str, config: Callable[[Settings], GPTConfig]) -> Family:
    tables = ("rotary_emb.inv_freq",)
    return Family(name, "model.", config, llama_tensors, tables, "model.embed_tokens.weight")


FAMILIES = {
    "GPT2LMHeadModel": Family(
        "GPT-2",
        "transformer.",
        gpt2_config,
        gpt2_tensors,
        (".attn.bias", ".attn.masked_bias"),
        "transformer.wte.weight",
    ),
    "GPTNeoXForCausalLM": Family(
        "GPT-NeoX",
        "gpt_neox.",
        neox_config,
        neox_tensors,
        (".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
        "gpt_neox.embed_in.weight",
        "embed_out.weight",
    ),
    "LlamaForCausalLM": _llama("Llama", llama_config),
    "MistralForCausalLM": _llama("Mistral", mistral_config),
    "Qwen2ForCausalLM": _llama("Qwen2", qwen2_config),
    "Qwen3ForCausalLM": _llama("Qwen3", qwen3_config),
}
ARCHITECTURE_OF = {
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Checkpoints saved without their head name the bare model.
BARE = {
    "GPT2Model": "GPT2LMHeadModel",
    "GPTNeoXModel": "GPTNeoXForCausalLM",
    "LlamaModel": "LlamaForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
}
