"""results.svg: milliseconds of a whole request against the number of tokens, both axes doubling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# name: (colour, line); ours stand out, a peer and its expert settings share a colour.
STYLES = {
    "fluoroscope nested": ("#d62728", "-"),
    "fluoroscope safetensors": ("#d62728", "--"),
    "transformers json": ("#7f7f7f", ":"),
    "transformers orjson": ("#1f77b4", "-"),
    "transformers expert orjson": ("#1f77b4", "-."),
    "transformers expert bytes": ("#1f77b4", "--"),
    "transformer_lens orjson": ("#2ca02c", "-"),
    "transformer_lens expert bytes": ("#2ca02c", "--"),
    "bare forward": ("#000000", ":"),
}


def draw(measurements: list[dict[str, Any]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fluoroscope", "font.size": 9})
    sizes = list(dict.fromkeys(line["size"] for line in measurements))
    figure, panels = pyplot.subplots(1, len(sizes), figsize=(10, 5), squeeze=False)
    for panel, size in zip(panels[0], sizes, strict=True):
        for name, (colour, style) in STYLES.items():
            lines = [
                line for line in measurements if line["size"] == size and line["contestant"] == name
            ]
            tokens, ms = [line["tokens"] for line in lines], [line["ms"] for line in lines]
            panel.plot(tokens, ms, color=colour, linestyle=style, marker=".", label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(tokens, [str(count) for count in tokens])
        panel.set_title(f"{size} size, every head of every layer")
        panel.set_xlabel("tokens")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("milliseconds, whole request")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
