"""Report: inventory, tree, totals and costs of one config, checked against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.config import GPTConfig
from model.parameters.costs import Costs, costs
from model.parameters.inventory import TensorInfo, differences, inventory
from model.parameters.totals import Totals, totals
from model.parameters.tree import Node, grow


@dataclass(frozen=True)
class Agreement:
    """The same count arrived at by ways that know nothing of each other.

    `leaves` adds up the tree's leaves, `tensors` the inventory's shapes, `held` what a loaded model
    really holds (None without one). `differences` names every tensor that the model has and the
    config does not ask for, or the other way round, or in another shape.
    """

    leaves: int
    tensors: int
    held: int | None
    differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        counts = {self.leaves, self.tensors} | ({self.held} if self.held is not None else set())
        return len(counts) == 1 and not self.differences


@dataclass(frozen=True)
class Report:
    """What is in a model, and what it costs. Counts are numbers, sizes bytes, work FLOPs."""

    config: GPTConfig
    totals: Totals
    tensors: list[TensorInfo]
    tree: Node
    costs: Costs
    agreement: Agreement


def report(
    config: GPTConfig,
    *,
    context: int | None = None,
    dtype: str = "float32",
    depth: int | None = None,
    held: Mapping[str, Sequence[int]] | None = None,
) -> Report:
    """`context` as in `costs`, `dtype` that of the stored tensors, `depth` as in `grow`.

    `held` are the names and shapes of a loaded model's tensors, with which the report is then
    compared. Raises ParameterError as `costs` and `inventory` do.
    """
    tensors, tree = inventory(config, dtype=dtype), grow(config, depth)
    counts = totals(config, tensors)
    return Report(
        config=config,
        totals=counts,
        tensors=tensors,
        tree=tree,
        costs=costs(config, context),
        agreement=Agreement(
            leaves=sum(node.count for node in tree.walk() if not node.children),
            tensors=counts.unique,
            held=None if held is None else _held(tensors, held),
            differences=() if held is None else tuple(_faults(tensors, held)),
        ),
    )


def _held(tensors: Sequence[TensorInfo], held: Mapping[str, Sequence[int]]) -> int:
    """Numbers in the model, a matrix that the config ties counted once."""
    tied = {tensor.name for tensor in tensors if tensor.tied_to is not None}
    return sum(math.prod(shape) for name, shape in held.items() if name not in tied)


def _faults(tensors: Sequence[TensorInfo], held: Mapping[str, Sequence[int]]) -> list[str]:
    return [
        f"{name}: {list(expected) if expected else 'absent'} by the config, "
        f"{list(found) if found else 'absent'} in the model"
        for name, expected, found in differences(tensors, held)
    ]
