"""The model's forward without a single tap call: what the taps are measured against.

The same modules, the same operations in the same order; only `tap(…)` is gone. Holds for plain
models (no gate, no q/k norm, LayerNorm, sequential residual). Shapes as in model/.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import Attention, softmax
from model.block import Block, FeedForward
from model.frame import Frame
from model.gpt import GPT
from model.norm import LayerNorm
from model.wiring import MODEL_WIRING


def forward(model: GPT, ids: Tensor, unembed: list[int]) -> Tensor:
    weight = model.embed.weight
    frame = Frame.make(
        model.config, MODEL_WIRING, ids.shape[1], device=weight.device, dtype=weight.dtype
    )
    x = model.embed(ids)
    if model.pos_embed is not None:
        x = x + model.pos_embed(frame.positions)[None]
    for block in model.blocks:
        x = _block(block, x, frame)
    x = _norm(model.ln_final, x)
    return model.unembed(x[:, unembed])


def _block(block: Block, x: Tensor, frame: Frame) -> Tensor:
    x = x + _attention(block.attn, _norm(block.ln1, x), frame)
    return x + _feed_forward(block.mlp, _norm(block.ln2, x))


def _norm(norm: LayerNorm, x: Tensor) -> Tensor:
    return norm(x)


def _attention(attn: Attention, x: Tensor, frame: Frame) -> Tensor:
    q, k, v = (attn.heads(project(x)) for project in (attn.q, attn.k, attn.v))
    rot_q, rot_k = frame.rotate(q), frame.rotate(k)
    scores = (rot_q @ attn.for_queries(rot_k).mT) * frame.score_scale
    pattern = softmax(
        scores.masked_fill(frame.hidden[attn.window], float("-inf")), may_be_empty=False
    )
    z = pattern @ attn.for_queries(v)
    return attn.o(z.transpose(1, 2).flatten(2))


def _feed_forward(mlp: FeedForward, x: Tensor) -> Tensor:
    kind = "tanh" if mlp.activation == "gelu_tanh" else "none"
    return mlp.down(F.gelu(mlp.up(x), approximate=kind))


def require_same_logits(model: GPT, ids: Tensor) -> None:
    """Raises AssertionError where the copy no longer is one: bits, not tolerances."""
    with torch.inference_mode():
        assert torch.equal(forward(model, ids, [-1]), model(ids, unembed=[-1]))
