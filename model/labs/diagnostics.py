"""The five classic mistakes of a hand-built transformer, each made on purpose and measured.

A mistake is made through Wiring on the running model, or on freshly drawn weights of its config.
Nothing is claimed that was not measured: a symptom says whether it was, and whether it showed.
Shapes: T token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from model.config import ConfigError, GPTConfig
from model.gpt import GPT
from model.labs.attention import row_entropy
from model.labs.fresh import FreshRun, learn_one_text
from model.labs.from_model import Stopped, captured, check_tokens, to_float64
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits
from model.labs.order import SAME, compare_order
from model.labs.scaling import gradient_norm
from model.reading import read
from model.wiring import MODEL_WIRING, Wiring

MistakeId = Literal["no_mask", "no_scale", "no_position", "no_residual", "uneven_heads"]


@dataclass(frozen=True)
class Number:
    """One quantity as the model is, and with the mistake made; `id` is explained in the words."""

    id: str
    now: float
    mistake: float


@dataclass(frozen=True)
class Mistake:
    """`wiring` is the change in the words of the wire, None where no wiring makes the mistake.

    `measured` says whether the symptom itself was measured, `shown` whether the numbers bear it
    (None where it was not measured). `error` is what the config answers, where it refuses.
    """

    id: MistakeId
    wiring: dict[str, Any] | None
    numbers: tuple[Number, ...]
    measured: bool
    shown: bool | None
    error: str | None = None


def diagnose(
    model: GPT,
    ids: Sequence[int],
    *,
    stopped: Stopped = lambda: False,
    limits: LabLimits = LAB_LIMITS,
) -> tuple[Mistake, ...]:
    """All five on one text of at least 3 tokens. Takes seconds: two short trainings are part of it.

    Raises LabError for a text too short or too long, RunCancelled once `stopped` says so.
    """
    check_tokens(len(ids), limits)
    if len(ids) < 3:
        raise LabError("text", f"the text has {len(ids)} tokens; at least 3 are needed")
    plain = _run(model, ids, MODEL_WIRING, stopped)
    fresh, broken = _fresh(model, ids, stopped)
    return (
        _no_mask(model, ids, plain, stopped),
        _no_scale(model, ids, plain, stopped),
        _no_position(model, ids, plain, stopped, limits),
        _no_residual(model, ids, plain, fresh, broken, stopped),
        _uneven_heads(model.config),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """One run: logits (T, V), and over all attention rows that see more than one key the means of
    the largest weight, the entropy and the softmax's gradient."""

    logits: Array
    loss: float
    largest_weight: float
    entropy_nats: float
    softmax_gradient: float


def _run(model: GPT, ids: Sequence[int], wiring: Wiring, stopped: Stopped) -> _Run:
    captures = [captured(model, site, len(ids)) for site in ("attn.pattern", "logits")]
    taken = read(model, ids, captures, wiring=wiring, stopped=stopped).tensors
    rows = to_float64(taken["attn.pattern"])[:, :, 1:]  # row 0 sees one key under the mask
    logits = taken["logits"].double()
    following = torch.tensor(list(ids[1:]), device=logits.device)
    return _Run(
        logits=to_float64(logits),
        loss=float(torch.nn.functional.cross_entropy(logits[:-1], following)),
        largest_weight=float(rows.max(axis=-1).mean()),
        entropy_nats=float(row_entropy(rows).mean()),
        softmax_gradient=float(gradient_norm(rows).mean()),
    )


def _fresh(
    model: GPT, ids: Sequence[int], stopped: Stopped
) -> tuple[FreshRun | None, FreshRun | None]:
    """The fresh weights with and without the residual; None where the model is too big for it."""
    device = model.embed.weight.device
    try:
        with_it, without = (
            learn_one_text(
                model.config, ids, Wiring(residual=residual), device=device, stopped=stopped
            )
            for residual in (True, False)
        )
    except LabError:
        return None, None
    return with_it, without


