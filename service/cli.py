"""`fluoroscope`: serve a model, train one, check one. Starts things; computes nothing itself."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from service import __version__
from service.cli_convert import convert
from service.cli_parameters import parameters

app = typer.Typer(
    name="fluoroscope",
    help="Look inside a running transformer over HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(parameters)
app.command()(convert)
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


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="demo (default), preset:NAME, a folder or file, org/name or org/name@revision."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto (default), cpu, cuda or mps.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default) or bfloat16.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; default 8000, 0 takes a free one.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Every request must bring it (better: FLUOROSCOPE_KEY).")
    ] = None,
    allow_open: Annotated[
        bool | None, typer.Option("--allow-open", help="Listen beyond loopback without a key.")
    ] = None,
    origins: Annotated[
        str | None, typer.Option(help="Browser origins beside localhost, comma-separated.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Host names beside loopback, comma-separated; * for any.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Processor threads for a run; 0 leaves it to torch.")
    ] = None,
) -> None:
    """Serve a model over HTTP. Every option is also an environment variable FLUOROSCOPE_NAME,
    which reaches the limits too: docs/settings.md lists them all."""
    import uvicorn

    from service.app import create_app
    from service.settings import Settings

    given = {name: value for name, value in locals().items() if name in Settings.model_fields}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for fault in error.errors():
            where = ".".join(str(part) for part in fault["loc"])
            _say(
                f"{where}: {fault['msg']}" if where else fault["msg"].removeprefix("Value error, ")
            )
        raise typer.Exit(2) from None
    failed: list[bool] = []

    def give_up() -> None:
        failed.append(True)
        server.should_exit = True

    config = uvicorn.Config(
        create_app(settings, on_failure=give_up),
        host=settings.host,
        port=settings.port,
        log_config=_logging(),
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.run_seconds),
        limit_concurrency=1024,
    )
    server = uvicorn.Server(config)
    server.run()
    if failed or not server.started:
        raise typer.Exit(1)


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


def _logging() -> dict[str, Any]:
    """uvicorn's own form of log lines, for this service's as well."""
    from uvicorn.config import LOGGING_CONFIG

    ours = {"fluoroscope": {"handlers": ["default"], "level": "INFO", "propagate": False}}
    return {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], **ours}}


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
