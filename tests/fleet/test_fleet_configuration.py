"""What Ray is told: of a fleet's settings, of serve.yaml, and of a running cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import ray
import yaml
from pydantic import ValidationError
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from service.ray_app import Fleet, Replica, build
from service.settings import Settings
from tests.fleet.conftest import ROOT, client_of

CONFIG = ROOT / "serve.yaml"


def deployment(**args: Any) -> Any:
    return build(args)._bound_deployment


def test_replicas_are_what_was_asked_for() -> None:
    built = deployment(
        min_replicas=2, max_replicas=5, target_ongoing=3, upscale_delay_s=1, downscale_delay_s=60
    )
    scaling = built._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert scaling.target_ongoing_requests == 3
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (1, 60)


@pytest.mark.parametrize(
    ("num_cpus", "threads", "wanted"), [(1, 0, 1), (4, 0, 4), (2.5, 0, 2), (0.5, 0, 1), (4, 3, 3)]
)
def test_threads_are_the_processors_that_ray_reserves(
    num_cpus: float, threads: int, wanted: int
) -> None:
    options = deployment(num_cpus=num_cpus, threads=threads, num_gpus=1).ray_actor_options
    assert options["num_cpus"] == num_cpus and options["num_gpus"] == 1
    assert options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == str(wanted)


def test_app_refuses_before_ray_does() -> None:
    built = deployment(waiting=200, generations=50)
    assert built.max_ongoing_requests == 1024 >= 4 * (1 + 200 + 50)
    assert built._deployment_config.max_queued_requests == 1024
    assert built._deployment_config.graceful_shutdown_timeout_s == Settings().grace_seconds


def test_more_waiting_than_ray_lets_in_is_refused() -> None:
    """Else Ray's own plain text would answer first."""
    with pytest.raises(ValidationError, match="waiting"):
        Fleet(waiting=300)


def test_environment_at_the_build_reaches_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUOROSCOPE_KEY", "secret-of-the-build")
    sent = deployment()._replica_config.serialized_deployment_def
    monkeypatch.delenv("FLUOROSCOPE_KEY")
    assert b"secret-of-the-build" in sent
    assert b"secret-of-the-build" not in deployment()._replica_config.serialized_deployment_def


def test_strangers_need_a_key() -> None:
    with pytest.raises(ValidationError, match="FLUOROSCOPE_KEY"):
        Fleet(hosts="models.example.org")
    assert Fleet(hosts="models.example.org", key="k").hosts == ["models.example.org"]
    assert Fleet(hosts="models.example.org", allow_open=True).key is None


def test_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="max_replica"):
        build({"max_replica": 3})


def test_fewer_at_most_than_at_least_is_refused() -> None:
    with pytest.raises(ValidationError):
        build({"min_replicas": 3, "max_replicas": 2})


def test_serve_yaml_is_several_models_each_under_its_prefix() -> None:
    config = ServeDeploySchema(**yaml.safe_load(CONFIG.read_text()))
    assert config.http_options.host == "127.0.0.1"
    prefixes = {app.name: app.route_prefix for app in config.applications}
    assert len(prefixes) > 1 and len(set(prefixes.values())) == len(prefixes)
    fleets = {app.name: Fleet(**app.args) for app in config.applications}
    assert len({fleet.model for fleet in fleets.values()}) == len(fleets)
    for app in config.applications:
        assert app.import_path == "service.ray_app:build"
        fleet = fleets[app.name]
        timeout = config.http_options.request_timeout_s
        assert timeout > fleet.body_seconds + fleet.wait_seconds + fleet.run_seconds
        assert timeout > 10 * fleet.max_new_tokens  # a slow generation is no fault


@pytest.mark.parametrize(("key", "status"), [(None, 200), ("of-the-cluster", 401)])
def test_file_is_built_with_the_environment_of_the_cluster(
    key: str | None,
    status: int,
    cluster: str,
    folders: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with that of the shell that sends it: docs/scaling.md says where to export a key."""
    monkeypatch.setenv("FLUOROSCOPE_KEY", "of-this-shell")
    app = yaml.safe_load(CONFIG.read_text())["applications"][0]
    app["args"] |= {"model": str(folders["course"]), "num_cpus": 0.2}
    if key is not None:
        app["runtime_env"] = {"env_vars": {"FLUOROSCOPE_KEY": key}}
    controller = _get_global_client()
    controller.deploy_apps(ServeDeploySchema(applications=[app]), _blocking=True)
    try:
        with client_of(cluster + app["route_prefix"]) as client:
            assert client.get("/health/ready").json()["status"] == "ready"
            assert client.get("/v1/model").status_code == status
    finally:
        controller.delete_apps([app["name"]])


def test_ray_is_told_when_the_model_gives_no_answers() -> None:
    reasons: list[str | None] = [None, "a run is 7 s over its deadline"]

    async def why_not_ready() -> str | None:
        return reasons.pop(0)

    replica = Replica()
    state = SimpleNamespace(inspector=SimpleNamespace(why_not_ready=why_not_ready))
    replica.app = SimpleNamespace(state=state)  # type: ignore[assignment]
    asyncio.run(replica.check_health())
    with pytest.raises(RuntimeError, match="7 s over"):
        asyncio.run(replica.check_health())


def test_cluster_runs_with_what_was_told(
    gated_replicas: httpx.Client, context: ray.client_builder.ClientContext
) -> None:
    assert not context.dashboard_url
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    deployed = serve.status().applications["gated"].deployments["fluoroscope"]
    assert deployed.replica_states == {"RUNNING": 2}
    assert gated_replicas.get("/process").json() == {
        "threads": 1,
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "GOMP_SPINCOUNT": "10000",
    }
    limits = gated_replicas.get("/v1/model").json()["limits"]
    assert (limits["waiting"], limits["run_seconds"]) == (2, 60)