def _no_mask(model: GPT, ids: Sequence[int], plain: _Run, stopped: Stopped) -> Mistake:
    """Change the last token and look at what that does to the logits before it."""
    other = [*ids[:-1], _another(ids, model.config.vocab_size)]
    open_wiring = Wiring(causal=False)
    seen = _run(model, ids, open_wiring, stopped)
    leaks = [
        float(np.abs(before.logits[:-1] - _run(model, other, wiring, stopped).logits[:-1]).max())
        for before, wiring in ((plain, MODEL_WIRING), (seen, open_wiring))
    ]
    numbers = (Number("future_leak", *leaks), Number("loss", plain.loss, seen.loss))
    # The symptom is one of training without the mask, which is not done here.
    return Mistake("no_mask", {"causal": False}, numbers, measured=False, shown=None)


def _another(ids: Sequence[int], vocab_size: int) -> int:
    """A token other than the last, from the text itself where it has one."""
    return next((token for token in ids if token != ids[-1]), (ids[-1] + 1) % vocab_size)


def _no_scale(model: GPT, ids: Sequence[int], plain: _Run, stopped: Stopped) -> Mistake:
    raw = _run(model, ids, Wiring(score_scale=1.0), stopped)
    numbers = (
        Number("largest_weight", plain.largest_weight, raw.largest_weight),
        Number("entropy_nats", plain.entropy_nats, raw.entropy_nats),
        Number("softmax_gradient", plain.softmax_gradient, raw.softmax_gradient),
        Number("loss", plain.loss, raw.loss),
    )
    collapsed = raw.largest_weight > plain.largest_weight
    fainter = raw.softmax_gradient < plain.softmax_gradient
    return Mistake(
        "no_scale", {"score_scale": 1.0}, numbers, measured=True, shown=collapsed and fainter
    )


def _no_position(
    model: GPT, ids: Sequence[int], plain: _Run, stopped: Stopped, limits: LabLimits
) -> Mistake:
    """The text backwards, without the mask: does each token still come out the same?"""
    cases = compare_order(model, ids, list(ids)[::-1], stopped=stopped, limits=limits).cases
    differences = {
        case.positions: case.largest_difference / case.magnitude
        for case in cases
        if not case.causal
    }
    lost = _run(model, ids, Wiring(positions="none"), stopped)
    numbers = (
        Number("order_difference", differences["model"], differences["none"]),
        Number("loss", plain.loss, lost.loss),
    )
    shown = differences["none"] <= SAME < differences["model"]
    return Mistake("no_position", {"positions": "none"}, numbers, measured=True, shown=shown)


def _no_residual(
    model: GPT,
    ids: Sequence[int],
    plain: _Run,
    fresh: FreshRun | None,
    broken: FreshRun | None,
    stopped: Stopped,
) -> Mistake:
    cut = _run(model, ids, Wiring(residual=False), stopped)
    numbers = [Number("loss", plain.loss, cut.loss)]
    shown = None
    if fresh is not None and broken is not None:
        numbers += [
            Number("fresh_loss_after_steps", fresh.last_loss, broken.last_loss),
            Number("fresh_similarity", fresh.similarity, broken.similarity),
            Number("fresh_first_gradient", fresh.layer_gradients[0], broken.layer_gradients[0]),
        ]
        stuck = _fall(broken) < _fall(fresh) / 2
        shown = stuck and broken.similarity > fresh.similarity
    return Mistake(
        "no_residual",
        {"residual": False},
        tuple(numbers),
        measured=fresh is not None,
        shown=shown,
    )


def _fall(run: FreshRun) -> float:
    return run.first_loss - run.last_loss


def _uneven_heads(config: GPTConfig) -> Mistake:
    """One head more, or two, until the width does not divide."""
    n_head = next(n for n in range(config.n_head + 1, config.d_model + 2) if config.d_model % n)
    numbers = (
        Number("n_head", config.n_head, n_head),
        Number("width_left_over", config.d_model % config.n_head, config.d_model % n_head),
    )
    try:
        replace(config, n_head=n_head, n_kv_head=n_head, d_head=None)  # type: ignore[arg-type]
    except ConfigError as error:
        return Mistake("uneven_heads", None, numbers, measured=True, shown=True, error=str(error))
    return Mistake("uneven_heads", None, numbers, measured=True, shown=False)
