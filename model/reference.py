"""The yardstick: a GPT's forward once more, in float64 and numpy, for the model to be held against.

Written apart from the model, from the papers: loops over heads, pairs and queries where the model
works on whole tensors. The two share no function: projections, norms, activations, frequencies and
their scalings, rotation, masks, softmax and the grouping of heads are written out a second time.
What they share is GPTConfig and the names of the tensors, so a checkpoint whose tensors were
misread is wrong in both: formats are tested against other libraries.

Shapes: T tokens, C d_model, F d_mlp, H heads, D d_head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.config import GPTConfig, RopeScaling

Array = NDArray[np.float64]
AT_ONCE = 8192  # rows of the unembedding that are in memory in float64 together


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """logits (T, V); patterns (L, H, T, T), query by key, each row summing to 1."""

    logits: Array
    patterns: Array


def reference_run(
    config: GPTConfig,
    weights: Mapping[str, Tensor],
    ids: Sequence[int],
    *,
    before_layer: Callable[[], None] = lambda: None,
) -> ReferenceRun:
    """What a model of this config with these weights computes for the token ids.

    `weights` are named as in the model's state_dict, of any dtype, on any device; one tensor at a
    time is brought to float64. What `before_layer` raises ends the run.
    """
    n_tokens = len(ids)
    x = _rows(weights["embed.weight"], ids)  # (T, C)
    if config.positions == "learned":
        x = x + _rows(weights["pos_embed.weight"], range(n_tokens))
    patterns = np.zeros((config.n_layer, config.n_head, n_tokens, n_tokens))
    for layer in range(config.n_layer):
        before_layer()
        block = _Block(config, weights, layer)
        attn_out, patterns[layer] = block.attention(block.norm("ln1", x))
        if config.parallel_residual:
            x = x + attn_out + block.feed_forward(block.norm("ln2", x))
        else:
            x = x + attn_out
            x = x + block.feed_forward(block.norm("ln2", x))
    x = _Part(config, weights, "").norm("ln_final", x)
    unembed = weights["embed.weight" if config.tied else "unembed.weight"]
    logits = np.empty((n_tokens, config.vocab_size))
    for first in range(0, config.vocab_size, AT_ONCE):
        words = range(first, min(first + AT_ONCE, config.vocab_size))
        logits[:, words.start : words.stop] = x @ _rows(unembed, words).T
    return ReferenceRun(logits, patterns)


def _rows(tensor: Tensor, rows: Sequence[int]) -> Array:
    return _float64(tensor[torch.tensor(list(rows), device=tensor.device)])


def _float64(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().double().numpy()
    return array


class _Part:
    """The tensors whose names begin alike, and the two things that every part does with them."""

    def __init__(self, config: GPTConfig, weights: Mapping[str, Tensor], prefix: str) -> None:
        self.config = config
        self._weights = weights
        self._prefix = prefix

    def tensor(self, name: str) -> Array:
        return _float64(self._weights[self._prefix + name])

    def bias(self, name: str) -> Array | float:
        """0 where the model has no such bias."""
        there = f"{self._prefix}{name}.bias" in self._weights
        return self.tensor(f"{name}.bias") if there else 0.0

    def linear(self, name: str, x: Array) -> Array:
        """x Wᵀ + b: (T, in) -> (T, out)"""
        return x @ self.tensor(f"{name}.weight").T + self.bias(name)

    def norm(self, name: str, x: Array) -> Array:
        """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last axis."""
        if self.config.norm == "layernorm":
            x = x - x.mean(axis=-1, keepdims=True)
        return self.by_size(name, x)

    def by_size(self, name: str, x: Array) -> Array:
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config.norm_eps)
        normed: Array = x / size * self.tensor(f"{name}.weight") + self.bias(name)
        return normed


class _Block(_Part):
    """One layer: what its two sublayers write."""

    def __init__(self, config: GPTConfig, weights: Mapping[str, Tensor], layer: int) -> None:
        super().__init__(config, weights, f"blocks.{layer}.")
        self.window = config.window if _windowed(config, layer) else None

    def attention(self, x: Array) -> tuple[Array, Array]:
        """(T, C) -> (T, C) and the patterns (H, T, T). Vaswani et al. 2017, eq. 1."""
        config, n_tokens, size = self.config, len(x), self.config.d_head
        q, k, v = (self.linear(f"attn.{letter}", x) for letter in "qkv")
        patterns = np.zeros((config.n_head, n_tokens, n_tokens))
        z = np.zeros((n_tokens, config.n_head * size))
        scale = 1 / math.sqrt(size) if config.score_scale is None else config.score_scale
        group = config.n_head // config.n_kv_head
        for head in range(config.n_head):
            own = slice(head * size, (head + 1) * size)
            shared = slice(head // group * size, (head // group + 1) * size)
            q_met, k_met = self.met("q", q[:, own]), self.met("k", k[:, shared])
            for query in range(n_tokens):
                # A query sees itself and what came before, in a window so many tokens in all.
                first = 0 if self.window is None else max(0, query - self.window + 1)
                scores = k_met[first : query + 1] @ q_met[query] * scale
                powers = np.exp(scores - scores.max())
                patterns[head, query, first : query + 1] = powers / powers.sum()
            z[:, own] = patterns[head] @ v[:, shared]
        return self.linear("attn.o", z), patterns

    def met(self, letter: str, x: Array) -> Array:
        """A head's queries or keys (T, D) as they meet in the dot product: normed, then turned."""
        if self.config.qk_norm:
            x = self.by_size(f"attn.{letter}_norm", x)
        return x if self.config.positions != "rope" else turned(x, self.config)

    def feed_forward(self, x: Array) -> Array:  # (T, C) -> (T, C)
        up = self.linear("mlp.up", x)  # (T, F)
        if self.config.activation == "swiglu":
            gate = self.linear("mlp.gate", x)
            return self.linear("mlp.down", gate * (1 + np.tanh(gate / 2)) / 2 * up)
        return self.linear("mlp.down", up * _gaussian_share(up, self.config.activation))


