"""Edits in generation: at every step what the same edit gives in a run of the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from model.edit import Edit, EditError
from model.generation import Generation
from model.gpt import GPT
from model.reading import RunCancelled
from model.selection import Span
from model.sites import SITES
from model.wiring import Wiring
from tests.model.test_generation import GATE, PROMPT, REST, error, whole

N = len(PROMPT)
Asked = dict[Any, Any]
# op, site, selection, more; each is resolved again, as it stands, for every longer text.
KEPT: dict[str, tuple[Any, str, Asked, Asked]] = {
    "a head gone": ("zero", "attn.z", {"layer": [1], "head": [2]}, {}),
    "a key unseen": ("block", "attn.masked_scores", {"key": [0]}, {}),
    "every second key unseen": ("block", "attn.masked_scores", {"key": Span(step=2)}, {}),
    "keys from the fourth unseen": ("block", "attn.masked_scores", {"key": Span(start=4)}, {}),
    "all keys unseen": ("block", "attn.masked_scores", {"layer": [0]}, {}),
    "keys of one layer": ("scale", "attn.k", {"layer": [0]}, {"value": -0.5}),
    "keys of the prompt": ("set", "attn.k", {"position": [1, 4]}, {"value": 0.3}),
    "values later": ("add", "attn.v", {"position": Span(start=5)}, {"value": 0.7}),
    "rotated keys": ("scale", "attn.rot_k", {"position": Span(start=2)}, {"value": 0.25}),
    "one rotated key": ("zero", "attn.rot_k", {"position": [3]}, {}),
    "rotated keys alike": ("mean", "attn.rot_k", {"position": [0, 1, 2]}, {}),
    "rotated queries": ("scale", "attn.rot_q", {}, {"value": 2.0}),
    "scores": ("add", "attn.scores", {"key": [2], "head": [0, 3]}, {"value": 4.0}),
    "scores ahead are masked": ("set", "attn.scores", {}, {"value": 1.0}),
    "a cell of the prompt": ("set", "attn.pattern", {"query": [6], "key": [1]}, {"value": 2.0}),
    "weights halved": ("scale", "attn.pattern", {"layer": [2]}, {"value": 0.5}),
    "heads' own writes": ("scale", "attn.result", {"head": [1]}, {"value": 3.0}),
    "residual": ("add", "resid_mid", {"layer": [0], "position": [2, 7]}, {"value": 0.5}),
    "gone neurons": ("zero", "mlp.post", {"layer": [1]}, {}),
    "token vectors": ("scale", "embed", {"position": Span(step=2)}, {"value": 0.0}),
    "norm": ("scale", "ln_final.scale", {}, {"value": 2.0}),
    "mean of the prompt": ("mean", "resid_post", {"layer": [0], "position": [1, 2, 5]}, {}),
    "mean of closed span": ("mean", "attn.z", {"position": Span(stop=4)}, {}),
    "logits": ("add", "logits", {"position": Span(start=3)}, {"value": 1.5}),
}
REVISED: dict[str, tuple[Any, str, Asked, Asked]] = {
    "mean of all": ("mean", "attn.z", {"layer": [0]}, {}),
    "some are the mean of all": ("mean", "resid_mid", {"position": [1, 2]}, {"over": "all"}),
    "mean of queries": ("mean", "attn.scores", {"layer": [1], "key": [0]}, {}),
    "rotated keys are the mean of all": (
        "mean",
        "attn.rot_k",
        {"layer": [0], "position": [1, 2]},
        {"over": "all"},
    ),
    "mean of logits": ("mean", "logits", {}, {}),
    "the mask lifted": ("zero", "attn.masked_scores", {"layer": [1]}, {}),
    "keys ahead opened": (
        "set",
        "attn.masked_scores",
        {"layer": [0], "query": [3], "key": Span(start=2)},
        {"value": 1.0},
    ),
    "weights ahead": ("add", "attn.pattern", {"head": [0]}, {"value": 0.01}),
    "weights set": ("set", "attn.pattern", {"head": [1], "query": [2]}, {"value": 0.1}),
}


def make(model: GPT, what: tuple[Any, str, Asked, Asked], n_tokens: int) -> Edit:
    op, site, asked, more = what
    return Edit.resolve(op, SITES[site], asked, model.config, n_tokens, **more)


def follow(model: GPT, what: tuple[Any, str, Asked, Asked]) -> tuple[float, Generation]:
    """The largest error of the steps against whole runs under the same edit."""
    generation = Generation(model, PROMPT, edits=[make(model, what, N)])
    advanced = generation.prompt()
    errors = []
    for token in REST:
        again = whole(model, generation.ids, edits=[make(model, what, len(generation.ids))])
        errors.append(error(advanced.logits, again))
        advanced = generation.advance(token)
    return max(errors), generation


@pytest.mark.parametrize("name", KEPT)
def test_edit_stays_in_force_at_every_step(name: str, models: Mapping[str, GPT]) -> None:
    for family in ("course", "grouped", "learned"):
        apart, generation = follow(models[family], KEPT[name])
        assert generation.keeps
        assert apart <= GATE, family


@pytest.mark.parametrize("name", REVISED)
def test_edit_that_reaches_back_runs_the_whole_text_again(
    name: str, models: Mapping[str, GPT]
) -> None:
    apart, generation = follow(models["course"], REVISED[name])
    assert not generation.keeps
    assert apart <= GATE


@pytest.mark.parametrize("name", REVISED)
def test_kept_keys_under_an_edit_that_reaches_back_would_show(
    name: str, models: Mapping[str, GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generation, "keeps_at", lambda *_: True)
    apart, _ = follow(models["course"], REVISED[name])
    assert apart > 50 * GATE


def test_values_put_in_hold_for_the_prompt_and_end_there(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    draw = torch.Generator().manual_seed(0)
    for site, asked in (
        ("attn.k", {"layer": [1]}),
        ("attn.rot_k", {"layer": [1]}),
        ("attn.pattern", {"layer": [2]}),
        ("resid_pre", {"layer": [0]}),
    ):
        shape = [1 if axis == "layer" else n for axis, n in zip(
            SITES[site].axes, SITES[site].sizes(model.config, N), strict=True
        )]  # fmt: skip
        value = torch.randn(shape, generator=draw)
        edit = Edit.resolve("set", SITES[site], asked, model.config, N)
        edit.value = value  # as a patch gets its values: after it was resolved
        generation = Generation(model, PROMPT, edits=[edit])
        generation.prompt()
        assert generation.keeps
        ends = {axis: range(N) for axis in ("position", "query", "key") if axis in SITES[site].axes}
        for token in REST:
            logits = generation.advance(token).logits
            n_tokens = len(generation.ids)
            same = Edit.resolve(
                "set", SITES[site], {**asked, **ends}, model.config, n_tokens, value=value
            )
            assert error(logits, whole(model, generation.ids, edits=[same])) <= GATE, site


def test_edit_counts_over_prompt_steps_and_forks(models: Mapping[str, GPT]) -> None:
    model = models["course"]  # 3 layers, 4 heads
    block = Edit.resolve("block", SITES["attn.masked_scores"], {"key": [0]}, model.config, N)
    shift = Edit.resolve(
        "add", SITES["resid_post"], {"layer": [0], "position": Span(start=6)}, model.config, N,
        value=0.5,
    )  # fmt: skip
    early = Edit.resolve("zero", SITES["attn.z"], {"position": [1]}, model.config, N)
    generation = Generation(model, PROMPT, edits=[block, shift, early])
    generation.prompt()
    fork = generation.fork()
    answers = iter([False, False, True])
    with pytest.raises(RunCancelled):  # what did not come about is not counted
        fork.advance(REST[2], stopped=lambda: next(answers))
    generation.advance(REST[0])
    generation.advance(REST[1])
    fork.advance(REST[2])
    assert block.values_touched == 3 * 4 * (N + 3)
    assert shift.values_touched == 48 * (2 + 3)
    assert shift.change_norm == pytest.approx(0.5 * (48 * 5) ** 0.5)
    assert early.values_touched == 3 * 4 * 12
    assert [len(edit.squared_change) for edit in (block, shift, early)] == [1, 1, 1]  # not a step's


def test_edit_that_meets_nothing_at_the_prompt_is_refused(models: Mapping[str, GPT]) -> None:
    model = models["learned"]
    edit = Edit.resolve("zero", SITES["pos_embed"], {}, model.config, N)
    with pytest.raises(EditError, match="edit 0 at pos_embed changed nothing"):
        Generation(model, PROMPT, edits=[edit], wiring=Wiring(positions="none")).prompt()
