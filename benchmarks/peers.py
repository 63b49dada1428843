"""The peers' models, asked for every attention map: as manuals show it, and as an expert would.

Knows nothing of HTTP. A map is (1, H, T, T) float32, one for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.sizes import Size, prepare

Maps = Callable[[Tensor, bool], list[Tensor]]  # (ids (1, T), as an expert would)


def transformers_maps(size: Size) -> Maps:
    """transformers, eager, output_attentions. The expert leaves out the head and the cache."""
    model = _pretrained(size)

    def maps(ids: Tensor, expert: bool) -> list[Tensor]:
        if expert:
            with torch.inference_mode():
                out = model.base_model(ids, output_attentions=True, use_cache=False)
        else:
            with torch.no_grad():
                out = model(ids, output_attentions=True)
        return list(out.attentions)

    return maps


def transformer_lens_maps(size: Size) -> Maps:
    """TransformerLens' bridge over the same checkpoint, run_with_cache with a names filter.

    The expert unembeds the last position alone, through a hook, and turns autograd off for good.
    """
    from transformer_lens import TransformerBridge

    bridge = TransformerBridge.boot_transformers(
        str(size.folder), hf_model=_pretrained(size), device="cpu"
    )

    def is_pattern(name: str) -> bool:
        return name.endswith("attn.hook_pattern")

    def last_position(value: Tensor, hook: Any) -> Tensor:
        return value[:, -1:]

    def maps(ids: Tensor, expert: bool) -> list[Tensor]:
        if expert:
            hooks = [("unembed.hook_in", last_position)]
            with torch.inference_mode(), bridge.hooks(fwd_hooks=hooks):
                _, cache = bridge.run_with_cache(ids, names_filter=is_pattern)
        else:
            with torch.no_grad():
                _, cache = bridge.run_with_cache(ids, names_filter=is_pattern)
        return [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(size.layers)]

    return maps


def generator(size: Size, n_new: int, *, attentions: bool) -> Callable[[list[int]], list[int]]:
    """transformers' generate: greedy, keys and values cached; every step's attention if asked."""
    model = _pretrained(size, "eager" if attentions else "sdpa")

    def generate(ids: list[int]) -> list[int]:
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            eos_token_id=None,
            pad_token_id=0,
            output_attentions=attentions,
            return_dict_in_generate=True,
        )
        new: list[int] = out.sequences[0, len(ids) :].tolist()
        return new

    return generate


def _pretrained(size: Size, attention: str = "eager") -> Any:
    import transformers

    folder = prepare(size)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention
    ).eval()


PEERS: dict[str, Callable[[Size], Maps]] = {
    "transformers": transformers_maps,
    "transformer_lens": transformer_lens_maps,
}
