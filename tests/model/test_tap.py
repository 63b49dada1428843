"""The tap: where it is asked, what it copies, when it ends the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from model.capture import Capture
from model.edit import Edit
from model.gpt import GPT
from model.sites import SITES
from model.tap import NO_TAP, Probe, Tap

IDS = torch.tensor([[5, 80, 3, 250, 17]])


class Witness(Tap):
    """Notes every site in the order in which it is met."""

    def __init__(self, layer: int | None = None, met: list[tuple[str, int | None]] | None = None):
        self.layer = layer
        self.met: list[tuple[str, int | None]] = [] if met is None else met

    def __call__(self, site: str, value: Tensor) -> Tensor:
        self.met.append((site, self.layer))
        return value

    def at(self, layer: int) -> Tap:
        return Witness(layer, self.met)

    def wants(self, site: str) -> bool:
        return True


@contextmanager
def calls_of(*modules: torch.nn.Module) -> Iterator[list[tuple[int, ...]]]:
    """The shape of the input of every call while the block runs."""
    calls: list[tuple[int, ...]] = []

    def note(module: Any, inputs: Any) -> None:
        calls.append(tuple(inputs[0].shape))

    hooks = [module.register_forward_pre_hook(note) for module in modules]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def capture(model: GPT, name: str, **asked: Any) -> Capture:
    return Capture.resolve(SITES[name], asked, model.config, IDS.shape[1])


def test_every_site_is_met_once_a_layer_in_the_vocabularys_order(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    witness = Witness()
    with torch.no_grad():
        model(IDS, tap=witness)
    present = [site for site in SITES.values() if site.present(model.config)]
    before = [(s.name, None) for s in present if s.name in ("embed", "pos_embed")]
    after = [(s.name, None) for s in present if not s.layered][len(before) :]
    inside = [
        (site.name, layer)
        for layer in range(model.config.n_layer)
        for site in present
        if site.layered
    ]
    assert witness.met == [*before, *inside, *after]


def test_default_tap_returns_the_very_value_and_wants_nothing() -> None:
    value = torch.ones(3)
    assert NO_TAP("attn.q", value) is value
    assert NO_TAP.at(3)("attn.q", value) is value
    assert not NO_TAP.wants("attn.result")


def test_layers_above_the_last_one_asked_for_do_not_run(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    probe = Probe([capture(model, "attn.pattern", layer=[1])])
    with (
        calls_of(*model.blocks) as blocks,
        calls_of(model.blocks[1].mlp, model.ln_final, model.unembed) as after,
    ):
        assert model(IDS, tap=probe) is None
    assert len(blocks) == 2
    assert not after
    assert probe.recordings[0].values is not None


def test_only_the_positions_asked_for_are_unembedded(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    with calls_of(model.unembed) as calls:
        logits = model(IDS, unembed=[1, 4])
    assert calls == [(1, 2, 48)]
    assert logits is not None and logits.shape == (1, 2, model.config.vocab_size)


def test_heads_results_are_computed_only_where_something_wants_them(
    models: Mapping[str, GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["course"]
    calls: list[int] = []
    for layer, block in enumerate(model.blocks):
        results = block.attn.results
        monkeypatch.setattr(
            block.attn,
            "results",
            lambda z, layer=layer, results=results: calls.append(layer) or results(z),
        )
    model(IDS, tap=Probe([capture(model, "attn_out")], to_the_end=True))
    assert calls == []
    model(IDS, tap=Probe([capture(model, "attn.result", layer=[1])], to_the_end=True))
    assert calls == [1]
    calls.clear()
    zero = Edit.resolve("zero", SITES["attn.result"], {"layer": [2]}, model.config, 5)
    model(IDS, tap=Probe([capture(model, "logits")], [zero]))
    assert calls == [2]


def test_capture_shows_the_edited_value_and_edits_come_in_their_order(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]

    def edit(op: Any, value: float) -> Edit:
        return Edit.resolve(op, SITES["attn.z"], {"layer": [0]}, model.config, 5, value=value)

    for edits, expected in (
        ([edit("set", 3.0), edit("scale", 2.0), edit("add", 1.0)], 7.0),
        ([edit("set", 3.0), edit("add", 1.0), edit("scale", 2.0)], 8.0),
    ):
        probe = Probe([capture(model, "attn.z", layer=[0])], edits)
        model(IDS, tap=probe)
        assert torch.equal(probe.recordings[0].values, torch.full((1, 4, 5, 12), expected))


def test_capture_keeps_only_its_own_bytes_alive(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    probe = Probe([capture(model, "attn.pattern", layer=[0], head=[1], query=[2])])
    model(IDS, tap=probe)
    values = probe.recordings[0].values
    assert values is not None and values.untyped_storage().nbytes() == 5 * 4


def test_recorded_values_are_not_changed_by_what_follows(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    taken: dict[str, Tensor] = {}

    class Keeper(Tap):
        def __call__(self, site: str, value: Tensor) -> Tensor:
            taken[f"{site} as is"] = value
            taken[f"{site} then"] = value.clone()
            return value

        def wants(self, site: str) -> bool:
            return True

    with torch.no_grad():
        model(IDS, tap=Keeper())
    for site in {name.rsplit(" ", 1)[0].removesuffix(" as") for name in taken}:
        assert torch.equal(taken[f"{site} as is"], taken[f"{site} then"]), site


def test_stopped_run_ends_before_the_next_block(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    answers = iter([False, True])
    probe = Probe([capture(model, "logits")], stopped=lambda: next(answers))
    with calls_of(*(block.attn for block in model.blocks)) as calls:
        assert model(IDS, tap=probe) is None
    assert probe.cancelled
    assert len(calls) == 1


def test_run_nobody_stops_is_not_cancelled(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    probe = Probe([capture(model, "logits")])
    model(IDS, tap=probe)
    assert not probe.cancelled


def test_observers_see_each_layers_value_without_the_batch_axis(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]
    seen: list[tuple[int | None, tuple[int, ...]]] = []
    probe = Probe(
        [capture(model, "logits")],
        observers={"attn.pattern": lambda layer, value: seen.append((layer, tuple(value.shape)))},
    )
    model(IDS, tap=probe)
    assert seen == [(layer, (4, 5, 5)) for layer in range(3)]
