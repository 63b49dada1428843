"""`fluoroscope parameters`: what is in a model and what it costs, as a table or as JSON."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.console import Console

from model.config import Activation, ConfigError, GPTConfig, Norm, Positions
from model.presets import PRESETS

Count = Annotated[int | None, typer.Option(min=1)]
_SIZES = ("n_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_mlp", "vocab_size", "n_ctx")
_CHANGEABLE = (*_SIZES, "positions", "norm", "activation", "tied")


def parameters(
    preset: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(PRESETS)}. Given more than once: side by side."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="demo (default), preset:NAME, or a checkpoint's folder.")
    ] = None,
    n_layer: Count = None,
    d_model: Count = None,
    n_head: Count = None,
    n_kv_head: Count = None,
    d_head: Count = None,
    d_mlp: Count = None,
    vocab_size: Count = None,
    n_ctx: Count = None,
    positions: Positions | None = None,
    norm: Norm | None = None,
    activation: Activation | None = None,
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Embedding and unembedding are one.")
    ] = None,
    bias: Annotated[
        bool | None, typer.Option("--bias/--no-bias", help="In every projection and norm.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens that costs are for; default at most 1024.")
    ] = None,
    derivation: Annotated[
        Literal["en", "zh"] | None, typer.Option("--explain", help="Add the derivation.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="What POST /v1/parameters gives.")
    ] = False,
) -> None:
    """Account for every parameter of a model, and say what it costs. No weights are read: any
    preset, checkpoint or size will do. Sizes given here change the preset or the model."""
    from model.checkpoints.contents import CheckpointError
    from model.parameters import ParameterError, vary

    given = locals()
    changes = {name: given[name] for name in _CHANGEABLE if given[name] is not None}
    if bias is not None:
        changes |= dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "norm_bias"), bias)
    if norm == "rmsnorm":
        changes["norm_bias"] = False
    try:
        configs = {name: vary(base, changes) for name, base in _bases(preset, model).items()}
        if len(configs) > 1:
            _compare(configs, context, derivation, as_json)
        else:
            _report(*configs.popitem(), context, derivation, as_json)
    except CheckpointError as error:
        _stop(str(error), 1)
    except (ConfigError, ParameterError) as error:
        _stop(str(error), 2)


def _bases(presets: list[str] | None, model: str | None) -> dict[str, GPTConfig]:
    if presets and model is not None:
        raise typer.BadParameter("give --preset or --model, not both")
    if model is not None and model.startswith("preset:"):
        presets = [model.removeprefix("preset:")]
    for name in presets or []:
        if name not in PRESETS:
            raise typer.BadParameter(
                f"there is no preset {name!r}; presets are {', '.join(PRESETS)}"
            )
    if presets:
        return {name: PRESETS[name] for name in presets}
    from model.checkpoints.open import describe

    contents = describe(model or "demo")
    return {contents.id: contents.config}


def _report(
    name: str, config: GPTConfig, context: int | None, derivation: str | None, as_json: bool
) -> None:
    from model.parameters import explain, report
    from service.parameter_tables import print_report
    from service.wire.parameters import report_fields

    found = report(config, context=context)
    words = explain(config, context) if derivation is not None else None
    if as_json:
        typer.echo(json.dumps(report_fields(found, explained=words), ensure_ascii=False))
        return
    console = Console(highlight=False)
    print_report(console, name, found)
    if words is not None and derivation is not None:
        console.print()
        console.print(words[derivation], markup=False)


def _compare(
    configs: dict[str, GPTConfig], context: int | None, derivation: str | None, as_json: bool
) -> None:
    from model.parameters import compare
    from service.parameter_tables import print_comparison
    from service.wire.parameters import comparison_fields

    if derivation is not None:
        raise typer.BadParameter("--explain goes with one model, not with several")
    found = compare(configs, context)
    if as_json:
        typer.echo(json.dumps(comparison_fields(found, configs), ensure_ascii=False))
    else:
        print_comparison(Console(highlight=False), found)


def _stop(message: str, code: int) -> None:
    Console(stderr=True, highlight=False).print(message, style="red", markup=False)
    raise typer.Exit(code)
