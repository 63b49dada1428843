"""Parameters: what is where in a model, how many, why, and at what cost.

All but `excerpt` and `distribution`, which look at one tensor's numbers, work from a GPTConfig
alone: no weights are made. Knows nothing of HTTP.
"""

from model.parameters.comparison import Comparison, compare, vary
from model.parameters.costs import Costs, costs
from model.parameters.distribution import histogram, statistics
from model.parameters.excerpt import Excerpt, of_head
from model.parameters.explain import derive, explain
from model.parameters.formula import SYMBOLS, Formula
from model.parameters.inventory import (
    COMPONENTS,
    ParameterError,
    TensorInfo,
    by_component,
    differences,
    inventory,
)
from model.parameters.report import Report, report
from model.parameters.totals import MEANING, TOTAL_NAMES, Totals, totals
from model.parameters.tree import Node, count_nodes, grow

__all__ = [
    "COMPONENTS",
    "MEANING",
    "SYMBOLS",
    "TOTAL_NAMES",
    "Comparison",
    "Costs",
    "Excerpt",
    "Formula",
    "Node",
    "ParameterError",
    "Report",
    "TensorInfo",
    "Totals",
    "by_component",
    "compare",
    "costs",
    "count_nodes",
    "derive",
    "differences",
    "explain",
    "grow",
    "histogram",
    "inventory",
    "of_head",
    "report",
    "statistics",
    "totals",
    "vary",
]
