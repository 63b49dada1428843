"""Rotary positions: frequencies, their scaling, and the rotation. Knows nothing of attention.

Su et al. 2021 (RoFormer), eq. 15: pair i of a vector at position p is turned by p · f_i with
f_i = base^(−2i/D). Shapes: T position, D rotary_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.config import Pairing, RopeScaling


def inverse_frequencies(
    rotary_dim: int, base: float, scaling: RopeScaling | None = None, *, n_tokens: int = 0
) -> tuple[Tensor, float]:
    """Radians a position for each pair, (D/2,) float64, and the factor on cos and sin.

    `n_tokens` is the length of the run: dynamic scaling depends on it, no other kind does.
    """
    pair = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    if scaling is None:
        return base**-pair, 1.0
    factor = scaling.factor
    if scaling.kind == "linear":
        return base**-pair / factor, 1.0
    if scaling.kind == "ntk":
        return stretched_base(base, rotary_dim, factor) ** -pair, 1.0
    assert scaling.original_context is not None  # RopeScaling refuses the others without it
    if scaling.kind == "dynamic":
        grown = factor * n_tokens / scaling.original_context - factor + 1
        if n_tokens <= scaling.original_context:
            return base**-pair, 1.0
        return stretched_base(base, rotary_dim, grown) ** -pair, 1.0
    if scaling.kind == "yarn":
        return _yarn(base**-pair, base, rotary_dim, scaling), _yarn_attention_factor(scaling)
    return _llama3(base**-pair, scaling), 1.0


def stretched_base(base: float, rotary_dim: int, factor: float) -> float:
    """NTK-aware scaling: the base under which the slowest pair is `factor` times slower."""
    if rotary_dim == 2:
        return base
    return float(base * factor ** (rotary_dim / (rotary_dim - 2)))


def _yarn(plain: Tensor, base: float, rotary_dim: int, scaling: RopeScaling) -> Tensor:
    """Peng et al. 2023 (YaRN), eq. 23: slow pairs interpolate, fast ones stay, a ramp between."""
    assert scaling.original_context is not None
    low, high = (
        rotary_dim
        * math.log(scaling.original_context / (turns * 2 * math.pi))
        / (2 * math.log(base))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), rotary_dim - 1)
    ramp = torch.arange(len(plain), dtype=torch.float64) - low
    interpolated = (ramp / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - interpolated) + plain / scaling.factor * interpolated


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths divide by the factor, short ones stay, a blend between."""
    assert scaling.original_context is not None
    turns = scaling.original_context * plain / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * plain / scaling.factor + blend * plain


def rotation_tables(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """cos and sin of every position and pair, (T, D/2) each, float64: angle = position · f_i."""
    angles = positions.to(torch.float64)[:, None] * frequencies[None, :]
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """Turn the first D of the last axis of x (…, T, ≥ D), pair by pair; the rest stays.

    "interleaved" pairs dimensions (2i, 2i+1), as the paper does; "half" pairs (i, i + D/2), as
    Hugging Face checkpoints do. Computed in the tables' precision, given back in x's.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    wide = turned.to(cos.dtype)
    if pairing == "half":
        a, b = wide[..., :half], wide[..., half:]
        out = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    elif torch.compiler.is_compiling():  # torch's compiler writes no code for complex numbers
        a, b = wide[..., 0::2], wide[..., 1::2]
        out = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        # Neighbours are the two parts of one complex number: (a + bi) · (cos + i sin).
        pairs = torch.view_as_complex(wide.reshape(*wide.shape[:-1], half, 2))
        out = torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    out = out.to(x.dtype)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
