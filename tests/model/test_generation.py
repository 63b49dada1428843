"""Steps with kept keys and values against runs of the whole text without any, number by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.cache import Cache
from model.capture import Capture
from model.config import GPTConfig, RopeScaling
from model.edit import Edit
from model.generation import Advanced, Generation
from model.gpt import GPT, ContextError
from model.reading import RunCancelled, read
from model.selection import Span
from model.sites import SITES
from model.tap import EndOfRun, Tap
from model.wiring import RopeWiring, Wiring
from tests.model.test_parity import CASES, build, randomize
from tests.model.test_tap import calls_of

GATE = 2e-5
PROMPT = [5, 80, 3, 250, 17, 9, 44, 80]
REST = [12, 7, 301, 22, 22, 150, 61, 8]
DYNAMIC = RopeScaling(kind="dynamic", factor=4.0, original_context=10)
WIRINGS = {
    "offset": Wiring(rope=RopeWiring(offset=1000)),
    "base": Wiring(rope=RopeWiring(base=500.0)),
    "pairing": Wiring(rope=RopeWiring(pairing="half")),
    "yarn": Wiring(rope=RopeWiring(scaling=RopeScaling(kind="yarn", factor=4, original_context=8))),
    "dynamic": Wiring(rope=RopeWiring(scaling=DYNAMIC)),
    "no positions": Wiring(positions="none"),
    "no scale": Wiring(score_scale=1.0),
    "no residual": Wiring(residual=False),
    "not causal": Wiring(causal=False),
}


def whole(model: GPT, ids: list[int], **how: Any) -> Tensor:
    """The logits (V,) that a run of all of `ids` gives at their end."""
    last = Capture.resolve(SITES["logits"], {"position": [-1]}, model.config, len(ids))
    return read(model, ids, [last], **how).tensors["logits"][0]


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to magnitudes over 1; equal infinities do not differ."""
    assert ours.shape == theirs.shape
    apart = torch.where(ours == theirs, 0.0, (ours - theirs).abs())
    return float(apart.amax()) / max(1.0, float(theirs[theirs.isfinite()].abs().amax()))


def worst_step(generation: Generation, rest: list[int], model: GPT, **how: Any) -> float:
    """The largest error of the prompt and of each step."""
    errors = [error(generation.prompt().logits, whole(model, generation.ids, **how))]
    for token in rest:
        logits = generation.advance(token).logits
        errors.append(error(logits, whole(model, generation.ids, **how)))
    return max(errors)


@pytest.mark.parametrize("name", CASES)
def test_each_step_gives_the_full_runs_logits_in_every_family(name: str) -> None:
    case = CASES[name]
    oracle = case.oracle()
    randomize(oracle)
    model = build(case.config, case.rename(dict(oracle.state_dict()), case.config))
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(case.config.vocab_size, (60,), generator=draw).tolist()
    assert worst_step(Generation(model, ids[:7]), ids[7:], model) <= GATE


@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=list(WIRINGS))
def test_each_step_gives_the_full_runs_logits_under_every_wiring(
    wiring: Wiring, models: Mapping[str, GPT]
) -> None:
    families = ["course", "grouped"] if wiring.rope.changes else list(models)
    for family in families:
        model = models[family]
        generation = Generation(model, PROMPT, wiring=wiring)
        assert worst_step(generation, REST, model, wiring=wiring) <= GATE, family


