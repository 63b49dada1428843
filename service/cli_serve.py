"""`fluoroscope serve`: the settings as flags, then the server. Knows nothing of what is served."""

from __future__ import annotations

import os
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console

from service.openmp import rest_between_runs
from service.settings import Settings

stderr = Console(stderr=True, highlight=False)


def serve(**given: Any) -> None:
    """Serve a model over HTTP. Every flag is also an environment variable: --max-tokens is
    FLUOROSCOPE_MAX_TOKENS. The flag wins."""
    rest_between_runs(os.environ)  # before anything imports torch
    from service.app import create_app
    from service.server import Server

    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for fault in error.errors():
            where = ".".join(str(part) for part in fault["loc"])
            said = fault["msg"].removeprefix("Value error, ")
            stderr.print(f"{where}: {said}" if where else said, style="red", markup=False)
        raise typer.Exit(2) from None

    def fail() -> None:
        server.fail()

    server = Server(create_app(settings, on_failure=fail), settings)
    server.run()
    if server.exit_code or not server.started:
        raise typer.Exit(1)


def _flag(name: str, field: FieldInfo) -> Parameter:
    """An option that is None where it is not given, so that the environment may say it."""
    kind: Any = field.annotation
    choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else None
    if kind not in (bool, int, float):
        kind = str  # lists are split, and keys hidden, by Settings
    default = field.get_default(call_default_factory=True)
    shown = "" if default in (None, [], False) else f" (default {default})"
    option = typer.Option(
        f"--{name.replace('_', '-')}", help=f"{field.description}{shown}", metavar=choices
    )
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


# typer reads a command's flags from its signature; here they are the settings, each said once.
serve.__signature__ = Signature(  # type: ignore[attr-defined]
    [_flag(name, field) for name, field in Settings.model_fields.items()]
)
