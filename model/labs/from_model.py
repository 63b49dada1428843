"""What the labs take from a running model: one layer's vectors, in float64, and its own answers.

Shapes: H head, K key/value head, T token, D d_head, C d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.attention import Attention
from model.capture import Capture
from model.config import Pairing
from model.gpt import GPT
from model.labs.attention import Vectors
from model.labs.frequencies import of_model
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits, index_of, token_names
from model.labs.heads import Output
from model.reading import read
from model.selection import Asked
from model.sites import SITES, Axis

Stopped = Callable[[], bool]


@dataclass(frozen=True, eq=False)
class LayerVectors:
    """One layer's heads as they meet their keys: q and k after norm and rotation.

    `patterns` (H, T, T) and `attn_out` (T, C) are the model's own, to hold the lab's against;
    `output` is the layer's W_O (H·D, C) and its bias.
    """

    layer: int
    heads: tuple[Vectors, ...]
    scale: float
    window: int | None
    patterns: Array
    attn_out: Array
    output: Output


def layer_vectors(
    model: GPT,
    ids: Sequence[int],
    layer: int,
    *,
    tokens: Sequence[str] | None = None,
    stopped: Stopped = lambda: False,
    limits: LabLimits = LAB_LIMITS,
) -> LayerVectors:
    """All heads of one layer on `ids`. Raises LabError for a layer that is not there, and for more
    tokens than a lab holds."""
    config = model.config
    layer = index_of("layer", layer, config.n_layer)
    check_tokens(len(ids), limits)
    sites = ("attn.rot_q", "attn.rot_k", "attn.v", "attn.pattern", "attn_out")
    captures = [captured(model, site, len(ids), layer=[layer]) for site in sites]
    taken = {
        name: to_float64(values)[0]
        for name, values in read(model, ids, captures, stopped=stopped).tensors.items()
    }
    names = token_names(tokens, len(ids))
    heads = tuple(
        Vectors(names, taken["attn.rot_q"][head], taken["attn.rot_k"][kv], taken["attn.v"][kv])
        for head, kv in enumerate(config.kv_head_of)
    )
    return LayerVectors(
        layer=layer,
        heads=heads,
        scale=config.d_head**-0.5 if config.score_scale is None else config.score_scale,
        window=config.window_of(layer),
        patterns=taken["attn.pattern"],
        attn_out=taken["attn_out"],
        output=layer_output(model, layer),
    )


def layer_output(model: GPT, layer: int) -> Output:
    """One layer's W_O as the labs write it: z · W_O + b."""
    attention = model.blocks[layer].attn
    assert isinstance(attention, Attention)
    w_o = to_float64(attention.o.weight).T
    bias = attention.o.bias
    return Output(w_o, np.zeros(w_o.shape[1]) if bias is None else to_float64(bias))


@dataclass(frozen=True, eq=False)
class UnturnedPair:
    """One query's q and one key's k (D,) before rotation, and how the model turns them.

    `dot` is the model's own for the two where they stand.
    """

    layer: int
    head: int
    query: int
    key: int
    q: Array
    k: Array
    pairing: Pairing
    frequencies: Array
    attention_factor: float
    dot: float


def unturned_pair(
    model: GPT,
    ids: Sequence[int],
    *,
    layer: int,
    head: int,
    query: int,
    key: int,
    stopped: Stopped = lambda: False,
    limits: LabLimits = LAB_LIMITS,
) -> UnturnedPair:
    """Real q and k for the rotation lab. Raises LabError for a model that does not rotate."""
    config = model.config
    ladder = of_model(config, len(ids))
    check_tokens(len(ids), limits)
    layer = index_of("layer", layer, config.n_layer)
    head = index_of("head", head, config.n_head)
    query, key = index_of("query", query, len(ids)), index_of("key", key, len(ids))
    captures = [
        captured(model, "attn.q", len(ids), layer=[layer], head=[head], position=[query]),
        captured(
            model,
            "attn.k",
            len(ids),
            layer=[layer],
            kv_head=[config.kv_head_of[head]],
            position=[key],
        ),
        captured(
            model, "attn.dots", len(ids), layer=[layer], head=[head], query=[query], key=[key]
        ),
    ]
    taken = read(model, ids, captures, stopped=stopped).tensors
    attention = model.blocks[layer].attn
    assert isinstance(attention, Attention)
    with torch.inference_mode():
        # As attention does it: the norm on q and k, where there is one, comes before the turn.
        q, k = (
            values if norm is None else norm(values)
            for values, norm in (
                (taken["attn.q"], attention.q_norm),
                (taken["attn.k"], attention.k_norm),
            )
        )
    return UnturnedPair(
        layer=layer,
        head=head,
        query=query,
        key=key,
        q=to_float64(q).reshape(-1),
        k=to_float64(k).reshape(-1),
        pairing=config.rope_pairing,
        frequencies=ladder.inverse_frequencies,
        attention_factor=ladder.attention_factor,
        dot=float(taken["attn.dots"]),
    )


def captured(model: GPT, site: str, n_tokens: int, **selected: Asked) -> Capture:
    """A capture of one site, selected by axis: `layer=[3]`, `position=[-1]`."""
    asked: dict[Axis, Asked] = {axis: selected[axis] for axis in _AXES if axis in selected}
    return Capture.resolve(SITES[site], asked, model.config, n_tokens)


_AXES: tuple[Axis, ...] = ("layer", "head", "kv_head", "position", "query", "key")


def check_tokens(n_tokens: int, limits: LabLimits) -> None:
    """Raises LabError for more tokens than a lab holds."""
    if not 1 <= n_tokens <= limits.tokens:
        raise LabError("text", f"the text has {n_tokens} tokens; a lab takes 1 to {limits.tokens}")


def to_float64(values: Tensor) -> Array:
    """On the host, in float64."""
    array: Array = values.detach().cpu().double().numpy()
    return array
