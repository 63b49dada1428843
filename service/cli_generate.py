"""`fluoroscope generate`: a text that the model continues, with what else it could have said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from service.schemas.generation import GenerateRequest

if TYPE_CHECKING:
    from service.generating import Generating
    from service.inspector import Inspector


def generate(
    text: Annotated[str, typer.Argument(help="The beginning.")],
    model: Annotated[str, typer.Option(help="The same names as serve's --model.")] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    temperature: Annotated[
        float, typer.Option(help="Logits are divided by it; 0 takes the largest each time.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Keep this many of the largest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the likeliest, up to this probability together.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes it repeat.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="32 unless said.")] = None,
    n: Annotated[int, typer.Option(help="Samples, one after the other.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given again.")
    ] = None,
    top: Annotated[int, typer.Option(help="Choices to show for each token.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="What POST /v1/generate gives.")] = False,
) -> None:
    """Continue a text and watch each token being chosen, over the whole vocabulary."""
    from model.checkpoints.contents import CheckpointError
    from service.errors import Problem
    from service.generation_forms import as_json as json_parts
    from service.generation_view import Screen
    from service.wire.parts import pieces_of

    try:
        asked = GenerateRequest(
            text=text,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_new_tokens=max_new_tokens,
            n=n,
            stop=stop or [],
            top=top,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        _refuse(f"{where}: {fault['msg']}", 2)
    screen = Screen(Console(highlight=False), text)

    async def show(inspector: Inspector, generating: Generating) -> None:
        if as_json:
            parts = await json_parts(inspector, generating, asked.format)
            typer.echo(b"".join(pieces_of(parts)).decode())
            return
        async for event in generating.events(lambda event: event):
            screen.show(event.name, event.content)

    try:
        asyncio.run(_run(asked, model, device, show))
    except CheckpointError as error:
        _refuse(str(error), 1)
    except Problem as problem:
        _refuse(problem.detail, 2)
    except ValueError as error:
        _refuse(str(error), 2)
    finally:
        screen.close()


async def _run(asked: GenerateRequest, model: str, device: Any, show: Callable[..., Any]) -> None:
    from service.app import open_configured
    from service.generating import Generating
    from service.generation import plan_generation
    from service.inspector import Inspector
    from service.settings import Settings

    settings = Settings(model=model, device=device)
    inspector = await Inspector.open(open_configured, settings)
    try:
        planned = plan_generation(inspector.opened, settings, asked, in_bytes=False)
        generating = Generating(inspector, planned, 0.0, draining=lambda: False)
        await generating.start()
        await show(inspector, generating)
    finally:
        inspector.close()


def _refuse(message: str, code: int) -> NoReturn:
    Console(stderr=True, highlight=False).print(message, style="red", markup=False)
    raise typer.Exit(code)
