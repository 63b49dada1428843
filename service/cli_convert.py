"""`fluoroscope convert`: any checkpoint that opens, written as a native folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Source = Annotated[
    str,
    typer.Argument(
        metavar="IN",
        help="A checkpoint's folder or file, or org/name on the hub.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="OUT",
        help="The folder to write; a native one that is there is replaced.",
        show_default=False,
    ),
]


def convert(
    source: Source,
    out: Folder,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Of the weights that are written; float32 loses nothing."),
    ] = "float32",
    revision: Annotated[
        str | None, typer.Option(help="The hub's branch, tag or commit; default its main one.")
    ] = None,
) -> None:
    """Write a checkpoint as a native folder: model.safetensors, config.json with the weights' hash
    and where they come from, tokenizer.json. One tensor is in memory at a time, and the folder
    appears whole or not at all."""
    import torch

    from model.checkpoints.contents import CheckpointError
    from model.checkpoints.convert import convert as write

    console = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    try:
        with _bar(console) as bar:
            task = bar.add_task("reading", total=None)
            contents = write(
                source,
                out,
                dtype=getattr(torch, dtype),
                revision=revision,
                progress=lambda done, total: bar.update(
                    task, description="writing", completed=done, total=total
                ),
            )
    except (CheckpointError, OSError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    for note in contents.notes:
        console.print(note, style="yellow", markup=False)
    size = (out / "model.safetensors").stat().st_size
    typer.echo(
        f"{out}: {contents.id} ({contents.format}) in {dtype}, {size:,} bytes of weights, "
        f"{time.perf_counter() - start:.1f} s"
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
