"""The two model sizes that everything is measured at: one set of weights each, for all contestants.

A size is a Hugging Face folder with random weights; Fluoroscope opens it as any such checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parent.parent / "build" / "benchmarks"


def _course() -> Any:
    import transformers

    config = transformers.GPTNeoXConfig(
        vocab_size=50257,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=4 * 384,
        max_position_embeddings=1024,
        use_parallel_residual=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 1.0,
        },
    )
    return transformers.GPTNeoXForCausalLM(config)


def _gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


@dataclass(frozen=True)
class Size:
    """`untrained` makes the transformers model; the weights that it comes with are replaced."""

    name: str
    says: str
    layers: int
    heads: int
    vocabulary: int
    untrained: Callable[[], Any] = field(repr=False)
    within: Path = BUILD

    @property
    def folder(self) -> Path:
        return self.within / self.name


SIZES = {
    size.name: size
    for size in (
        Size("course", "6 layers, 384 wide, 6 heads; GPT-NeoX with RoPE", 6, 6, 50257, _course),
        Size("gpt2", "12 layers, 768 wide, 12 heads; GPT-2", 12, 12, 50257, _gpt2),
    )
}


def prepare(size: Size) -> Path:
    """The size's folder, written on the first call.

    Weights are N(0, 0.05): queries and keys then have dot products of a few units, and rows of
    attention are as uneven as a trained model's.
    """
    import torch

    if not (size.folder / "complete").exists():
        model = size.untrained()
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                noise = 0.05 * torch.randn(weight.shape, generator=draw)
                gain = weight.dim() == 1 and not name.endswith("bias")
                weight.copy_(1 + noise if gain else noise)
        model.save_pretrained(size.folder)
        (size.folder / "complete").touch()
    return size.folder


def token_ids(n_tokens: int, vocabulary: int) -> list[int]:
    """The same ids for every contestant: spread over the vocabulary, no two runs alike."""
    return [(7919 * at * at + 104_729 * at) % vocabulary for at in range(n_tokens)]