def _windowed(config: GPTConfig, layer: int) -> bool:
    return config.windowed_layers is None or layer in config.windowed_layers


def _gaussian_share(x: Array, activation: str) -> Array:
    """Hendrycks and Gimpel 2016: the normal distribution's Φ(x), or their approximation by tanh."""
    if activation == "gelu_tanh":
        return (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) / 2
    erf = np.vectorize(math.erf, otypes=[np.float64])
    share: Array = (1 + erf(x / math.sqrt(2))) / 2
    return share


def turned(x: Array, config: GPTConfig) -> Array:
    """One head's vectors (T, D), the one at position p turned by p · frequency, pair by pair.

    Su et al. 2021, eq. 15; what lies past rotary_dim stays.
    """
    frequencies, factor = frequencies_of(config, len(x))
    out = x.copy()
    for pair, frequency in enumerate(frequencies):
        if config.rope_pairing == "interleaved":
            one, other = 2 * pair, 2 * pair + 1
        else:
            one, other = pair, pair + config.rotary_dim // 2
        angle = np.arange(len(x)) * frequency
        cos, sin = factor * np.cos(angle), factor * np.sin(angle)
        out[:, one] = x[:, one] * cos - x[:, other] * sin
        out[:, other] = x[:, one] * sin + x[:, other] * cos
    return out


def frequencies_of(config: GPTConfig, n_tokens: int) -> tuple[list[float], float]:
    """Radians a position for each pair in a run of `n_tokens`, and the factor on cos and sin."""
    size, base, scaling = config.rotary_dim, config.rope_base, config.rope_scaling
    if scaling is not None and scaling.kind in ("ntk", "dynamic"):
        base = _grown_base(base, size, _growth(scaling, n_tokens))
    plain = [1 / base ** (2 * pair / size) for pair in range(size // 2)]
    if scaling is None or scaling.kind in ("ntk", "dynamic"):
        return plain, 1.0
    if scaling.kind == "linear":  # Chen et al. 2023: positions divided, so angles are
        return [frequency / scaling.factor for frequency in plain], 1.0
    if scaling.kind == "llama3":
        return [_as_llama3(frequency, scaling) for frequency in plain], 1.0
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1
    return _as_yarn(plain, config, scaling), factor


def _growth(scaling: RopeScaling, n_tokens: int) -> float:
    """By how much the context is stretched: always, or only by what a run is too long."""
    if scaling.kind == "ntk":
        return scaling.factor
    trained = scaling.original_context or 0
    excess = max(n_tokens, trained) / trained
    return scaling.factor * excess - (scaling.factor - 1)


def _grown_base(base: float, size: int, growth: float) -> float:
    """The base under which the slowest pair turns `growth` times slower; a lone pair is at 1."""
    return base if size == 2 else float(base * growth ** (size / (size - 2)))


def _as_llama3(frequency: float, scaling: RopeScaling) -> float:
    """Meta's Llama 3.1 code: long waves are divided, short ones kept, those between blended."""
    assert scaling.original_context is not None
    wave = 2 * math.pi / frequency
    if wave < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if wave > scaling.original_context / scaling.low_freq_factor:
        return frequency / scaling.factor
    kept = (scaling.original_context / wave - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def _as_yarn(plain: list[float], config: GPTConfig, scaling: RopeScaling) -> list[float]:
    """Peng et al. 2023, by its published code: between two pairs, a ramp from kept to divided."""
    assert scaling.original_context is not None
    trained, size = scaling.original_context, config.rotary_dim

    def pair_of(turns: float) -> float:
        """The (fractional) pair that makes so many turns over the trained context."""
        return size * math.log(trained / (2 * math.pi * turns), config.rope_base) / 2

    first = max(0, math.floor(pair_of(scaling.beta_fast)))
    last = min(size - 1, math.ceil(pair_of(scaling.beta_slow)))
    width = max(last - first, 0.001)  # the published code's way around 0
    found = []
    for pair, frequency in enumerate(plain):
        divided = min(1.0, max(0.0, (pair - first) / width))
        found.append(divided * frequency / scaling.factor + (1 - divided) * frequency)
    return found
