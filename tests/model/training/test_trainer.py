"""A run: it learns, it goes on exactly, it stops where it must and leaves what it promised."""

from __future__ import annotations

import csv
import io
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from model.checkpoints import native
from model.config import GPTConfig
from model.tokenizer import train_tokenizer
from model.training.__main__ import main
from model.training.batches import NO_TARGET, Sampler
from model.training.config import Piecewise, TrainConfig, TrainConfigError, parse_weight
from model.training.corpus import CorpusError
from model.training.run import DivergedError, Run
from model.training.trainer import Outcome, train

WORDS = ["cat", "dog", "fox", "owl", "ant", "bee", "cow", "hen", "pig", "rat"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [f"the {a} saw the {b}" for a in WORDS for b in WORDS if a != b]
    (folder / "story.txt").write_text("\n<|endoftext|>\n".join(lines))
    (folder / "pairs.tsv").write_text("\n".join(f"{w}\t猫{i}" for i, w in enumerate(WORDS * 6)))
    return folder


def tiny(data: Path | None, out: Path, **values: Any) -> TrainConfig:
    model = GPTConfig(n_layer=2, d_model=32, n_head=2, vocab_size=300, n_ctx=32, tied=True)
    given: dict[str, Any] = {
        "data": data, "out": out, "model": model, "steps": 8, "rows": 2, "accumulate": 2,
        "precision": "float32", "warmup_steps": 2, "eval_tokens": 100, "eval_pairs": 4,
        "eval_steps": 100, "log_steps": 1, "held_out_every": 10,
        "weights": tuple(parse_weight(f"{n}=1") for n in ("story", "pairs", "templates")),
    }  # fmt: skip
    return TrainConfig(**(given | values))


def quiet() -> Console:
    return Console(file=io.StringIO())


def losses(out: Path) -> list[str]:
    with (out / "log.csv").open(newline="") as file:
        return [row["loss"] for row in csv.DictReader(file)]


STEPS_TO_COPY = 250


class CopyTask(Sampler):
    """Eight random tokens said again until the row is full; the first time gives no target."""

    def rows(self, count: int, length: int, progress: float) -> tuple[Any, Any]:
        rng = np.random.default_rng(int(1e6 * progress))
        said = np.tile(rng.integers(1, 40, (count, 8)), length // 8 + 1)[:, : length + 1]
        targets = said[:, 1:].copy()
        targets[:, :7] = NO_TARGET
        return said[:, :-1].copy(), targets


def test_tiny_run_learns_to_copy(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", steps=STEPS_TO_COPY, rows=16, accumulate=1)
    run = sitting(config)
    run.sampler = CopyTask({}, config.weights[2:], run.tokenizer, seed=0)
    first, last = [run.train_step()[0] for _ in range(STEPS_TO_COPY)][:: STEPS_TO_COPY - 1]
    assert first > 3 and last < 0.1


def test_resumed_run_has_the_losses_of_an_uninterrupted_one(data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = tiny(data, whole, weights=(*tiny(data, whole).weights, parse_weight("repeats=1@.4:2")))
    uninterrupted = train(config, console=quiet())

    # The first sitting knows the full length, as one that was interrupted does.
    run = sitting(replace(config, out=parts))
    for _ in range(3):
        run.train_step()
    run.save()
    resumed = train(replace(config, out=parts), resume=True, console=quiet())

    assert resumed == uninterrupted
    assert losses(parts) == losses(whole)[3:]
    ours, theirs = (
        torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
        for folder in (whole, parts)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def sitting(config: TrainConfig) -> Run:
    """A run set up as `train` sets it up, to step by hand."""
    from model.training.corpus import find_sources
    from model.training.tokens import cut_source
    from model.training.vocabulary import run_tokenizer

    assert config.data is not None
    paths = find_sources(config.data)
    tokenizer = run_tokenizer(config, paths)
    sources = {
        name: cut_source(name, path, tokenizer, every=config.held_out_every)
        for name, path in paths.items()
    }
    return Run(config, tokenizer, sources)


def test_same_seed_gives_the_same_run(data: Path, tmp_path: Path) -> None:
    first, again, other = (
        train(tiny(data, tmp_path / name, steps=3, seed=seed), console=quiet())
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other


def test_accumulated_rows_give_the_loss_of_one_pass(data: Path, tmp_path: Path) -> None:
    weights = (parse_weight("repeats=1"),)
    outcomes = [
        train(
            tiny(data, tmp_path / f"{rows}", rows=rows, accumulate=8 // rows, weights=weights),
            console=quiet(),
        )
        for rows in (8, 2)
    ]
    assert outcomes[0].loss == pytest.approx(outcomes[1].loss, rel=1e-4)


def test_run_leaves_what_it_promises(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = train(tiny(data, out), console=quiet())
    assert outcome.stopped == "done" and (outcome.step, outcome.tokens) == (8, 8 * 128)
    model, tokenizer, _ = native.load(
        out / "native", device=torch.device("cpu"), dtype=torch.float32
    )
    saved = torch.load(out / "checkpoint.pt", weights_only=True)["model"]["embed.weight"]
    assert torch.equal(model.embed.weight, saved.bfloat16().float())
    assert tokenizer is not None and (out / "tokenizer.json").exists()
    with (out / "log.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for column in ("nats_story", "bits_story", "induction", "template_zh"):
        assert float(last[column]) >= 0
    assert not list(out.glob("*.partial"))


def test_context_may_grow_at_the_same_tokens_a_step(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", context=Piecewise(((0.5, 16.0), (1.0, 32.0))))
    assert [config.shape_at(p) for p in (0.0, 0.5)] == [(4, 16), (2, 32)]
    assert train(config, console=quiet()).tokens == 8 * 128


@pytest.mark.parametrize("length", [1, 24.0, 64])
def test_context_that_does_not_fit_is_refused(data: Path, tmp_path: Path, length: float) -> None:
    if length == 24.0:
        length = 30  # within the context, but does not divide 64 tokens
    with pytest.raises(TrainConfigError, match=f"context is {length}"):
        tiny(data, tmp_path, context=Piecewise(((1.0, length),)))


def test_nan_loss_stops_with_the_step_and_the_last_good_checkpoint(
    data: Path, tmp_path: Path
) -> None:
    run = sitting(tiny(data, tmp_path / "out"))
    run.train_step()
    with torch.no_grad():
        run.model.embed.weight[:] = float("nan")
    with pytest.raises(DivergedError, match=r"step 2: loss nan.*no checkpoint was written yet"):
        run.train_step()
    run.checkpoint.write_bytes(b"")
    with pytest.raises(DivergedError, match=r"last good checkpoint is .*checkpoint\.pt"):
        run.train_step()
    assert run.step == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_a_checkpoint_to_go_on_from(
    data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    config = tiny(data, out, steps=100_000)
    before = signal.getsignal(number)
    timer = threading.Timer(0.8, os.kill, (os.getpid(), number))
    timer.start()
    outcome = train(config, console=quiet())
    timer.join()
    assert outcome.stopped == "interrupted" and outcome.step > 0
    assert signal.getsignal(number) is before
    finished = train(replace(config, steps=outcome.step + 2), resume=True, console=quiet())
    assert finished.stopped == "done" and finished.step == outcome.step + 2


def test_time_budget_ends_the_run_with_the_rate_at_its_end(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", steps=None, minutes=0.02)
    outcome = train(config, console=quiet())
    assert outcome.stopped == "done"
    with (config.out / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["progress"]) == 1 and float(rows[-1]["lr_scale"]) < 0.5


def test_second_start_in_one_folder_is_refused(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", steps=1)
    train(config, console=quiet())
    with pytest.raises(TrainConfigError, match="exists: resume it"):
        train(config, console=quiet())


def test_resume_of_nothing_or_of_another_model_is_refused(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", steps=1)
    with pytest.raises(TrainConfigError, match="nothing to resume"):
        train(config, resume=True, console=quiet())
    train(config, console=quiet())
    wider = replace(config, model=replace(config.model, n_layer=3))
    with pytest.raises(TrainConfigError, match="n_layer 2 there, 3 here"):
        train(wider, resume=True, console=quiet())
    with pytest.raises(TrainConfigError, match="seed 0, not 4"):
        train(replace(config, seed=4), resume=True, console=quiet())


def test_tokenizer_larger_than_the_model_is_refused(data: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    big.write_text(train_tokenizer([" ".join(WORDS)] * 9, 280).to_str())
    small = GPTConfig(n_layer=1, d_model=8, n_head=1, vocab_size=260, n_ctx=32)
    with pytest.raises(CorpusError, match="the model only 260 rows"):
        train(tiny(data, tmp_path / "out", tokenizer=big, model=small), console=quiet())


def test_plain_console_gets_a_line_every_so_many_steps(data: Path, tmp_path: Path) -> None:
    console = quiet()
    train(tiny(data, tmp_path / "out", log_steps=4), console=console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("tokens/s") == 2 and "step 8  loss" in shown and "done after" in shown


def test_terminal_gets_a_bar(data: Path, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    train(tiny(data, tmp_path / "out", steps=2), console=console)
    assert isinstance(console.file, io.StringIO)
    assert "training" in console.file.getvalue() and "100.0 %" in console.file.getvalue()


def test_command_line_trains_and_reports_errors(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    shape = {"n-layer": 1, "d-model": 16, "n-head": 2, "vocab-size": 300, "n-ctx": 16, "rows": 2}
    small = [f"--{name}={value}" for name, value in shape.items()]
    common = ["--data", str(data), "--out", out, *small, "--eval-tokens=50", "--eval-pairs=4"]
    assert main([*common, "--steps", "2", "--weight", "story=1"]) == 0
    assert main([*common, "--steps", "2", "--weight", "storey=1"]) == 2
    assert "unknown sources ['storey']" in capsys.readouterr().err
    assert main([*common, "--steps", "4", "--weight", "story=1", "--resume"]) == 0


def test_outcome_of_a_finished_run_is_not_repeated(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path / "out", steps=2)
    first = train(config, console=quiet())
    assert train(config, resume=True, console=quiet()) == first
    assert isinstance(first, Outcome)
