"""Fills the answers in the READMEs by asking the running service: `python -m docs.examples`.

A ```bash block with one curl line is asked in-process; the ```json block after it becomes the
answer. Times and the middle of hashes are left out, since they differ or say nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "README.zh-CN.md")
EXAMPLE = re.compile(r"```bash\n(curl [^`]*?)```\n\n```json\n(.*?)```", re.DOTALL)
WIDTH = 96


def ask(client: TestClient, command: str) -> Any:
    """The JSON answer to one curl line."""
    words = shlex.split(command)
    url = next(word for word in words if "localhost" in word)
    path = url.split("8000", 1)[1]
    if "--json" in words:
        body = words[words.index("--json") + 1]
        answer = client.post(
            path, content=body.encode(), headers={"content-type": "application/json"}
        )
    else:
        answer = client.get(path)
    return shortened(answer.json())


def shortened(value: Any) -> Any:
    """Without times; hashes and request ids cut short."""
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: shortened(item) for key, item in value.items() if key != "timing_ms"}
    if "weights_sha256" in kept:
        kept["weights_sha256"] = kept["weights_sha256"][:8] + "…"
    if "instance" in kept:
        kept["instance"] = "…"
    return kept


def pretty(value: Any, indent: int = 0) -> str:
    """JSON with whatever fits on a line on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(k, ensure_ascii=False)}: {pretty(v, indent + 2)}"
            for k, v in value.items()
        ]
        opening, closing = "{", "}"
    else:
        parts = [pretty(item, indent + 2) for item in value]
        opening, closing = "[", "]"
    return f"{opening}\n{pad}" + f",\n{pad}".join(parts) + f"\n{' ' * indent}{closing}"


def examples(text: str) -> Iterator[tuple[str, str]]:
    """Each curl line and the answer that stands under it."""
    for found in EXAMPLE.finditer(text):
        yield found[1], found[2]


def filled(text: str, answer: Callable[[str], Any]) -> str:
    """The page with every answer made anew. Who answered and what was asked stand in the first
    alone."""
    seen = False

    def block(found: re.Match[str]) -> str:
        nonlocal seen
        value = answer(found[1])
        if seen and "model" in value:
            value = {key: value[key] for key in value if key not in ("model", "input")}
        seen = True
        return f"```bash\n{found[1]}```\n\n```json\n{pretty(value)}\n```"

    return EXAMPLE.sub(block, text)


def main() -> None:
    with TestClient(create_app(Settings()), base_url="http://localhost:8000") as client:
        for name in PAGES:
            page = ROOT / name
            page.write_text(filled(page.read_text("utf-8"), lambda c: ask(client, c)), "utf-8")


if __name__ == "__main__":
    main()
