"""What make check makes of pip-audit's output: only what was found is a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.audit import verdict

CLEAN = {"name": "a", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
FAULTY = {
    "name": "c",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}


def said_of(*packages: Any) -> tuple[bool, str]:
    return verdict(json.dumps({"dependencies": packages, "fixes": []}), "")


def test_vulnerability_is_a_failure_that_names_it() -> None:
    assert said_of(CLEAN, FAULTY, UNKNOWN) == (
        False,
        "c 2.0: PYSEC-1, fixed in 2.1\nc 2.0: PYSEC-2, fixed in no version yet",
    )


def test_nothing_found_says_of_how_many() -> None:
    assert said_of(CLEAN, CLEAN, UNKNOWN) == (
        True,
        "no known vulnerability in 2 packages, 1 unknown",
    )


def test_index_that_knows_no_package_is_a_note() -> None:
    passed, said = said_of(UNKNOWN, UNKNOWN)
    assert passed and said.startswith("NOTE: no vulnerability service could be asked")


@pytest.mark.parametrize(
    "last",
    [
        "requests.exceptions.ProxyError: HTTPSConnectionPool(host='h', port=443): refused",
        "requests.exceptions.ConnectionError: failed to resolve",
        "pip_audit._service.interface.ConnectionError: Could not connect",
    ],
)
def test_service_that_cannot_be_reached_is_a_note_and_no_failure(last: str) -> None:
    passed, said = verdict("", f"Traceback (most recent call last):\n  File …\n{last}\n")
    assert passed and said.startswith("NOTE:") and said.endswith(last.partition(":")[0])


def test_audit_that_fails_for_another_reason_is_a_failure() -> None:
    passed, said = verdict("", "ERROR:pip_audit._cli:invalid requirements input: x\n")
    assert not passed and "invalid requirements input" in said
