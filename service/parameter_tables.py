"""A parameter report as tables with bars in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from model.config import GPTConfig
from model.parameters import MEANING, TOTAL_NAMES, Comparison, Costs, Node, Report

_BAR = 16
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PARTS = {
    "embedding": "token embedding",
    "positions": "position embedding",
    "blocks": "blocks",
    "attention": "attention",
    "head": "one head",
    "kv_head": "one key/value head",
    "output_bias": "output bias",
    "feed_forward": "feed-forward",
    "norm": "norm",
    "gate": "gate",
    "up": "up",
    "down": "down",
    "unembedding": "unembedding",
}


def print_report(console: Console, name: str, report: Report) -> None:
    """The parts and their shares, the totals under their names, and the costs."""
    count = report.totals.unique
    console.print(f"[bold]{name}[/bold]: {count:,} parameters  {_sizes(report.config)}")
    console.print(_parts_table(console, report.tree))
    console.print(f"{report.tree.formula.text}\n= {report.tree.formula.worked}", markup=False)
    console.print()
    console.print(_block_table(console, report.tree.find("blocks.0")))
    console.print()
    console.print(_totals_table(report))
    console.print()
    console.print(_costs_table(console, report.costs))


def _sizes(config: GPTConfig) -> str:
    heads = f"{config.n_head} heads of {config.d_head}"
    if config.n_kv_head != config.n_head:
        heads += f" over {config.n_kv_head}"
    return (
        f"(L {config.n_layer}, d {config.d_model:,}, {heads}, f {config.d_mlp:,}, "
        f"V {config.vocab_size:,}, n_ctx {config.n_ctx:,})"
    )


def _parts_table(console: Console, tree: Node) -> Table:
    """Shares are of the whole model."""
    table = _table("part", ">count", ">share", "", "formula")
    for part in tree.children:
        label = "final norm" if part.kind == "norm" else _PARTS[part.kind]
        if part.kind == "blocks":
            label = f"{label}, {len(part.children)} of them"
        _add(console, table, label, part, tree)
    return table


def _block_table(console: Console, block: Node) -> Table:
    """Shares are of one block; what is the same in every head is shown once."""
    table = _table("one block", ">count", ">share", "", "formula")
    for part in block.children:
        label = part.id.rpartition(".")[2] if part.kind == "norm" else _PARTS[part.kind]
        _add(console, table, label, part, block)
        for inner, node in _inside(part):
            _add(console, table, f"  {inner}", node, block)
    _add(console, table, "together", block, block)
    return table


def _inside(part: Node) -> Iterator[tuple[str, Node]]:
    shown: set[str] = set()
    for child in part.children:
        if child.kind in ("head", "kv_head"):
            if child.kind not in shown:
                shown.add(child.kind)
                many = sum(other.kind == child.kind for other in part.children)
                yield f"{_PARTS[child.kind]}, of {many}", child
        elif child.kind == "norm":
            yield child.id.rpartition(".")[2], child
        else:
            yield _PARTS[child.kind], child


def _add(console: Console, table: Table, label: str, part: Node, whole: Node) -> None:
    share = part.count / whole.count
    table.add_row(
        label,
        f"{part.count:,}",
        "tied" if part.tied_to else f"{share:.1%}",
        bar(share, ascii_only=console.options.ascii_only),
        f"is {part.tied_to}" if part.tied_to else part.formula.text,
    )


def bar(share: float, *, ascii_only: bool = False) -> str:
    """A share of 1 as blocks, to an eighth of one; anything over 0 shows."""
    if ascii_only:
        return "#" * max(round(share * _BAR), int(share > 0))
    eighths = max(round(share * _BAR * 8), int(share > 0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _totals_table(report: Report) -> Table:
    table = _table("counted", ">parameters", "which is")
    for name in TOTAL_NAMES:
        count = getattr(report.totals, name)
        table.add_row(name.replace("_", " "), f"{count:,}", MEANING[name]["en"])
    return table


def _costs_table(console: Console, costs: Costs) -> Table:
    table = _table(f"cost at {costs.context:,} tokens", ">", ">share", "")
    token = costs.token
    table.add_row("forward, the last token", _scaled(token.total.count, "FLOP"))
    for name, part in token.by_component.items():
        share = part.count / token.total.count
        table.add_row(
            f"  {name.replace('_', ' ')}",
            _scaled(part.count, "FLOP"),
            f"{share:.1%}",
            bar(share, ascii_only=console.options.ascii_only),
        )
    table.add_row("forward, the prompt", _scaled(costs.prompt.total.count, "FLOP"))
    table.add_row("training, a token", _scaled(costs.training.per_token.count, "FLOP"))
    memory = costs.memory
    for dtype, formula in memory.weights.items():
        table.add_row(f"weights, {dtype}", _scaled(formula.count, "B"))
    for dtype, formula in memory.kv_cache.items():
        table.add_row(f"keys and values, {dtype}", _scaled(formula.count, "B"))
    table.add_row("attention maps, float32", _scaled(memory.attention_maps.count, "B"))
    table.add_row("AdamW's moments, float32", _scaled(memory.optimizer.count, "B"))
    if costs.balance is not None:
        table.add_row("attention = feed-forward at", f"{costs.balance:,} tokens")
    return table


def _scaled(number: int, unit: str) -> str:
    """In decimal steps, as sizes of models and speeds of machines are quoted."""
    value, prefix = float(number), ""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if value < 1000 or prefix == "E":
            break
        value /= 1000
    return f"{value:,.4g} {prefix}{unit}"


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Every quantity, and its ratio to the first model's."""
    console.print(f"costs at {comparison.context:,} tokens; × is the ratio to the first")
    table = _table("", *(f">{name}" for name in comparison.names))
    for name, values in comparison.changed.items():
        table.add_row(name, *map(_written, values))
    table.add_section()
    for row in comparison.rows:
        cells = [f"{row.values[0]:,}"]
        for value, ratio in zip(row.values[1:], row.ratios[1:], strict=True):
            cells.append(f"{value:,}" if ratio is None else f"{value:,}  ×{ratio:,.2f}")
        table.add_row(row.name.replace("_", " ").replace(".", ": "), *cells)
    console.print(table)


def _written(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(*columns: str) -> Table:
    """`>` in front of a column's name puts it to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=column not in ("which is", "formula"),
        )
    return table
