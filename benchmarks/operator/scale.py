"""Thousands of jobs of several tenants: what a start, flapping nodes and another tenant's failures cost."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.operator.fake_cluster import Client, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.process import Operator, Samples, difference, requests
from benchmarks.operator.scenarios import JOBS, PODS, as_failed, send_all, wait_until_quiet
from benchmarks.operator.seed import Etcd, Original, nodes
from hack.cluster.loopback import ControlPlane
from tests.integration.operator.conftest import install_crd
from tests.integration.operator.rendezvous import Agents

TENANTS = 10
NODES = 500
FLAP_SECONDS, NODE_LOST_SECONDS = 2.0, 60
"""How long nodes are silent, and after how long one counts as lost: only after all of them are ready again."""
SETTINGS = {"ELASTICJOB_NODE_LOST_SECONDS": str(NODE_LOST_SECONDS), "ELASTICJOB_RESYNC_SECONDS": "900"}
"""No resync meanwhile: it would hide the cost of each event."""
MERGE = "application/merge-patch+json"
ENVIRONMENT = [
    {"name": f"SETTING_{number}", "value": f"a value of the environment, number {number}"} for number in range(12)
]
LIMITS = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
TEMPLATE: Json = {
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "registry.example/team/trainer:2026.11",
                "command": ["elasticrun", "--standalone-tuning", "train.py", "--config", "/config/model.yaml"],
                "env": ENVIRONMENT,
                "resources": {"limits": LIMITS, "requests": LIMITS},
                "volumeMounts": [
                    {"name": "checkpoints", "mountPath": "/checkpoints"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
}


class Seeded(ControlPlane):
    """A control plane without scheduler, kubelets and controllers. Ends with this process."""

    def _start(self) -> None:
        super()._start()
        install_crd(self)

    def _server_flags(self) -> Json:
        return {
            **super()._server_flags(),
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition,PersistentVolumeClaimResize",
        }


@contextlib.asynccontextmanager
async def seeded(
    folder: Path, endpoint: str, jobs: int, workers: int, *, trains: bool = False
) -> AsyncIterator[tuple[Seeded, Client, Etcd]]:
    """(a control plane whose etcd has these jobs with their pods, a client, the etcd of the agents); `trains`: the
    agents have a plan and have reported progress."""
    with Seeded(folder) as cluster:
        async with (
            Client(cluster.kubeconfig) as client,
            Etcd(cluster.etcd_endpoint) as etcd,
            Etcd(f"http://{endpoint}") as agents_etcd,
        ):
            for tenant in ("seed", *(f"tenant-{number}" for number in range(TENANTS))):
                await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": tenant}})
            await etcd.write(nodes(NODES))
            with Operator(cluster.kubeconfig, folder / "seed.log"):
                original = await _make_original(client, agents_etcd, workers, endpoint, trains=trains)
            await _copy(original, jobs, workers, etcd, agents_etcd)
            yield cluster, client, agents_etcd


async def run(folder: Path, endpoint: str, jobs: int, workers: int) -> dict[str, float]:
    figures = _Figures()
    async with seeded(folder, endpoint, jobs, workers) as (cluster, client, _):
        began = time.monotonic()
        with Operator(cluster.kubeconfig, folder / "operator.log", None, **SETTINGS) as operator:
            figures.add({"start: ready after, s": time.monotonic() - began})
            await wait_until_quiet(operator)
            figures.add(_cost(operator, "start") | _requests(operator.metrics(), jobs))
            await asyncio.sleep(10)
            figures.add({"at rest: MiB": operator.cost().memory})
            figures.add(await _flap(client, operator))
            figures.add(await _two_tenants(client, operator))
            figures.add({"end: peak memory, MiB": operator.cost().peak})
    return figures


class _Figures(dict[str, float]):
    """Figures, printed as they are added: the whole benchmark takes minutes."""

    def add(self, more: dict[str, float]) -> None:
        self.update(more)
        for name, value in more.items():
            print(f"  {name}: {value:.4g}", file=sys.stderr, flush=True)


def _cost(operator: Operator, name: str) -> dict[str, float]:
    cost = operator.cost()
    return {
        f"{name}: operator's CPU, s": cost.cpu,
        f"{name}: peak memory, MiB": cost.peak,
        f"{name}: MiB": cost.memory,
    }


def _requests(spent: Samples, jobs: int) -> dict[str, float]:
    reconciliations = spent["elasticjob_reconcile_seconds_count"] / jobs
    return {
        "start: reconciliations per job": reconciliations,
        "start: API calls without watches": sum(requests(spent).values()),
    }


async def _make_original(client: Client, agents_etcd: Etcd, workers: int, endpoint: str, *, trains: bool) -> Original:
    """A job whose pods run, with all objects and the status that the operator wrote."""
    name = "job-00000"
    sizes = {"replicas": workers, "minReplicas": 1, "maxReplicas": 2 * workers, "template": TEMPLATE}
    spec = {"workers": sizes, "rendezvous": {"type": "External", "endpoint": endpoint}}
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}
    await client.call("POST", JOBS.format("seed"), body)
    while len(pods := (await client.call("GET", PODS.format("seed")))["items"]) < workers:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for pod in pods:
        path = f"{PODS.format('seed')}/{pod['metadata']['name']}"
        binding = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": "node-0000"}}
        await client.call("POST", f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
        await client.call("PATCH", f"{path}/status", _running(), MERGE)
    while trains:
        job = await client.call("GET", f"{JOBS.format('seed')}/{name}")
        if run_id := ((job.get("status") or {}).get("rendezvous") or {}).get("id"):
            await asyncio.to_thread(_train, endpoint, run_id, workers)
            break
        await asyncio.sleep(0.1)
    while True:
        job = await client.call("GET", f"{JOBS.format('seed')}/{name}")
        keys = await agents_etcd.read("/elasticjob/")
        if (job.get("status") or {}).get("workers") == f"{workers}/{workers}" and keys:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)  # the last status update
    job = await client.call("GET", f"{JOBS.format('seed')}/{name}")
    pods = (await client.call("GET", PODS.format("seed")))["items"]
    services = (await client.call("GET", "/api/v1/namespaces/seed/services"))["items"]
    for kind, item in [("Pod", pod) for pod in pods] + [("Service", service) for service in services]:
        item |= {"apiVersion": "v1", "kind": kind}
    return Original(job, pods, services, keys)


def _train(endpoint: str, run_id: str, workers: int) -> None:
    agents = Agents(endpoint, run_id)
    agents.plan(1, size=workers)
    agents.progress(1000)
    agents.close()


def _running() -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [
        {"type": type_, "status": "True", "lastTransitionTime": now}
        for type_ in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    image = "registry.example/team/trainer"
    container = {
        "name": "trainer",
        "image": f"{image}:2026.11",
        "imageID": f"{image}@sha256:{'a' * 64}",
        "containerID": f"containerd://{'b' * 64}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    addresses = {"hostIP": "10.0.0.1", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "startTime": now}
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container], **addresses}}


async def _copy(original: Original, jobs: int, workers: int, etcd: Etcd, agents_etcd: Etcd) -> None:
    for first in range(1, jobs + 1, 250):
        objects, keys = [], []
        for number in range(first, min(first + 250, jobs + 1)):
            places = [f"node-{(number * workers + worker) % NODES:04}" for worker in range(workers)]
            more = original.copy(f"job-{number:05}", f"tenant-{number % TENANTS}", places)
            objects += more[0]
            keys += more[1]
        await etcd.write(objects)
        await agents_etcd.write(keys)


async def _flap(client: Client, operator: Operator) -> dict[str, float]:
    """Half of the nodes become silent, and are ready again before they count as lost."""
    before, cpu, waits = operator.metrics(), operator.cost().cpu, list[float]()
    async with _probing(operator, waits):
        for ready in ("Unknown", "True"):
            condition = {
                "type": "Ready",
                "status": ready,
                "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            body = {"status": {"conditions": [condition]}}
            paths = [f"/api/v1/nodes/node-{number:04}/status" for number in range(0, NODES, 2)]
            await send_all([client.call("PATCH", path, body, MERGE) for path in paths])
            await asyncio.sleep(FLAP_SECONDS if ready == "Unknown" else 0)
        await wait_until_quiet(operator)
    spent = difference(before, operator.metrics())
    return {
        "flap: nodes": NODES / 2,
        "flap: operator's CPU, s": operator.cost().cpu - cpu,
        "flap: reconciliations": spent["elasticjob_reconcile_seconds_count"],
        "flap: API calls": sum(requests(spent).values()),
        "flap: longest wait for /healthz, s": max(waits, default=0.0),
    }


@contextlib.asynccontextmanager
async def _probing(operator: Operator, waits: list[float]) -> AsyncIterator[None]:
    """Appends to `waits` how long /healthz takes, while the event loop is busy."""

    async def probe() -> None:
        while True:
            began = time.monotonic()
            await asyncio.to_thread(operator.probe)
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _two_tenants(client: Client, operator: Operator) -> dict[str, float]:
    """Every job of one tenant loses a pod at once; jobs of another are scaled before and during that."""
    own, other = "tenant-1", "tenant-2"
    names = [item["metadata"]["name"] for item in (await client.call("GET", JOBS.format(own)))["items"]]
    pods = (await client.call("GET", PODS.format(other)))["items"]
    victims = [pod for pod in pods if pod["metadata"]["labels"].get("elasticjob.dev/worker-index") == "0"]
    async with PodCount(client, own) as count:
        before_storm = [await _scale(client, count, own, name) for name in (names * 10)[:10]]
        before, cpu = operator.metrics(), operator.cost().cpu
        path = PODS.format(other) + "/{}/status"
        began = time.monotonic()
        storm = asyncio.create_task(
            send_all(
                [client.call("PATCH", path.format(pod["metadata"]["name"]), as_failed(pod), MERGE) for pod in victims]
            )
        )
        await asyncio.sleep(1)
        during_storm = [await _scale(client, count, own, name) for name in (names * 10)[10:30]]
        await storm
        await wait_until_quiet(operator)
        took = time.monotonic() - began
    spent = difference(before, operator.metrics())
    return {
        "storm: failures": len(victims),
        "storm: duration, s": took,
        "storm: operator's CPU per failure, ms": (operator.cost().cpu - cpu) / max(1, len(victims)) * 1000,
        "storm: API calls per failure": sum(requests(spent).values()) / max(1, len(victims)),
        "another tenant, before the storm: time to scale, s": statistics.median(before_storm),
        "another tenant, during the storm: time to scale, s": statistics.median(during_storm),
        "another tenant, during the storm: slowest of 20, s": max(during_storm),
    }


async def _scale(client: Client, count: PodCount, tenant: str, name: str) -> float:
    """Scales the job up by one. Returns the time until its pod exists, s."""
    path = f"{JOBS.format(tenant)}/{name}/scale"
    wanted = (await client.call("GET", path))["spec"]["replicas"] + 1
    there, began = len(count.created), time.monotonic()
    await client.call("PATCH", path, {"spec": {"replicas": wanted}}, MERGE)
    await count.until(created=there + 1, seconds=120)
    return time.monotonic() - began
