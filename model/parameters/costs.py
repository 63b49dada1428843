"""Costs: what a model's shape asks of a machine. Work in FLOPs, memory in bytes. No weights.

A multiply-add of a matrix multiplication counts as 2 FLOPs. Norms, softmax, activations, biases,
rotation, additions and the embedding look-up are not counted: none of them is a matrix
multiplication, and torch's FlopCounterMode leaves them out too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from model.config import GPTConfig
from model.parameters.formula import Formula, Polynomial, Sizes, symbol, total, work
from model.parameters.inventory import BYTES, ParameterError, inventory
from model.parameters.totals import totals

Work = Literal["attention_projections", "attention_over_context", "feed_forward", "unembedding"]
WORK: tuple[Work, ...] = get_args(Work)
DEFAULT_CONTEXT = 1024


@dataclass(frozen=True)
class Flops:
    """Matrix multiplications by component, and together.

    attention_projections: W_q, W_k, W_v, W_o; attention_over_context: q·k and pattern·v.
    """

    by_component: dict[Work, Formula]
    total: Formula


@dataclass(frozen=True)
class Training:
    """FLOPs of forward and backward, as PaLM counts them (Chowdhery et al. 2022, appendix B).

    6·M + 12·L·H·D·T a token, M the weights that multiply: the unembedding does, the embedding
    look-up does not. Attention is counted over the whole context, the causal half included.
    """

    multiplying_parameters: Formula
    per_token: Formula
    per_sequence: Formula


@dataclass(frozen=True)
class Memory:
    """Bytes at the context asked for.

    `weights` by dtype (int8 without its scales), `kv_cache` by dtype; of one run in float32:
    `attention_maps` (all layers' patterns), `attention_results` (every head's own write),
    `logits` (every position). Of training in float32: `gradients`, and `optimizer`, AdamW's two
    moments.
    """

    weights: dict[str, Formula]
    kv_cache: dict[str, Formula]
    attention_maps: Formula
    attention_results: Formula
    logits: Formula
    gradients: Formula
    optimizer: Formula


@dataclass(frozen=True)
class Share:
    """How one token's forward FLOPs divide at one context; the four shares add up to 1."""

    context: int
    flops: int
    shares: dict[Work, float]


@dataclass(frozen=True)
class Costs:
    """Costs at one context, in tokens.

    `token` is the forward pass of the last token of that context with keys and values kept,
    `prompt` that of all its tokens at once, counting only the pairs that the mask leaves.
    `prompt_square` counts every query with every key: what an implementation does that computes
    whole rows and masks them. `balance` is the first context at which a token's work over the
    context reaches that of the feed-forward, whatever n_ctx allows; None where windows keep it
    from growing.
    """

    context: int
    token: Flops
    prompt: Flops
    prompt_square: Flops
    training: Training
    memory: Memory
    shares: tuple[Share, ...]
    balance: int | None


def default_context(*configs: GPTConfig) -> int:
    """1024 tokens, or the longest context that all the configs hold."""
    return min(DEFAULT_CONTEXT, *(config.n_ctx for config in configs))


def costs(config: GPTConfig, context: int | None = None) -> Costs:
    """Raises ParameterError for a context that the model cannot hold."""
    context = default_context(config) if context is None else context
    if not 1 <= context <= config.n_ctx:
        raise ParameterError(f"context is {context}; this model holds 1 to {config.n_ctx} tokens")
    bill = _Bill(config, context)
    return Costs(
        context=context,
        token=bill.token(),
        prompt=bill.prompt(bill.twice_pairs()),
        prompt_square=bill.prompt(2 * symbol("L") * symbol("T") * symbol("T")),
        training=bill.training(),
        memory=bill.memory(),
        shares=shares(config, context),
        balance=_balance(config),
    )


def keys_seen(config: GPTConfig, position: int) -> int:
    """How many keys the query at `position` (from 0) may see, summed over the layers."""
    windows = map(config.window_of, range(config.n_layer))
    return sum(min(position + 1, window or position + 1) for window in windows)


def pairs_seen(config: GPTConfig, context: int) -> int:
    """How many query-key pairs of `context` tokens the mask leaves, summed over the layers."""
    pairs = 0
    for layer in range(config.n_layer):
        width = min(config.window_of(layer) or context, context)
        pairs += width * (width + 1) // 2 + (context - width) * width
    return pairs


