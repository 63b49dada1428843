"""One block at one position: what each norm makes of the stream, what each sublayer writes.

Shapes: C d_model, F d_mlp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.block import FeedForward
from model.gpt import GPT
from model.labs.from_model import Stopped, captured, check_tokens, to_float64
from model.labs.given import LAB_LIMITS, Array, LabLimits, index_of, whole
from model.reading import read
from model.sites import SITES

MOST_NEURONS = 1024


@dataclass(frozen=True, eq=False)
class Vector:
    """A vector (C,) and what it looks like as a whole; the variance divides by C."""

    values: Array
    mean: float
    variance: float
    norm: float


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm's input, the same before gain and bias, and after.

    A LayerNorm's `normalized` has mean 0 and variance 1, an RMSNorm's mean square 1
    (`mean_square`); both a little less, by the epsilon under the root. `scale` is what it divides
    by.
    """

    kind: str
    scale: float
    before: Vector
    normalized: Vector
    mean_square: float
    out: Vector


@dataclass(frozen=True)
class Neuron:
    """A feed-forward neuron: what enters it, what it gives, the length of what it writes."""

    index: int
    pre: float
    post: float
    write_norm: float


@dataclass(frozen=True, eq=False)
class BlockLab:
    """The block from resid_pre to resid_post. `resid_mid` is None in a parallel block.

    `attn_sum_error` and `mlp_sum_error` are the largest differences of the two residual sums,
    worked out here, from the model's own.
    """

    layer: int
    position: int
    parallel: bool
    resid_pre: Vector
    ln1: Norm
    attn_out: Vector
    resid_mid: Vector | None
    ln2: Norm
    neurons: tuple[Neuron, ...]
    active_neurons: int
    mlp_out: Vector
    resid_post: Vector
    attn_sum_error: float | None
    mlp_sum_error: float


def look_at_block(
    model: GPT,
    ids: Sequence[int],
    layer: int,
    position: int,
    *,
    top: int = 10,
    stopped: Stopped = lambda: False,
    limits: LabLimits = LAB_LIMITS,
) -> BlockLab:
    """Run `ids` and look at one layer at one position; `top` is how many neurons are told.

    Neurons are ordered by the length of what each writes. Raises LabError for a layer or position
    that is not there.
    """
    config = model.config
    check_tokens(len(ids), limits)
    layer = index_of("layer", layer, config.n_layer)
    position = index_of("position", position, len(ids))
    whole("top", top, 0, MOST_NEURONS)
    wanted = [name for name in _SITES if SITES[name].present(config)]
    captures = [
        captured(model, name, len(ids), layer=[layer], position=[position]) for name in wanted
    ]
    tensors = read(model, ids, captures, stopped=stopped).tensors
    at = {name: to_float64(values).reshape(-1) for name, values in tensors.items()}
    middle = at.get("resid_mid")
    before_mlp = at["resid_pre"] + at["attn_out"] if middle is None else middle
    return BlockLab(
        layer=layer,
        position=position,
        parallel=middle is None,
        resid_pre=_vector(at["resid_pre"]),
        ln1=_norm(config.norm, "ln1", at, at["resid_pre"]),
        attn_out=_vector(at["attn_out"]),
        resid_mid=None if middle is None else _vector(middle),
        ln2=_norm(config.norm, "ln2", at, at["resid_pre"] if middle is None else middle),
        neurons=_neurons(model, layer, at["mlp.pre"], at["mlp.post"], top),
        active_neurons=int((at["mlp.post"] > 0).sum()),
        mlp_out=_vector(at["mlp_out"]),
        resid_post=_vector(at["resid_post"]),
        attn_sum_error=None
        if middle is None
        else float(np.abs(at["resid_pre"] + at["attn_out"] - middle).max()),
        mlp_sum_error=float(np.abs(before_mlp + at["mlp_out"] - at["resid_post"]).max()),
    )


_SITES = (
    "resid_pre",
    *(f"ln1.{part}" for part in ("scale", "normalized", "out")),
    "attn_out",
    "resid_mid",
    *(f"ln2.{part}" for part in ("scale", "normalized", "out")),
    "mlp.pre",
    "mlp.post",
    "mlp_out",
    "resid_post",
)


def _vector(values: Array) -> Vector:
    return Vector(values, float(values.mean()), float(values.var()), float(np.linalg.norm(values)))


def _norm(kind: str, name: str, at: dict[str, Array], before: Array) -> Norm:
    normalized = at[f"{name}.normalized"]
    return Norm(
        kind=kind,
        scale=float(at[f"{name}.scale"][0]),
        before=_vector(before),
        normalized=_vector(normalized),
        mean_square=float((normalized**2).mean()),
        out=_vector(at[f"{name}.out"]),
    )


def _neurons(model: GPT, layer: int, pre: Array, post: Array, top: int) -> tuple[Neuron, ...]:
    mlp = model.blocks[layer].mlp
    assert isinstance(mlp, FeedForward)
    lengths = np.linalg.norm(to_float64(mlp.down.weight), axis=0)  # (F,): one column a neuron
    writes = np.abs(post) * lengths
    order = np.argsort(-writes, kind="stable")[:top]
    return tuple(Neuron(int(i), float(pre[i]), float(post[i]), float(writes[i])) for i in order)
