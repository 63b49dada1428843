"""`fluoroscope serve`: what it refuses, and how it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service import __version__
from service.cli import app
from service.settings import Settings


def run(*arguments: str, code: int = 0, **environment: str) -> str:
    result = CliRunner().invoke(
        app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb", **environment}
    )
    assert result.exit_code == code, result.output
    return result.output


def test_version_is_said() -> None:
    assert run("--version").strip() == f"fluoroscope {__version__}"


def test_help_lists_the_commands() -> None:
    text = run("--help")
    for command in ("serve", "train", "check-model", "parameters"):
        assert command in text


def test_every_flag_of_serve_is_a_setting() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {option.name for option in serve.params} - {"help"}
    assert flags <= set(Settings.model_fields)
    assert {"model", "device", "host", "port", "key"} <= flags


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--host", "0.0.0.0"], {}, "listening on 0.0.0.0 lets others in"),
        ([], {"FLUOROSCOPE_HOST": "10.1.2.3"}, "listening on 10.1.2.3 lets others in"),
        (["--key", ""], {}, "the key is empty"),
        (["--port", "99999"], {}, "port: Input should be less than or equal to 65535"),
        (["--device", "tpu"], {}, "device: Input should be 'auto'"),
        ([], {"FLUOROSCOPE_MAX_TOKENS": "0"}, "max_tokens: Input should be greater"),
        (["--origins", "*", "--key", "k"], {}, "origins * with a key"),
    ],
)
def test_setting_that_cannot_be_is_refused_before_anything_starts(
    arguments: list[str],
    environment: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self: pytest.fail("it started"))
    text = run("serve", *arguments, code=2, **environment)
    assert says in text
    assert "Traceback" not in text


def test_model_that_is_not_there_ends_the_server_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A process-wide set-up of logging would outlive this test.
    monkeypatch.setattr("service.cli._logging", lambda: None)
    run("serve", "--model", str(tmp_path), "--port", "0", code=1)
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.getMessage().startswith(f"cannot open {tmp_path}: ")
    assert not error.exc_info
