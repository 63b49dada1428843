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


def test_every_setting_is_a_flag_of_serve_and_every_flag_a_setting() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {option.name for option in serve.params} - {"help"}
    assert flags == set(Settings.model_fields)
    assert {"model", "max_body_bytes", "grace_seconds", "log_format"} <= flags


def test_help_of_serve_says_what_each_setting_is_and_what_it_is_unless_told() -> None:
    text = " ".join(run("serve", "--help").replace("│", " ").split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert str(field.description) in text
    for said in ("(default 1024)", "(default 127.0.0.1)", "text|json"):
        assert said in text


def test_flags_reach_the_settings_and_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server itself is a stand-in that only keeps what it was made of."""
    made: list[Settings] = []

    class Kept:
        exit_code, started = 0, True

        def __init__(self, app: object, settings: Settings) -> None:
            made.append(settings)

        def run(self) -> None:
            pass

    monkeypatch.setattr("service.server.Server", Kept)
    flags = "--max-tokens 7 --body-seconds 2.5 --log-format json --allow-open --host 0.0.0.0"
    lists = ["--origins", "https://a.example, null", "--hosts", "*"]
    run("serve", *flags.split(), *lists, FLUOROSCOPE_MAX_TOKENS="9", FLUOROSCOPE_LAB_TOKENS="11")
    (settings,) = made
    assert (settings.max_tokens, settings.lab_tokens, settings.waiting) == (7, 11, 16)
    assert (settings.body_seconds, settings.log_format) == (2.5, "json")
    assert settings.allow_open and settings.host == "0.0.0.0" and settings.hosts == ["*"]
    assert settings.origins == ["https://a.example", "null"]


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
    monkeypatch.setattr("service.server.log_config", lambda form, level: None)
    run("serve", "--model", str(tmp_path), "--port", "0", code=1)
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.getMessage().startswith(f"cannot open {tmp_path}: ")
    assert not error.exc_info
