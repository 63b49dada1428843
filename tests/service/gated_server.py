"""A server of its own process, as `fluoroscope serve` makes it, whose model does what it is told.

    python -m tests.service.gated_server FOLDER PORT [SETTING=VALUE …]

Lines on stdin are orders: `shut` and `open` a gate inside the model's first block, `pass` lets one
run through it; `lose` the device, `kill` the inference thread. With FOLDER `-` the model never gets
opened.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

from model.checkpoints.open import OpenedModel
from service.app import create_app, open_configured
from service.server import Server
from service.settings import Settings
from tests.service.test_health import Deadly


class Gate:
    """Where every run stops while it is shut."""

    def __init__(self) -> None:
        self.shut = False
        self.passes = threading.Semaphore(0)
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
        if self.shut:
            self.passes.acquire()


def obey(gate: Gate, app: Any) -> None:
    for line in sys.stdin:
        match line.strip():
            case "shut":
                gate.shut = True
            case "pass":
                gate.passes.release()
            case "open":
                gate.shut = False
                gate.passes.release(1000)  # more than can wait
            case "lose":
                gate.device_lost = True
            case "kill":
                app.state.inspector._device._work_queue.put(Deadly())
        print(line.strip(), flush=True)


def main(folder: str, port: str, *given: str) -> int:
    settings = Settings(
        model=folder, port=int(port), threads=1, **dict(item.split("=") for item in given)
    )
    gate = Gate()
    app = create_app(settings, open_with=gate.opened, on_failure=lambda: server.fail())
    server = Server(app, settings)
    threading.Thread(target=obey, args=(gate, app), daemon=True).start()
    server.run()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
