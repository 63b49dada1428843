"""The same app on Ray Serve: as many replicas as the load asks for, each with its own model.

Knows nothing of routes: `create_app` makes the app, inside each replica. The one file that imports
Ray.

    serve run service.ray_app:build model=demo max_replicas=4
    serve run serve.yaml
"""

from __future__ import annotations

import logging.config
import math
from collections.abc import Callable
from typing import Annotated, Any, Self

from fastapi import FastAPI
from pydantic import Field, model_validator
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.app import create_app
from service.logs import log_config
from service.memory import keep_freed_memory
from service.openmp import SPINS
from service.settings import Settings

FUSE = 1024  # requests in one replica: far above what it takes on, so that it refuses, not Ray


class Fleet(Settings):
    """Every setting of the server, and how many of it Ray keeps."""

    min_replicas: Annotated[int, Field(ge=1)] = Field(1, description="kept without load")
    max_replicas: Annotated[int, Field(ge=1)] = Field(1, description="started under load")
    num_cpus: Annotated[float, Field(gt=0)] = Field(1.0, description="reserved for a replica")
    num_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="reserved for a replica")
    target_ongoing: Annotated[float, Field(gt=0)] = Field(
        2.0, description="requests in a replica, on average, above which another is started"
    )
    upscale_delay_s: Annotated[float, Field(ge=0)] = Field(
        10.0, description="load must last before a replica is added"
    )
    downscale_delay_s: Annotated[float, Field(ge=0)] = Field(
        300.0, description="load must be gone before a replica is ended"
    )

    @model_validator(mode="after")
    def _refuses_before_ray_does(self) -> Self:
        taken_on = 1 + self.waiting + self.generations
        if 4 * taken_on > FUSE:
            raise ValueError(
                f"waiting and generations let {taken_on} requests into a replica; with Ray at most "
                f"{FUSE // 4}, so that the app refuses before Ray does"
            )
        return self

    @model_validator(mode="after")
    def _no_strangers_without_a_key(self) -> Self:
        if self.hosts and self.key is None and not self.allow_open:
            raise ValueError(
                "naming hosts lets others in: set a key (FLUOROSCOPE_KEY), or allow_open=true if "
                "anybody may use these servers"
            )
        return self

    @property
    def run_threads(self) -> int:
        """Of the processor for one run: the whole processors that Ray reserves, unless told."""
        return self.threads or max(1, math.floor(self.num_cpus))


class Replica:
    """What Ray asks of a replica beside its routes."""

    app: FastAPI  # Ray gives it

    async def check_health(self) -> None:
        """Raises where the model gives no answers any more; Ray then starts another replica."""
        reason = await self.app.state.inspector.why_not_ready()
        if reason is not None:
            raise RuntimeError(reason)


class AsBytes:
    """Bodies as bytes, which travel between Ray's processes; a view of memory does not."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_bytes(message: Message) -> None:
            if isinstance(message.get("body"), memoryview):
                message = {**message, "body": bytes(message["body"])}
            await send(message)

        await self.app(scope, receive, send_bytes)


def build(args: dict[str, Any]) -> Application:
    """One application, one model: what `serve run` and serve.yaml call, `args` being a Fleet's."""
    return application(Fleet(**args), create_app)


def application(fleet: Fleet, make_app: Callable[[Settings], FastAPI]) -> Application:
    """The app on `min_replicas` to `max_replicas` replicas, each calling `make_app` for its own.

    All get the settings as they stand here, with what the environment says here.
    """
    settings = fleet.model_copy(update={"threads": fleet.run_threads})

    def make() -> FastAPI:  # called in the replica: an app itself would not travel
        keep_freed_memory()
        logging.config.dictConfig(log_config(settings.log_format, settings.log_level))
        app = make_app(settings)
        app.add_middleware(AsBytes)
        return app

    deployment = serve.deployment(
        name="fluoroscope",
        ray_actor_options={
            "num_cpus": fleet.num_cpus,
            "num_gpus": fleet.num_gpus,
            "runtime_env": {
                "env_vars": {
                    "OMP_NUM_THREADS": str(fleet.run_threads),
                    "MALLOC_ARENA_MAX": "2",
                    **SPINS,
                }
            },
        },
        autoscaling_config=AutoscalingConfig(
            min_replicas=fleet.min_replicas,
            max_replicas=fleet.max_replicas,
            target_ongoing_requests=fleet.target_ongoing,
            upscale_delay_s=fleet.upscale_delay_s,
            downscale_delay_s=fleet.downscale_delay_s,
        ),
        max_ongoing_requests=FUSE,
        max_queued_requests=FUSE,
        graceful_shutdown_timeout_s=fleet.grace_seconds,
        logging_config=LoggingConfig(enable_access_log=False),  # ours says more, and no prompt
    )
    return deployment(serve.ingress(make)(Replica)).bind()