def shares(config: GPTConfig, context: int) -> tuple[Share, ...]:
    """At every power of two from 128 that the model holds, at `context` and at n_ctx."""
    powers = [2**n for n in range(7, 31) if 2**n <= config.n_ctx]
    return tuple(_share(config, n) for n in sorted({*powers, context, config.n_ctx}))


def _share(config: GPTConfig, context: int) -> Share:
    flops = _Bill(config, context).token()
    return Share(
        context,
        flops.total.count,
        {name: part.count / flops.total.count for name, part in flops.by_component.items()},
    )


def _balance(config: GPTConfig) -> int | None:
    windowed = config.window is not None and any(
        config.window_of(layer) for layer in range(config.n_layer)
    )
    weights = config.d_model * config.d_mlp * (3 if config.gated else 2)
    # 4·H·D·T = 2·weights, rounded up.
    return None if windowed else -(-weights // (2 * config.n_head * config.d_head))


class _Bill:
    """Writes the formulas of one config at one context."""

    def __init__(self, config: GPTConfig, context: int) -> None:
        self.config = config
        self.sizes = Sizes.of(config)
        s, layers = self.sizes, self.sizes.L
        gate = 1 if config.gated else 0
        self.weights: dict[Work, Polynomial] = {
            "attention_projections": layers * (2 * s.q + 2 * s.kv) * s.d,
            "feed_forward": layers * (2 + gate) * s.d * s.mlp,
            "unembedding": s.V * s.d,
        }
        windows = [config.window_of(layer) for layer in range(config.n_layer)]
        self.windowed = any(window is not None and window < context for window in windows)
        self.values = {
            **s.values,
            "T": context,
            "S": keys_seen(config, context - 1),
            "P": pairs_seen(config, context),
            "M": total(self.weights.values()).value(s.values),
        }

    def token(self) -> Flops:
        over = 4 * self.keys() * self.sizes.q
        return self._flops({name: 2 * weights for name, weights in self.weights.items()}, over)

    def prompt(self, twice_pairs: Polynomial) -> Flops:
        """Doubled, as T·(T + 1) / 2 pairs have no whole factors: 4·L·pairs·d is 2·L·(T² + T)·d."""
        tokens = symbol("T")
        linear = {name: 2 * tokens * weights for name, weights in self.weights.items()}
        return self._flops(linear, 2 * twice_pairs * self.sizes.q)

    def keys(self) -> Polynomial:
        return symbol("S") if self.windowed else symbol("L") * symbol("T")

    def twice_pairs(self) -> Polynomial:
        layers, tokens = symbol("L"), symbol("T")
        return 2 * symbol("P") if self.windowed else layers * tokens * tokens + layers * tokens

    def _flops(self, linear: dict[Work, Polynomial], over: Polynomial) -> Flops:
        parts = {**linear, "attention_over_context": over}
        return Flops(
            {name: work(parts[name], self.values) for name in WORK},
            work(total(parts[name] for name in WORK), self.values),
        )

    def training(self) -> Training:
        over = 12 * self.keys() * self.sizes.q
        per_token = 6 * symbol("M") + over
        return Training(
            work(total(self.weights.values()), self.values),
            work(per_token, self.values),
            work(symbol("T") * per_token, self.values),
        )

    def memory(self) -> Memory:
        s, tokens, parameters = self.sizes, symbol("T"), symbol("N")
        values = {**self.values, "N": totals(self.config, inventory(self.config)).unique}
        kept = s.L * symbol("K") * s.D * tokens
        maps = s.L * symbol("H") * tokens
        return Memory(
            weights={
                d: work(BYTES[d] * parameters, values) for d in ("float32", "bfloat16", "int8")
            },
            kv_cache={d: work(2 * BYTES[d] * kept, values) for d in ("float32", "bfloat16")},
            attention_maps=work(4 * maps * tokens, values),
            attention_results=work(4 * maps * s.d, values),
            logits=work(4 * tokens * s.V, values),
            gradients=work(4 * parameters, values),
            optimizer=work(8 * parameters, values),
        )
