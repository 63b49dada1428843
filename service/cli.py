"""`fluoroscope`: serve a model, train one, check one. Starts things; computes nothing itself."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console

from service import __version__
from service.cli_convert import convert
from service.cli_generate import generate
from service.cli_parameters import parameters
from service.cli_serve import serve

app = typer.Typer(
    name="fluoroscope",
    help="Look inside a running transformer over HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(parameters)
app.command()(convert)
app.command()(generate)
stderr = Console(stderr=True, highlight=False)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps; auto takes the fastest there.")]


def main() -> None:
    """The console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fluoroscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """Train a tokenizer and a model on a folder of texts; `fluoroscope train --help` for all."""
    from model.training.__main__ import main as train_main

    raise typer.Exit(train_main(context.args))


@app.command("check-model")
def check_model(
    model: Annotated[str, typer.Argument(help="The same names as serve's --model.")] = "demo",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The course's smoke test, a small batch through the model once, and parity: its numbers
    against float64 ones. Exits 1 where either fails."""
    from model.parity import parity
    from model.smoke import smoke_test

    opened = _open(model, device)
    report = smoke_test(opened.model)
    against = parity(opened)
    passed = report.passed and against.passed is not False
    facts: dict[str, Any] = {
        "model": opened.id,
        "trained": opened.trained,
        "parameters": report.parameters,
        "ids_shape": list(report.ids_shape),
        "logits_shape": list(report.logits_shape),
        "last_dimension_is_vocabulary": report.logits_shape[-1] == opened.model.config.vocab_size,
        "future_mass": report.future_mass,
        "row_sum_error": report.row_sum_error,
        "finite": report.finite,
        "parity_against": against.against,
        "parity_error": against.deviations.worst,
        "parity_gate": against.gate,
        "parity_control": against.control,
        "parity_control_error": against.control_deviations.worst,
        "parity_passed": against.passed,
        "seconds": round(report.seconds + against.seconds, 3),
        "passed": passed,
    }
    if as_json:
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in facts.items()
        }
        typer.echo(json.dumps(plain, ensure_ascii=False))
    else:
        for name, value in facts.items():
            typer.echo(
                f"{name.replace('_', ' '):30} {value:,}"
                if name == "parameters"
                else f"{name.replace('_', ' '):30} {value}"
            )
    if not passed:
        raise typer.Exit(1)


def _open(name: str, device: str) -> Any:
    import torch

    from model.checkpoints.native import CheckpointError
    from model.checkpoints.open import open_model
    from service.app import choose_device

    try:
        return open_model(name, device=choose_device(device), dtype=torch.float32)
    except (CheckpointError, ValueError) as error:
        _say(str(error))
        raise typer.Exit(1) from None


def _say(message: str) -> None:
    stderr.print(message, style="red", markup=False)
