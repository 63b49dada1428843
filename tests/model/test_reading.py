"""One run: how far it goes, what it refuses, and that nothing of it reaches another."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from model.capture import Capture
from model.edit import Edit, EditError
from model.frame import WiringError
from model.gpt import GPT, ContextError
from model.reading import RunCancelled, end_of_run, logit_rows, read
from model.selection import SelectionError
from model.sites import SITES
from model.wiring import MODEL_WIRING, RopeWiring, Wiring

IDS = [5, 80, 3, 250, 17, 9]


def capture(model: GPT, site: str, **asked: Any) -> Capture:
    return Capture.resolve(SITES[site], asked, model.config, len(IDS))


def zero(model: GPT, site: str, **asked: Any) -> Edit:
    return Edit.resolve("zero", SITES[site], asked, model.config, len(IDS))


def test_unembedded_are_the_positions_asked_for_by_any_capture(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    asked = [capture(model, "logits", position=[4, 1]), capture(model, "logits", position=[2])]
    assert logit_rows(asked, []) == [1, 2, 4]
    assert logit_rows([capture(model, "resid_post")], []) == []
    assert logit_rows(asked, [zero(model, "logits", position=[0])]) is None


def test_edit_of_the_logits_lands_at_its_own_position(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    last = read(
        model, IDS, [capture(model, "logits", position=[5])], edits=[zero(model, "logits")]
    ).tensors["logits"]
    assert last.count_nonzero() == 0
    other = read(
        model,
        IDS,
        [capture(model, "logits", position=[5])],
        edits=[zero(model, "logits", position=[4])],
    ).tensors["logits"]
    assert other.count_nonzero() > 0


def test_run_ends_at_the_last_layer_and_site_asked_for(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    assert end_of_run([capture(model, "embed")])[0] == -1
    assert end_of_run([capture(model, "attn.q", layer=[0, 1])])[0] == 1
    early, late = (end_of_run([capture(model, s, layer=[1])]) for s in ("attn.q", "mlp_out"))
    assert early < late < end_of_run([capture(model, "logits")])


@pytest.mark.parametrize(
    ("site", "asked", "taken", "at"),
    [
        ("attn.z", {"layer": [2]}, {"layer": [1]}, "layer 1"),
        ("attn.z", {"layer": [0, 2]}, {"layer": [1]}, "layer 1"),
        ("mlp_out", {"layer": [1]}, {"layer": [1]}, "layer 1"),
        ("logits", {}, {"layer": [2]}, "layer 2"),
    ],
)
def test_edit_past_the_end_of_the_run_is_refused(
    site: str, asked: Any, taken: Any, at: str, models: Mapping[str, GPT]
) -> None:
    model = models["course"]
    with pytest.raises(EditError, match=rf"edit 0 at {site}.* the run ends at {at}"):
        read(
            model,
            IDS,
            [capture(model, "attn.pattern", **taken)],
            edits=[zero(model, site, **asked)],
        )


def test_full_checks_run_to_the_end_so_that_a_late_edit_counts(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    late = zero(model, "mlp_out", layer=[2])
    read(model, IDS, [capture(model, "embed")], edits=[late], full_checks=True)
    assert late.values_touched == len(IDS) * 48


def test_edit_that_never_meets_its_site_is_refused(models: Mapping[str, GPT]) -> None:
    model = models["learned"]
    with pytest.raises(EditError, match="edit 0 at pos_embed"):
        read(
            model,
            IDS,
            [capture(model, "logits")],
            edits=[zero(model, "pos_embed")],
            wiring=Wiring(positions="none"),
        )


def test_capture_that_this_wiring_leaves_out_is_refused(models: Mapping[str, GPT]) -> None:
    model = models["learned"]
    with pytest.raises(SelectionError, match="pos_embed does not occur under this wiring"):
        read(model, IDS, [capture(model, "pos_embed")], wiring=Wiring(positions="none"))


def test_rotary_fields_are_refused_by_a_model_that_does_not_rotate(
    models: Mapping[str, GPT],
) -> None:
    model = models["learned"]
    with pytest.raises(WiringError, match="this model's positions are 'learned'"):
        read(model, IDS, [capture(model, "logits")], wiring=Wiring(rope=RopeWiring(offset=1)))


def test_cancelled_run_says_so(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    with pytest.raises(RunCancelled):
        read(model, IDS, [capture(model, "logits")], stopped=lambda: True)


def test_more_tokens_than_the_context_are_refused_with_both_numbers(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]
    whole = Capture.resolve(SITES["logits"], {}, model.config, 65)
    with pytest.raises(ContextError, match="65 tokens; the context holds 1 to 64"):
        read(model, [1] * 65, [whole])


def test_runs_at_once_with_other_wiring_and_edits_give_their_serial_bits(
    models: Mapping[str, GPT], request: pytest.FixtureRequest
) -> None:
    model = models["course"]
    wirings = [
        MODEL_WIRING,
        Wiring(causal=False),
        Wiring(score_scale=1.0),
        Wiring(residual=False),
        Wiring(positions="none"),
        Wiring(rope=RopeWiring(pairing="half", offset=3)),
    ]

    def one(number: int) -> list[torch.Tensor]:
        edits = [zero(model, "attn.z", layer=[0], head=[number % 4])] if number % 3 else []
        taken = [capture(model, "attn.pattern"), capture(model, "logits")]
        wiring = wirings[number % len(wirings)]
        return list(read(model, IDS, taken, edits=edits, wiring=wiring).tensors.values())

    # One thread to each: how many take part in a product decides about its last bit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    serial = [one(number) for number in range(24)]
    with ThreadPoolExecutor(8, initializer=lambda: torch.set_num_threads(1)) as pool:
        at_once = list(pool.map(one, list(range(24)) * 4))
    for number, found in enumerate(at_once):
        for ours, theirs in zip(found, serial[number % 24], strict=True):
            assert torch.equal(ours, theirs)
    assert not torch.equal(serial[0][1], serial[1][1])
