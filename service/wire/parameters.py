"""A model's parameter report as plain JSON values. Knows nothing of HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from model.config import GPTConfig
from model.parameters import (
    MEANING,
    SYMBOLS,
    Comparison,
    Costs,
    Formula,
    Node,
    Report,
    TensorInfo,
    inventory,
    totals,
)
from model.parameters.costs import Flops

Fields = dict[str, Any]


def report_fields(report: Report, *, explained: Mapping[str, str] | None = None) -> Fields:
    """Everything but whose weights they are."""
    agreement = report.agreement
    return {
        "kind": "report",
        "config": report.config.to_dict(),
        "totals": dataclasses.asdict(report.totals),
        "totals_explained": MEANING,
        "tensors": [tensor_fields(tensor) for tensor in report.tensors],
        "tree": node_fields(report.tree),
        "costs": costs_fields(report.costs),
        "checks": {
            "leaves": agreement.leaves,
            "tensors": agreement.tensors,
            "held": agreement.held,
            "exact": agreement.exact,
            "differences": list(agreement.differences),
        },
        "legend": SYMBOLS,
        "explain": None if explained is None else dict(explained),
    }


def tensor_fields(tensor: TensorInfo) -> Fields:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "axes": list(tensor.axes),
        "dtype": tensor.dtype,
        "count": tensor.count,
        "bytes": tensor.bytes,
        "tied_to": tensor.tied_to,
        "component": tensor.component,
        "layer": tensor.layer,
    }


def node_fields(node: Node) -> Fields:
    return {
        "id": node.id,
        "kind": node.kind,
        **formula_fields(node.formula),
        "tied_to": node.tied_to,
        "children": [node_fields(child) for child in node.children],
    }


def formula_fields(formula: Formula) -> Fields:
    return {
        "count": formula.count,
        "formula": formula.text,
        "symbols": formula.symbols,
        "worked": formula.worked,
    }


def costs_fields(costs: Costs) -> Fields:
    training, memory = costs.training, costs.memory
    return {
        "context": costs.context,
        "flops": {
            "token": _flops_fields(costs.token),
            "prompt": _flops_fields(costs.prompt),
            "prompt_square": _flops_fields(costs.prompt_square),
            "training_token": formula_fields(training.per_token),
            "training_sequence": formula_fields(training.per_sequence),
            "multiplying_parameters": formula_fields(training.multiplying_parameters),
        },
        "bytes": {
            "weights": {dtype: formula_fields(f) for dtype, f in memory.weights.items()},
            "kv_cache": {dtype: formula_fields(f) for dtype, f in memory.kv_cache.items()},
            "attention_maps": formula_fields(memory.attention_maps),
            "attention_results": formula_fields(memory.attention_results),
            "logits": formula_fields(memory.logits),
            "gradients": formula_fields(memory.gradients),
            "optimizer": formula_fields(memory.optimizer),
        },
        "shares": [dataclasses.asdict(share) for share in costs.shares],
        "balance": costs.balance,
    }


def _flops_fields(flops: Flops) -> Fields:
    return {
        "total": formula_fields(flops.total),
        "by_component": {name: formula_fields(f) for name, f in flops.by_component.items()},
    }


def comparison_fields(comparison: Comparison, configs: Mapping[str, GPTConfig]) -> Fields:
    return {
        "kind": "comparison",
        "names": list(comparison.names),
        "configs": [config.to_dict() for config in configs.values()],
        "context": comparison.context,
        "changed": {name: list(values) for name, values in comparison.changed.items()},
        "rows": [
            {"name": row.name, "values": list(row.values), "ratios": list(row.ratios)}
            for row in comparison.rows
        ],
    }


def preset_fields(name: str, config: GPTConfig) -> Fields:
    counts = totals(config, inventory(config))
    return {
        "name": name,
        "parameters": counts.unique,
        "totals": dataclasses.asdict(counts),
        "config": config.to_dict(),
    }
