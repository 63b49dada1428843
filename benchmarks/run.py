"""`python -m benchmarks`: measure the rows, write results.json, then the page and the plot."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.report import write_page
from benchmarks.row import Result
from benchmarks.sizes import BUILD, SIZES
from benchmarks.timing import Effort

HERE = Path(__file__).parent
BOTH = list(SIZES)


@dataclass(frozen=True)
class Plan:
    tokens: list[int]
    sizes: list[str]
    effort: Effort


ROWS = {
    "requests": Plan([32, 128, 256, 512], BOTH, Effort(rounds=5, seconds=60)),
    "selection": Plan([256], BOTH, Effort(rounds=20, seconds=15)),
    "overhead": Plan([32, 128, 256, 512], BOTH, Effort(rounds=10, seconds=15)),
    "encoder": Plan([32, 256, 512], [], Effort(rounds=5, seconds=5)),
    "memory": Plan([128, 256, 512], BOTH, Effort(rounds=1, seconds=0)),
    "load": Plan([128], BOTH, Effort(rounds=10, seconds=10)),
    "taps": Plan([32, 256], BOTH, Effort(rounds=30, seconds=20)),
    "generation": Plan([32, 256], BOTH, Effort(rounds=5, seconds=40)),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--rows", default="", help=f"comma-separated, of {', '.join(ROWS)}")
    parser.add_argument(
        "--quick", action="store_true", help="32 tokens, few rounds, results kept apart"
    )
    given = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / "quick.json" if given.quick else HERE / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    rows = results.setdefault("rows", {})
    results["machine"] = describe()
    for name in [row for row in given.rows.split(",") if row] or list(ROWS):
        plan = ROWS[name]
        if given.quick:
            plan = Plan([32], plan.sizes, Effort(rounds=3, seconds=0))
        load = os.getloadavg()[0]
        rows[name] = {**_apart(name, plan).to_dict(), "load_before": round(load, 2)}
        rows = results["rows"] = {row: rows[row] for row in ROWS if row in rows}
        file.write_text(json.dumps(_rounded(results), indent=1, ensure_ascii=False) + "\n")
        for bar in rows[name]["bars"]:
            met = "met" if bar["met"] else "MISSED"
            print(f"{met:6} {bar['says']}: {bar['measured']:.3g} {bar['sign']} {bar['bound']:g}")
        print(f"{name}: {len(rows[name]['measurements'])} measurements", flush=True)
    if not given.quick:
        write_page(results, HERE)


def _apart(name: str, plan: Plan) -> Result:
    """The row in a fresh process, so that no row inherits another's memory or threads."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, name, plan).result()


def _measure(name: str, plan: Plan) -> Result:
    measure: Callable[..., Result] = import_module(f"benchmarks.rows.{name}").measure
    return measure(tokens=plan.tokens, sizes=plan.sizes, effort=plan.effort)


def _rounded(value: Any) -> Any:
    """Five significant digits: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
