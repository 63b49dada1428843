"""create_app: the lifespan that opens the model, the middleware and the routes, put together."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from model.checkpoints.open import OpenedModel, open_model
from service import __version__, errors
from service.draining import Drain, Draining
from service.inspection import identity
from service.inspector import Inspector
from service.middleware import ConditionalGet, HeadAsGet, LastCatch, RequestId, Sizes
from service.observability import Metrics, Observed
from service.parity import KeptParity
from service.routes import (
    about,
    cell,
    course,
    generate,
    health,
    inspecting,
    labs,
    metrics,
    parameters,
    parity,
    rope,
    text,
)
from service.security import Access, cors
from service.settings import Settings

ROUTES = (
    *(health, metrics, about, text, inspecting, cell, generate),
    *(parameters, parity, labs, rope, course),
)
WATCH_EVERY = 1.0  # seconds between two looks at whether the model can still run
log = logging.getLogger("fluoroscope")


def create_app(
    settings: Settings,
    *,
    open_with: Callable[[Settings], OpenedModel] | None = None,
    on_failure: Callable[[], None] | None = None,
) -> FastAPI:
    """The service for one model. `open_with` replaces the way the model is opened (tests do).

    With `on_failure` the model loads while the server already answers (ready says 503 until it
    is there), and that is called where it cannot be opened, or where no run can succeed any more;
    without, start-up waits for it.
    """

    measured = Metrics()

    async def load(app: FastAPI) -> None:
        start = time.perf_counter()
        inspector = await Inspector.open(open_with or open_configured, settings, measured.stage)
        opened = inspector.opened
        log.info("opened %s in %.1f s", opened.id, time.perf_counter() - start)
        for note in opened.notes:
            log.warning("%s: %s", opened.id, note)
        measured.watch(inspector.admission, identity(inspector))
        app.state.inspector = inspector

    async def load_or_fail(app: FastAPI, failed: Callable[[], None]) -> None:
        try:
            await load(app)
            # What is there now stays: walking over it would hold all threads for 0.15 s each time.
            gc.collect()
            gc.freeze()
        except Exception as error:
            known = isinstance(error, ValueError)
            log.error("cannot open %s: %s", settings.model, error, exc_info=not known)
            failed()

    async def watch(app: FastAPI, failed: Callable[[], None]) -> None:
        """Give the process up once no run can succeed in it any more: a new one may."""
        while True:
            await asyncio.sleep(WATCH_EVERY)
            inspector: Inspector | None = app.state.inspector
            if inspector is not None and inspector.fatal is not None:
                log.critical("giving up: %s", inspector.fatal)
                failed()
                return

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.inspector = None
        app.state.drain = Drain()
        app.state.draining = app.state.drain.begun  # set once the server is told to stop
        app.state.metrics = measured
        app.state.parity = KeptParity()
        tasks: list[asyncio.Task[None]] = []
        if on_failure is None:
            await load(app)
        else:
            app.state.loading = asyncio.create_task(load_or_fail(app, on_failure))
            tasks.append(asyncio.create_task(watch(app, on_failure)))
        yield
        app.state.drain.begun.set()
        for task in tasks:
            task.cancel()
        if app.state.inspector is not None:
            app.state.inspector.close()

    app = FastAPI(
        title="Fluoroscope",
        version=__version__,
        summary="Looking inside a running transformer over HTTP",
        lifespan=lifespan,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    errors.install(app)
    for module in ROUTES:
        app.include_router(module.router)
    # The last one added stands outermost.
    app.add_middleware(ConditionalGet)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Sizes, settings=settings)
    app.add_middleware(Draining)
    app.add_middleware(Access, settings=settings)
    app.add_middleware(LastCatch)
    app.add_middleware(CORSMiddleware, **cors(settings))
    app.add_middleware(Observed, metrics=measured)
    app.add_middleware(RequestId)
    return app


def open_configured(settings: Settings) -> OpenedModel:
    """Open the model that the settings name, on the device that they choose.

    Raises CheckpointError, and ValueError for a device that is not there.
    """
    # Said in any case: MKL left to itself may take fewer threads for a run, and round otherwise.
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    return open_model(
        settings.model,
        device=choose_device(settings.device),
        dtype=getattr(torch, settings.dtype),
    )


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA, then MPS, then CPU."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if not available[name]:
        raise ValueError(f"device {name!r} is not available here; {_there(available)} is")
    return torch.device(name)


def _there(available: dict[str, bool]) -> str:
    return " and ".join(kind for kind, there in available.items() if there)
