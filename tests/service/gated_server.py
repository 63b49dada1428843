"""A server of its own process, as `fluoroscope serve` makes it, whose model does what it is told.

    python -m tests.service.gated_server FOLDER PORT [SETTING=VALUE …]

Lines on stdin are orders: `shut` and `open` a gate inside the model's first block, `lose` the
device, `kill` the inference thread. `POST /v1/stream` sends an event every 50 ms and a closing one
once the server drains. With FOLDER `-` the model never gets opened.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import torch
from fastapi import Request
from starlette.responses import StreamingResponse

from model.checkpoints.open import OpenedModel
from service.app import create_app, open_configured
from service.server import Server
from service.settings import Settings
from tests.service.test_health import Deadly


class Gate:
    """Where every run stops while it is shut."""

    def __init__(self) -> None:
        self.way = threading.Event()
        self.way.set()
        self.device_lost = False

    def opened(self, settings: Settings) -> OpenedModel:
        if settings.model == "-":
            threading.Event().wait()
        opened = open_configured(settings)
        opened.model.blocks[0].register_forward_pre_hook(self.stop)
        return opened

    def stop(self, *_: Any) -> None:
        if self.device_lost:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        self.way.wait()


def obey(gate: Gate, app: Any) -> None:
    for line in sys.stdin:
        match line.strip():
            case "shut":
                gate.way.clear()
            case "open":
                gate.way.set()
            case "lose":
                gate.device_lost = True
            case "kill":
                app.state.inspector._device._work_queue.put(Deadly())
        print(line.strip(), flush=True)


async def stream(http: Request) -> StreamingResponse:
    draining: asyncio.Event = http.app.state.draining

    async def events() -> AsyncIterator[str]:
        while True:
            yield "step\n"
            try:
                async with asyncio.timeout(0.05):
                    await draining.wait()
            except TimeoutError:
                continue
            yield "closing\n"
            return

    return StreamingResponse(events())


def main(folder: str, port: str, *given: str) -> int:
    settings = Settings(
        model=folder, port=int(port), threads=1, **dict(item.split("=") for item in given)
    )
    gate = Gate()
    app = create_app(settings, open_with=gate.opened, on_failure=lambda: server.fail())
    app.add_api_route("/v1/stream", stream, methods=["POST"])
    server = Server(app, settings)
    threading.Thread(target=obey, args=(gate, app), daemon=True).start()
    server.run()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
