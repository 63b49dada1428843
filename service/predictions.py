"""Predictions: what captured logits say about the next token. Shapes: n positions, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from model.reading import RunCancelled
from model.tokenizer import Tokenizer, TokenizerError
from service.inspector import Finish, Stopped, require_probabilities
from service.plan import Plan
from service.schemas.logits import LogitsRequest


def predictions(tokenizer: Tokenizer | None, asked: LogitsRequest) -> Finish:
    """Reads the captured `logits` (n, V), on their own device, one row at a time in float64.

    Raises NotFiniteError where a row is no distribution, RunCancelled once nobody waits.
    """

    def rows(tensors: Mapping[str, Tensor], stopped: Stopped) -> Iterator[Tensor]:
        for row in tensors["logits"]:
            if stopped():
                raise RunCancelled
            yield row

    def finish(plan: Plan, tensors: Mapping[str, Tensor], stopped: Stopped) -> dict[str, Any]:
        require_probabilities(tensors["logits"])
        positions = next(c.indices[0] for c in plan.captures if c.name == "logits")
        assert positions is not None
        return {
            "predictions": [
                _prediction(row, position, plan.ids, asked.top, tokenizer)
                for row, position in zip(rows(tensors, stopped), positions, strict=True)
            ]
        }

    return finish


def _prediction(
    row: Tensor, position: int, ids: list[int], top: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    wide = row if row.device.type == "mps" else row.double()
    logsumexp = wide.logsumexp(-1)
    logprobs = wide - logsumexp
    following = None
    if position + 1 < len(ids):
        token = ids[position + 1]
        following = {
            "id": token,
            "text": token_text(tokenizer, token),
            "rank": 1 + int((row > row[token]).sum()),
            "logprob": float(logprobs[token]),
        }
    # A tie goes to the lower id, on every device.
    order = torch.argsort(row, descending=True, stable=True)[:top].tolist()
    return {
        "position": position,
        "next": following,
        "top": [
            {
                "id": token,
                "text": token_text(tokenizer, token),
                "logit": float(row[token]),
                "logprob": float(logprobs[token]),
                "probability": float(logprobs[token].exp()),
            }
            for token in order
        ],
        "entropy_nats": float(-(logprobs.exp() * logprobs).nan_to_num(0.0).sum()),
        "logsumexp": float(logsumexp),
    }


def token_text(tokenizer: Tokenizer | None, token: int) -> str | None:
    """Null where the vocabulary has no such token: padding rows, or no tokenizer at all."""
    if tokenizer is None:
        return None
    try:
        return tokenizer.token_text(token)
    except TokenizerError:
        return None
