"""Small models with weights large enough that attention is not even."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.config import GPTConfig
from model.gpt import GPT

KINDS: dict[str, dict[str, Any]] = {
    "course": {},
    "grouped": {
        "n_kv_head": 2,
        "d_head": 12,
        "norm": "rmsnorm",
        "norm_bias": False,
        "qk_norm": True,
        "activation": "swiglu",
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "rope_pairing": "half",
    },
    "learned": {"positions": "learned", "activation": "gelu_tanh", "tied": True},
    "windowed": {"window": 3, "score_scale": 0.3},
    "parallel": {"parallel_residual": True, "rotary_dim": 4},
}


@pytest.fixture
def make_model() -> Callable[[str], GPT]:
    def make(kind: str) -> GPT:
        config = GPTConfig(n_layer=3, d_model=32, n_head=4, vocab_size=50, n_ctx=64, **KINDS[kind])
        model = GPT(config, seed=1).eval().requires_grad_(False)
        draw = torch.Generator().manual_seed(2)
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(8)
            else:
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
        return model

    return make
