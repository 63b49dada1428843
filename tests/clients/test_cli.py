"""The command `fluoroscope-client` against a real server: what it prints and how it ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fluoroscope_client import Fluoroscope, cli
from fluoroscope_client.labels import visible, width

from service.app import create_app
from service.settings import Settings
from tests.clients.conftest import listening, wait_until_ready

CHINESE = "猫追老鼠，因为它饿了。"
KEY = "钥匙 sesame"
NOBODY = "http://127.0.0.1:9"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    monkeypatch.setenv("FLUOROSCOPE_URL", base_url)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FLUOROSCOPE_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture(scope="session")
def locked(folders: Mapping[str, Path]) -> Iterator[str]:
    """A server with a key."""
    with listening(create_app(Settings(model=str(folders["course"]), key=KEY))) as url:
        with Fluoroscope(url, key=KEY) as client:
            wait_until_ready(client)
        yield url


def test_attention_is_the_servers_map(run: Run, remote: Fluoroscope) -> None:
    text = "猫 cat"
    status, out, _ = run("attention", text, "--layer", "2", "--head", "3")
    assert status == 0
    title, _, *rows = out.splitlines()
    assert title == "attn.pattern · layer 2 · head 3 · course"
    assert max(map(width, out.splitlines())) <= 80
    reading = remote.attention(text, layers=2, heads=3)
    labels = [visible(token["display"] or "·") for token in reading.tokens]
    values = reading["attn.pattern"].sel(layer=2, head=3).values
    for number, (row, label, weights) in enumerate(zip(rows, labels, values, strict=True)):
        assert row.split() == [
            str(number),
            label,
            *(f"{weight:.2f}" for weight in weights[: number + 1]),
        ]


def test_attention_without_a_head_is_the_mean(run: Run) -> None:
    status, out, _ = run("attention", "The cat.", "--stage", "scores")
    assert status == 0
    assert out.startswith("attn.scores · layer 0 · mean of all heads · course\n")


def test_json_is_the_answer_as_it_came(run: Run, remote: Fluoroscope) -> None:
    status, out, _ = run("attention", CHINESE, "--layer", "-1", "--head", "0", "--json")
    assert status == 0
    said = json.loads(out)["tensors"]["attn.pattern"]
    expected = remote.attention(CHINESE, layers=-1, heads=0)["attn.pattern"]
    np.testing.assert_array_equal(np.float32(said["data"]), expected.values)
    for command in (
        ("logits", CHINESE),
        ("tokenize", CHINESE),
        ("parameters",),
        ("parameters", "--preset", "gpt2"),
        ("generate", CHINESE, "--max-new-tokens", "2"),
    ):
        status, out, _ = run(*command, "--json")
        assert status == 0 and isinstance(json.loads(out), dict), command


def test_logits_are_the_likeliest_tokens(run: Run, remote: Fluoroscope) -> None:
    status, out, _ = run("logits", CHINESE, "--top", "3")
    (said,) = remote.logits(CHINESE, top=3).predictions
    title, *rows = out.splitlines()
    assert status == 0 and title.startswith(f"after {said['position']} ")
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    for row, token in zip(rows, said["top"], strict=True):
        assert f"{token['probability']:.4f}" in row and f"{token['logit']:.3f}" in row
    _, out, _ = run("logits", "The cat sat.", "--all", "--top", "1")
    assert out.count("after ") == len(remote.tokenize("The cat sat.")["tokens"])


def test_generate_shows_each_choice_and_the_text(run: Run, remote: Fluoroscope) -> None:
    arguments = ("generate", CHINESE, "--seed", "4", "--max-new-tokens", "3", "--temperature", "2")
    status, out, _ = run(*arguments, "--top", "2")
    whole = remote.completion(CHINESE, seed=4, max_new_tokens=3, temperature=2.0, top=2)
    lines = out.splitlines()
    assert status == 0
    for line, step in zip(lines, whole.steps, strict=False):
        assert int(line.split()[0]) == step.position
        assert f"{step.candidates[0]['probability']:.3f}" in line
        assert width(line) <= 80
    text = whole.samples[0]["text"] or ""
    assert out.endswith("(max new tokens)\n")
    assert f"\n{CHINESE}{cli._safe(text)}\n" in out
    status, plain, _ = run(*arguments, "--top", "0")
    assert plain == cli._safe(text) + "\n(max new tokens)\n"


def test_generate_says_what_was_cut(run: Run) -> None:
    _, out, _ = run("generate", CHINESE, "--top-k", "1", "--max-new-tokens", "1", "--top", "2")
    assert out.splitlines()[0].count("cut)") == 1


def test_tokenize_lists_bytes_and_characters(run: Run, remote: Fluoroscope) -> None:
    _, out, _ = run("tokenize", CHINESE)
    header, *rows = out.splitlines()
    assert header.split() == ["index", "id", "token", "bytes", "characters"]
    tokens = remote.tokenize(CHINESE)["tokens"]
    assert [row.split()[1] for row in rows] == [str(token["id"]) for token in tokens]
    assert "".join(row.split()[3] for row in rows) == CHINESE.encode().hex()


def test_text_comes_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("猫"))
    status, out, _ = run("tokenize", "-")
    _, *rows = out.splitlines()
    assert status == 0
    assert "".join(row.split()[3] for row in rows) == "e78cab"


def test_parameters_are_counted(run: Run, remote: Fluoroscope) -> None:
    _, out, _ = run("parameters", "--depth", "1")
    assert f"{remote.parameters()['totals']['unique']:,} parameters" in out
    _, out, _ = run("parameters", "--preset", "gpt2")
    assert "124,439,808" in out  # OpenAI's GPT-2 small


def test_refusal_ends_with_its_words_and_status_1(run: Run) -> None:
    status, out, err = run("attention", CHINESE, "--layer", "7")
    assert (status, out) == (1, "")
    assert err.startswith("fluoroscope-client: 422 ") and "valid are -3 to 2" in err


def test_nobody_there_says_what_to_start(run: Run) -> None:
    status, _, err = run("logits", "a", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "http://127.0.0.1:9 cannot be reached" in err and "fluoroscope serve" in err


def test_server_and_key_are_named_before_the_command_or_after_it(
    run: Run, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUOROSCOPE_URL", NOBODY)
    monkeypatch.setenv("FLUOROSCOPE_KEY", "wrong-key")
    ask = ("tokenize", "a")
    expected = run(*ask, "--url", locked, "--key", KEY)
    assert expected[0] == 0
    assert run("--url", locked, "--key", KEY, *ask) == expected
    assert run("--url", locked, *ask, "--key", KEY) == expected
    assert run(f"--key={KEY}", *ask, f"--url={locked}") == expected
    assert run("--url", NOBODY, "--key", "wrong-key", *ask, "--url", locked, "--key", KEY) == (
        expected
    )
    status, out, err = run("--url", locked, "--key", KEY, *ask, "--url", NOBODY)
    assert (status, out) == (1, "") and NOBODY in err
    status, out, err = run("--url", locked, "--key", KEY, *ask, "--key", "wrong-key")
    assert (status, out) == (1, "") and "401" in err


def test_other_options_of_every_command_hold_before_it_too(run: Run) -> None:
    expected = run("tokenize", CHINESE, "--json")
    assert expected[0] == 0 and isinstance(json.loads(expected[1]), dict)
    assert run("--json", "tokenize", CHINESE) == expected
    assert run("--json", "tokenize", CHINESE, "--timeout", "50") == expected
    status, _, err = run("--timeout", "0", "tokenize", "a")
    assert (status, err) == run("tokenize", "a", "--timeout", "0")[::2]
    assert status != 0


@pytest.mark.parametrize("arguments", [("--help",), ("tokenize", "--help")])
def test_help_names_the_options_and_no_default_that_it_has_not(
    arguments: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUOROSCOPE_URL", "http://127.0.0.1:9/%s")  # a form of words to argparse
    status, out, _ = run(*arguments)
    assert status == 0
    for option in ("--url", "--key", "--timeout", "--json"):
        assert f"\n  {option} " in out
    assert "or http://127.0.0.1:8000" in " ".join(out.split()) and "SUPPRESS" not in out


@pytest.mark.parametrize("arguments", [("--url",), ("--url", "http://127.0.0.1:9"), ("--ur", "a")])
def test_options_alone_are_no_command(arguments: tuple[str, ...], run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and err.startswith("usage: ")


@pytest.mark.parametrize(
    "arguments", [("logits", "a", "--url", "::"), ("logits", "a\udcff"), ("logits",), ("dance",)]
)
def test_what_cannot_be_asked_ends_with_status_2(arguments: tuple[str, ...], run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err


def test_key_is_sent_and_never_shown(
    run: Run, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUOROSCOPE_URL", locked)
    status, out, err = run("tokenize", "a")
    assert status == 1 and "FLUOROSCOPE_KEY" in err
    status, out, err = run("tokenize", "a", "--key", "wrong-key")
    assert status == 1 and "wrong-key" not in out + err
    status, out, err = run("tokenize", "a", "--key", KEY)
    assert status == 0
    monkeypatch.setenv("FLUOROSCOPE_KEY", KEY)
    assert run("tokenize", "a")[0] == 0
    for arguments in (("--help",), ("tokenize", "--help"), ("attention", "a", "--layer", "99")):
        _, out, err = run(*arguments)
        assert out + err and "sesame" not in out + err
    monkeypatch.setenv("FLUOROSCOPE_KEY", f"{KEY}\n")
    status, out, err = run("tokenize", "a")
    assert status == 2 and "line break" in err and "sesame" not in err


def test_process_of_its_own_colours_nothing_in_a_pipe(base_url: str) -> None:
    arguments = ["attention", CHINESE, "--url", base_url]
    done = subprocess.run(
        [sys.executable, "-m", "fluoroscope_client.cli", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in done.stdout
    assert b"?" in done.stdout  # what an alphabet of ASCII cannot show


def test_reader_that_leaves_is_no_error(base_url: str) -> None:
    command = f"{sys.executable} -m fluoroscope_client.cli tokenize {'猫' * 60} --url {base_url}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | true"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
