"""Who may import whom, read from the sources, and that attention stays written by hand."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WEB = ("fastapi", "starlette", "uvicorn", "httpx", "httpx2", "requests", "aiohttp", "pydantic")
# What needs no running model, so that a route may call it directly.
VOCABULARY = (
    "model.config",
    "model.labs",
    "model.parameters",
    "model.presets",
    "model.rope",
    "model.sites",
    "model.tokenizer",
)


@dataclass(frozen=True)
class Rule:
    """Modules that match `who` import nothing of `never`, but for what is under `allowed`."""

    who: str
    never: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    but: tuple[str, ...] = ()  # modules that the rule does not bind

    def binds(self, module: str) -> bool:
        return under(module, (self.who,)) and not under(module, self.but)

    def broken_by(self, imported: str) -> bool:
        return under(imported, self.never) and not under(imported, self.allowed)


RULES = [
    Rule("model", ("service", "clients", "fluoroscope_client", "tests", *WEB)),
    Rule("service", ("clients", "fluoroscope_client", "tests")),
    Rule("service.schemas", ("torch", "model", "service"), allowed=("service.schemas",)),
    Rule("service.settings", ("torch", "model")),
    Rule("service.admission", ("torch", "model")),
    Rule("service.middleware", ("torch", "model")),
    Rule("service.security", ("torch", "model", "service.routes")),
    Rule("service.observability", ("torch", "model", "service.inspector")),
    Rule("service.routes", ("torch", "model"), allowed=VOCABULARY),
    Rule("service", ("service.routes",), but=("service.routes", "service.app")),
    Rule(
        "service",
        ("service.app",),
        but=(
            *("service.app", "service.ray_app"),
            *("service.cli", "service.cli_serve", "service.cli_generate"),
        ),
    ),
    Rule("service", ("ray",), but=("service.ray_app",)),
    Rule("service.ray_proxy", ("torch", "model", "service", "ray")),
    Rule(
        "service.wire",
        ("service", "fastapi"),
        allowed=("service.wire", "service.schemas"),
    ),
    Rule("fluoroscope_client", ("model", "service", "torch", "fastapi", "starlette", "pydantic")),
]
BY_HAND = ("MultiheadAttention", "scaled_dot_product_attention", "TransformerEncoderLayer")


def under(name: str, roots: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the roots or lies below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def imports(source: str) -> set[str]:
    """Every dotted name that a source imports, at any depth, each name of a `from` as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources() -> Iterator[tuple[str, str]]:
    """Module name and text of every source that is shipped."""
    for folder, root in (
        ("model", ROOT),
        ("service", ROOT),
        ("fluoroscope_client", ROOT / "clients/python"),
    ):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            yield module, path.read_text(encoding="utf-8")


def faults(module: str, source: str) -> list[str]:
    return [
        f"{module} imports {imported}"
        for rule in RULES
        if rule.binds(module)
        for imported in sorted(imports(source))
        if rule.broken_by(imported)
    ]


def uses_of_others_attention(source: str) -> list[str]:
    return [
        name
        for node in ast.walk(ast.parse(source))
        for name in (
            getattr(node, "attr", None),
            getattr(node, "id", None),
            getattr(node, "name", None),
        )
        if name in BY_HAND
    ]


def test_every_import_keeps_to_the_plan_of_the_house() -> None:
    assert [fault for module, source in sources() for fault in faults(module, source)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.who}: {rule.never[0]}")
def test_every_rule_binds_a_module_that_exists(rule: Rule) -> None:
    assert any(rule.binds(module) for module, _ in sources())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model.gpt", "from service.errors import Problem"),
        ("model.labs.attention", "def f():\n    import fastapi.responses"),
        ("service.schemas.reading", "import torch"),
        ("service.schemas.reading", "from model.sites import SITES"),
        ("service.routes.inspecting", "from model import reading"),
        ("service.routes.about", "from model.checkpoints.open import open_model"),
        ("service.inspector", "from service.routes.about import router"),
        ("service.plan", "from service import app"),
        ("service.wire.tensors", "from service.inspector import Inspected"),
        ("service.ray_proxy", "from service.errors import Problem"),
        ("service.app", "from ray import serve"),
        ("fluoroscope_client.client", "import torch.nn"),
    ],
)
def test_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.routes.about", "from model.sites import SITES"),
        ("service.routes.labs", "from model import labs"),
        ("service.cli", "from service.app import create_app"),
        ("service.wire.tensors", "from model.sites import Axis"),
        ("modelling", "import fastapi"),
    ],
)
def test_allowed_import_is_let_through(module: str, source: str) -> None:
    assert faults(module, source) == []


def test_client_needs_httpx_and_numpy_alone() -> None:
    third = {
        name.partition(".")[0]
        for module, source in sources()
        if module.startswith("fluoroscope_client")
        for name in imports(source)
    }
    known = {"fluoroscope_client", "httpx", "numpy", "typing_extensions"}  # the last for types
    assert third - set(sys.stdlib_module_names) <= known


def test_attention_is_written_by_hand() -> None:
    for module, source in sources():
        if under(module, ("model",)):
            assert not uses_of_others_attention(source), module


def test_a_fused_attention_would_be_found() -> None:
    assert uses_of_others_attention("F.scaled_dot_product_attention(q, k, v)")
    assert uses_of_others_attention("from torch.nn import MultiheadAttention")


def test_every_package_is_listed_for_the_distribution() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("model", "service")
        for path in (ROOT / top).rglob("*.py")
        if not fnmatch(path.name, "__*__.py") or path.name == "__init__.py"
    }
    assert found == listed
