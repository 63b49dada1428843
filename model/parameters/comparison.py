"""Comparison: several configs side by side, each quantity with its ratio to the first config's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from model.config import GPTConfig
from model.parameters.costs import costs, default_context
from model.parameters.inventory import COMPONENTS, ParameterError, by_component, inventory
from model.parameters.totals import TOTAL_NAMES, totals
from model.parameters.tree import grow


@dataclass(frozen=True)
class Row:
    """One quantity: a value for each config, and each value divided by the first (None by 0)."""

    name: str
    values: tuple[int, ...]
    ratios: tuple[float | None, ...]


@dataclass(frozen=True)
class Comparison:
    """`changed` holds the config fields that are not the same everywhere, one value a config."""

    names: tuple[str, ...]
    context: int
    changed: dict[str, tuple[Any, ...]]
    rows: tuple[Row, ...]


def vary(config: GPTConfig, changes: Mapping[str, Any]) -> GPTConfig:
    """The config with some fields changed, those that follow from others following again.

    Twice the heads on the same width means heads of half the size, unless `changes` says a size:
    n_kv_head follows n_head where they are equal, d_head is d_model / n_head, d_mlp 4 d_model and
    rotary_dim d_head where they were. Raises ConfigError as GPTConfig does.
    """
    follows = {
        "n_kv_head": config.n_head,
        "d_head": config.d_model // config.n_head,
        "d_mlp": 4 * config.d_model,
        "rotary_dim": config.d_head,
    }
    values = config.to_dict()
    values |= {name: None for name, value in follows.items() if values[name] == value}
    return GPTConfig.from_dict({**values, **changes})


def compare(configs: Mapping[str, GPTConfig], context: int | None = None) -> Comparison:
    """Costs at one `context` for all, by default the longest up to 1024 tokens that all hold.

    Raises ParameterError for fewer than two configs, and for a context that one cannot hold.
    """
    if len(configs) < 2:
        raise ParameterError(f"{len(configs)} config is given; a comparison needs at least 2")
    context = default_context(*configs.values()) if context is None else context
    columns = [_quantities(config, context) for config in configs.values()]
    return Comparison(
        names=tuple(configs),
        context=context,
        changed=_changed(list(configs.values())),
        rows=tuple(_row(name, [column[name] for column in columns]) for name in columns[0]),
    )


def _quantities(config: GPTConfig, context: int) -> dict[str, int]:
    tensors = inventory(config)
    counts, held, bill = totals(config, tensors), by_component(tensors), costs(config, context)
    one_layer = grow(replace(config, n_layer=1))  # every block holds the same
    return {
        **{f"totals.{name}": getattr(counts, name) for name in TOTAL_NAMES},
        **{f"components.{name}": held[name] for name in COMPONENTS},
        "block": one_layer.find("blocks.0").count,
        "block.attention": one_layer.find("blocks.0.attn").count,
        "block.feed_forward": one_layer.find("blocks.0.mlp").count,
        "flops.token": bill.token.total.count,
        "flops.prompt": bill.prompt.total.count,
        "flops.training_token": bill.training.per_token.count,
        **{f"bytes.weights.{d}": part.count for d, part in bill.memory.weights.items()},
        **{f"bytes.kv_cache.{d}": part.count for d, part in bill.memory.kv_cache.items()},
        "bytes.attention_maps": bill.memory.attention_maps.count,
        "bytes.logits": bill.memory.logits.count,
        "bytes.optimizer": bill.memory.optimizer.count,
    }


def _row(name: str, values: list[int]) -> Row:
    first = values[0]
    return Row(name, tuple(values), tuple(value / first if first else None for value in values))


def _changed(configs: list[GPTConfig]) -> dict[str, tuple[Any, ...]]:
    columns = {f.name: tuple(getattr(c, f.name) for c in configs) for f in fields(GPTConfig)}
    return {
        name: values
        for name, values in columns.items()
        if any(value != values[0] for value in values)
    }