@pytest.mark.parametrize("name", ["dynamic", "not causal"])
def test_keys_kept_where_they_must_not_be_would_show(
    name: str, models: Mapping[str, GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wiring = models["course"], WIRINGS[name]
    assert Generation(model, PROMPT[:4], wiring=wiring).keeps == (name == "dynamic")
    assert not Generation(model, [*PROMPT, *REST], wiring=wiring).keeps
    monkeypatch.setattr(Generation, "keeps_at", lambda *_: True)
    generation = Generation(model, PROMPT, wiring=wiring)
    assert worst_step(generation, REST, model, wiring=wiring) > 100 * GATE


def test_every_site_at_a_step_is_the_newest_part_of_the_full_run(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    present = [site for site in SITES.values() if site.present(model.config)]

    def captures(n_tokens: int) -> list[Capture]:
        return [Capture.resolve(site, {}, model.config, n_tokens) for site in present]

    generation = Generation(model, PROMPT, captures=captures(len(PROMPT)))
    prompt = generation.prompt()
    first = read(model, PROMPT, captures(len(PROMPT))).tensors
    assert all(torch.equal(prompt.tensors[name], first[name]) for name in first)
    for token in REST:
        step = generation.advance(token)
        n_tokens = len(generation.ids)
        full = read(model, generation.ids, captures(n_tokens)).tensors
        assert step.tensors.keys() == full.keys()
        for name, theirs in full.items():
            for axis in ("position", "query"):
                if axis in SITES[name].axes:
                    theirs = theirs.narrow(SITES[name].axes.index(axis), n_tokens - 1, 1)
                    assert step.captures[name].coords[axis] == [n_tokens - 1]
            assert error(step.tensors[name], theirs) <= GATE, name
            assert step.captures[name].shape == theirs.shape
        assert step.tensors["attn.pattern"].shape[2:] == (1, n_tokens)


def test_selections_speak_of_absolute_positions_and_open_ends_go_on(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]

    def capture(name: str, site: str, **asked: Any) -> Capture:
        return Capture.resolve(SITES[site], asked, model.config, len(PROMPT), name=name)

    generation = Generation(
        model,
        PROMPT,
        captures=[
            capture("fixed", "resid_post", position=[-1, 2]),
            capture("closed", "resid_post", position=Span(start=2, stop=5)),
            capture("down", "resid_post", position=Span(step=-1)),
            capture("from the last", "resid_post", position=Span(start=-1)),
            capture("odd", "resid_post", position=Span(start=1, step=2)),
            capture("keys", "attn.pattern", layer=[1], key=[0, 3]),
            capture("odd keys", "attn.pattern", layer=[1], head=[2], key=Span(start=1, step=2)),
            capture("one query", "attn.pattern", query=[3]),
        ],
    )
    prompt = generation.prompt()
    assert prompt.tensors.keys() == prompt.captures.keys()
    assert prompt.tensors["fixed"].shape[1] == 2 and len(prompt.tensors) == 8
    eighth, ninth = generation.advance(REST[0]), generation.advance(REST[1])
    assert set(eighth.tensors) == {"from the last", "keys", "odd keys"}
    assert set(ninth.tensors) == {"from the last", "odd", "keys", "odd keys"}
    every = Capture.resolve(SITES["attn.pattern"], {"layer": [1]}, model.config, 10)
    pattern = read(model, generation.ids, [every]).tensors["attn.pattern"]
    assert error(ninth.tensors["keys"], pattern[:, :, 9:, [0, 3]]) <= GATE
    assert error(ninth.tensors["odd keys"], pattern[:, 2:3, 9:, 1::2]) <= GATE
    assert ninth.captures["odd keys"].coords == {
        "layer": [1],
        "head": [2],
        "query": [9],
        "key": [1, 3, 5, 7, 9],
    }


def test_prompt_runs_once_and_a_step_runs_one_token(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    generation = Generation(model, PROMPT)
    with calls_of(model.blocks[0].ln1, model.unembed) as calls:
        generation.prompt()
        generation.advance(REST[0])
        generation.fork().advance(REST[1])
    assert calls == [(1, 8, 48), (1, 1, 48), (1, 1, 48), (1, 1, 48), (1, 1, 48), (1, 1, 48)]


def test_logits_asked_for_at_the_prompt_do_not_hide_the_newest(
    models: Mapping[str, GPT],
) -> None:
    model = models["course"]
    early = Capture.resolve(SITES["logits"], {"position": [1]}, model.config, len(PROMPT))
    prompt = Generation(model, PROMPT, captures=[early]).prompt()
    assert error(prompt.tensors["logits"][0], whole(model, PROMPT[:2])) <= GATE
    assert error(prompt.logits, whole(model, PROMPT)) <= GATE


def test_forks_go_their_own_ways(family: str, models: Mapping[str, GPT]) -> None:
    model = models[family]
    first = Generation(model, PROMPT)
    first.prompt()
    other = first.fork()
    for ours, theirs in zip(REST, reversed(REST), strict=True):
        for generation, token in ((first, ours), (other, theirs)):
            assert error(generation.advance(token).logits, whole(model, generation.ids)) <= GATE
    assert first.ids == PROMPT + REST and other.ids == PROMPT + REST[::-1]


def test_cancelled_step_leaves_the_generation_as_it_was(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    generation = Generation(model, PROMPT)
    generation.prompt()
    answers = iter([False, False, True])
    with pytest.raises(RunCancelled):
        generation.advance(99, stopped=lambda: next(answers))
    assert generation.ids == PROMPT
    assert worst_step(Generation(model, PROMPT), REST, model) <= GATE
    assert error(generation.advance(REST[0]).logits, whole(model, generation.ids)) <= GATE


def test_full_context_is_said_and_changes_nothing(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    n_ctx = model.config.n_ctx
    generation = Generation(model, [3] * (n_ctx - 1))
    generation.prompt()
    assert generation.room == 1
    generation.advance(4)
    assert generation.room == 0
    with pytest.raises(ContextError, match="65 tokens; the context holds 1 to 64"):
        generation.advance(5)
    assert generation.ids == [3] * (n_ctx - 1) + [4]
    with pytest.raises(ContextError, match="66 tokens"):
        Generation(model, [3] * 66).prompt()


def test_checks_of_a_step_are_of_its_own_rows(models: Mapping[str, GPT]) -> None:
    model = models["course"]

    def steps(*edits: Edit, wiring: Wiring = Wiring()) -> Advanced:  # noqa: B008
        generation = Generation(model, PROMPT, edits=edits, wiring=wiring)
        generation.prompt()
        return generation.advance(REST[0])

    right = steps().checks
    assert right.row_sum_error is not None and right.row_sum_error < 1e-6
    assert (right.future_mass, right.empty_rows) == (0.0, 0)
    open_keys = Edit.resolve("scale", SITES["attn.pattern"], {}, model.config, 8, value=2.0)
    assert steps(open_keys).checks.row_sum_error == pytest.approx(1.0, abs=1e-6)
    block = Edit.resolve("block", SITES["attn.masked_scores"], {"layer": [0]}, model.config, 8)
    assert steps(block).checks.empty_rows == model.config.n_head
    not_causal = steps(wiring=Wiring(causal=False)).checks
    assert not_causal.future_mass is not None and not_causal.future_mass > 0.1


def test_run_that_ends_early_keeps_nothing(models: Mapping[str, GPT]) -> None:
    class Ends(Tap):
        def __call__(self, site: str, value: Tensor) -> Tensor:
            if site == "mlp_out":
                raise EndOfRun
            return value

    model = models["course"]
    cache = Cache(model.config)
    with torch.inference_mode():
        assert model(torch.tensor([PROMPT]), tap=Ends(), cache=cache) is None
        assert cache.n_tokens == 0
        logits = model(torch.tensor([PROMPT]), cache=cache)
        assert cache.n_tokens == len(PROMPT)
        assert torch.equal(logits, model(torch.tensor([PROMPT])))


def test_cost_of_a_step_grows_with_the_text_and_not_with_its_square() -> None:
    config = GPTConfig(n_layer=6, d_model=384, n_head=6, vocab_size=5000, n_ctx=1024)
    model = GPT(config).eval()

    def multiplications(n_tokens: int) -> int:
        generation = Generation(model, [7] * n_tokens)
        generation.prompt()
        with FlopCounterMode(display=False) as counter:
            generation.advance(8)
        return int(counter.get_total_flops())

    at_100, at_1000 = multiplications(99), multiplications(999)
    attention = 2 * 2 * 6 * 384  # flops for one key more: its dot product and its value
    assert at_1000 - at_100 == 900 * attention
    assert at_1000 <= 3 * at_100


def test_steps_in_bfloat16_keep_bfloat16_and_stay_near_float32(
    family: str, models: Mapping[str, GPT]
) -> None:
    model = models[family]
    narrow = GPT(model.config).eval().to(torch.bfloat16)
    narrow.load_state_dict(model.state_dict())
    exact = GPT(model.config).eval()
    exact.load_state_dict(narrow.state_dict())  # the same rounded weights, in float32
    ours, theirs = Generation(narrow, PROMPT), Generation(exact, PROMPT)
    ours.prompt(), theirs.prompt()
    assert 2 * ours.n_bytes == theirs.n_bytes
    for token in REST:
        step, wide = ours.advance(token).logits, theirs.advance(token).logits
        assert step.dtype == torch.float32
        by_run = error(whole(narrow, ours.ids).float(), wide)
        assert error(step, wide) <= 2 * by_run + 0.02


def test_steps_of_a_compiled_model_agree() -> None:
    config = GPTConfig(n_layer=2, d_model=32, n_head=2, vocab_size=50, n_ctx=16)
    plain = GPT(config, seed=3).eval()
    # The eager backend traces the whole model without needing a compiler on the machine.
    compiled: Any = torch.compile(GPT(config, seed=3).eval(), backend="eager")
    one, other = Generation(plain, [1, 2, 3]), Generation(compiled, [1, 2, 3])
    assert error(other.prompt().logits, one.prompt().logits) <= 1e-6
    for token in (4, 5, 6):
        assert error(other.advance(token).logits, one.advance(token).logits) <= 1e-6
