"""What a plan will take, known before it runs: layers, floats, bytes, FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from model.capture import Capture
from model.config import GPTConfig
from model.reading import end_of_run, place
from service.plan import Patch, Plan
from service.wire.tensors import json_size


@dataclass(frozen=True)
class Cost:
    """What a plan will take, known before it runs."""

    n_tokens: int
    layers_run: int
    tensor_floats: int
    tensor_bytes: int
    json_bytes: int
    flops: int


def cost(plan: Plan, config: GPTConfig) -> Cost:
    """Floats and tensor bytes are exact. FLOPs count 2 for each multiplication with a weight and
    4 · d_head for each cell of every query head, over the layers that run."""
    form = plan.request.format
    floats = sum(capture.count for capture in plan.shown)
    n_tokens = len(plan.ids)
    last, _ = end_of_run(plan.captures, full_checks=plan.request.checks_level == "full")
    layers = min(max(last + 1, 0), config.n_layer)
    return Cost(
        n_tokens=n_tokens,
        layers_run=layers,
        tensor_floats=floats,
        tensor_bytes=floats * plan.dtype.itemsize,
        json_bytes=sum(
            json_size(
                capture.shape,
                form,
                weights=capture.site.name == "attn.pattern",
                hidden=_hidden_cells(capture, plan, config) if form.exact else 0,
            )
            for capture in plan.shown
        ),
        flops=_flops(plan, config, layers),
    )


def kept_bytes(plan: Plan, config: GPTConfig) -> int:
    """What the run holds beside the tensors that are sent: captures that only serve the answer, a
    comparison's other logits, the values of patches, float32 of what is sent as float16."""
    held = [capture for capture in plan.captures if capture.name in plan.hidden]
    held += [item.capture for item in plan.edits if isinstance(item, Patch)]
    if plan.dtype != torch.float32:
        held += plan.shown
    floats = sum(capture.count for capture in held)
    if plan.request.compare:
        floats += len(plan.ids) * config.vocab_size
    return floats * torch.float32.itemsize


def _hidden_cells(capture: Capture, plan: Plan, config: GPTConfig) -> int:
    """How many of the selected cells the causal mask leaves at 0, or at −∞, whatever the input."""
    masked = capture.site.name in ("attn.pattern", "attn.masked_scores")
    if not masked or capture.axes[-1] != "key" or not plan.wiring.causal:
        return 0
    _, heads, queries, keys = (np.array(index) for index in capture.indices)
    query, key = queries[:, None], keys[None, :]
    by_window = {
        window: np.count_nonzero((key > query) | (key <= query - (window or config.n_ctx)))
        for window in {config.window_of(layer) for layer in range(config.n_layer)}
    }
    maps = 1 if capture.reduce else len(heads)
    return maps * sum(int(by_window[config.window_of(layer or 0)]) for layer in capture.layers)


def _flops(plan: Plan, config: GPTConfig, layers: int) -> int:
    n_tokens = len(plan.ids)
    d, wide = config.d_model, config.n_head * config.d_head
    layer = 2 * block_weights(config) * n_tokens + 4 * wide * n_tokens * n_tokens
    unembedded = 0
    for capture in plan.captures:
        if capture.site.name == "logits":
            positions = capture.indices[0]
            assert positions is not None
            unembedded = max(unembedded, len(positions))
    if plan.request.checks_level == "full" or any(
        place(edit.site, edit.layers)[0] == 2**31 for edit in plan.plain_edits
    ):
        unembedded = n_tokens
    total = layers * layer + 2 * d * config.vocab_size * unembedded
    return total * (2 if plan.request.compare else 1)


def block_weights(config: GPTConfig) -> int:
    """Numbers in the matrices of one block: each token is multiplied with every one of them."""
    d, wide, narrow = (
        config.d_model,
        config.n_head * config.d_head,
        config.n_kv_head * config.d_head,
    )
    return 2 * d * wide + 2 * d * narrow + (3 if config.gated else 2) * d * config.d_mlp
