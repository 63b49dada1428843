"""Problems: one table, one shape, and a page that explains each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from model.edit import EditError
from model.selection import SelectionError
from service.errors import PROBLEMS, Problem, as_problem, problem_response

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["problems.md", "problems.zh-CN.md"])
def test_page_explains_every_problem_with_its_status(page: str) -> None:
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+) \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    assert {slug: int(status) for slug, status in rows} == {
        slug: status for slug, (status, _) in PROBLEMS.items()
    }


def test_statuses_are_those_of_the_contract() -> None:
    allowed = {400, 401, 404, 405, 406, 408, 413, 415, 422, 429, 431, 500, 503}
    assert {status for status, _ in PROBLEMS.values()} <= allowed


@pytest.mark.parametrize(
    ("error", "slug", "detail"),
    [
        (SelectionError("layer 9"), "invalid-selection", "layer 9"),
        (EditError("edit 0"), "invalid-edit", "edit 0"),
        (Problem("too-busy", "later"), "too-busy", "later"),
        (HTTPException(404), "not-found", PROBLEMS["not-found"][1]),
        (HTTPException(405), "method-not-allowed", PROBLEMS["method-not-allowed"][1]),
        (HTTPException(418), "bad-request", PROBLEMS["bad-request"][1]),
        (KeyError("secret"), "internal-error", "the error is in the server's log"),
        (RuntimeError("secret"), "internal-error", "the error is in the server's log"),
    ],
)
def test_error_becomes_its_problem(error: Exception, slug: str, detail: str) -> None:
    problem = as_problem(error)
    assert problem.slug == slug
    assert detail in problem.detail and "secret" not in problem.detail


def test_numbers_are_given_only_where_there_are_some() -> None:
    with_numbers = problem_response(Problem("no-tokens", "none", limit=1, actual=0), "id-1")
    assert b'"limit":1,"actual":0' in with_numbers.body
    assert b"limit" not in problem_response(Problem("not-found", "none"), "id-1").body


def test_headers_of_a_problem_are_sent() -> None:
    response = problem_response(Problem("too-busy", "x", headers={"retry-after": "3"}), "id-1")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.headers["content-type"] == "application/problem+json"
