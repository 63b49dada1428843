"""Tensors in the forms that other packages take. None of them is needed before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fluoroscope_client.tensor import Tensor


def to_bertviz(tensor: Tensor) -> dict[str, Any]:
    """`attention` and `tokens` of BertViz' `head_view` and `model_view`.

    One torch tensor a layer, of shape (1, head, query, key). Raises ValueError for a tensor that
    is no whole map of a text with its tokens, ImportError without torch, which BertViz brings.
    """
    maps = _maps(tensor, "BertViz")
    torch = import_module("torch")
    layers = maps.reshape(-1, *maps.shape[-3:])
    return {
        "attention": tuple(torch.tensor(layer[None]) for layer in layers),
        "tokens": list(tensor.tokens),
    }


def to_circuitsvis(tensor: Tensor) -> dict[str, Any]:
    """`attention`, `tokens` and `attention_head_names` of CircuitsVis' `attention_heads`.

    `attention` has shape (head, query, key), the heads of all layers one after the other. Raises
    ValueError for a tensor that is no whole map of a text with its tokens.
    """
    maps = _maps(tensor, "CircuitsVis")
    names = [""]
    for axis in ("layer", "head"):
        held: Sequence[int] = [tensor.at[axis]] if axis in tensor.at else ()
        if axis in tensor.axes:
            held = tensor.indices(axis)
        if held:
            names = [f"{name}{axis[0].upper()}{index}" for name in names for index in held]
    return {
        "attention": maps.reshape(-1, *maps.shape[-2:]),
        "tokens": list(tensor.tokens),
        "attention_head_names": names,
    }


def to_xarray(tensor: Tensor) -> Any:
    """The `xarray.DataArray` of the same axes, with true indices as coordinates.

    Axes of tokens have a second coordinate, as `query_token`, where tokens are known. Raises
    ImportError without xarray.
    """
    xarray = import_module("xarray")
    coords: dict[str, Any] = dict(tensor.at)
    for axis in tensor.axes:
        labels = tensor.labels(axis)
        indices = list(tensor.indices(axis))
        coords[axis] = labels if axis == "stat" else indices
        if labels != list(map(str, indices)) and axis != "stat":
            coords[f"{axis}_token"] = (axis, labels)
    return xarray.DataArray(
        tensor.values,
        dims=tensor.axes,
        coords=coords,
        name=tensor.name,
        attrs={"site": tensor.site},
    )


def _maps(tensor: Tensor, package: str) -> Any:
    """The values with axes (…, head, query, key)."""
    whole = len(tensor.tokens)
    if tensor.axes[-2:] != ("query", "key") or not set(tensor.axes[:-2]) <= {"layer", "head"}:
        raise ValueError(f"{package} shows maps of query and key; {tensor.name} has {tensor.axes}")
    if not whole or tensor.values.shape[-2:] != (whole, whole):
        raise ValueError(f"{package} shows whole maps with their tokens; {tensor!r} is a part")
    values = np.array(tensor.values)
    return values if "head" in tensor.axes else values[..., None, :, :]
