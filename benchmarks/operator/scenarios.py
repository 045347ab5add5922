"""The scenarios `big`, `idle` and `own`. Each returns its figures by name."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from benchmarks.operator.fake_cluster import Client, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.process import Operator, Samples, beyond_creates, difference, idle_cost, quantile, requests
from hack.cluster import components
from hack.cluster.loopback import answers
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

JOBS = "/apis/elasticjob.dev/v1alpha1/namespaces/{}/elasticjobs"
PODS = "/api/v1/namespaces/{}/pods"
IN_FLIGHT = 64
TEMPLATE: Json = {
    "spec": {"containers": [{"name": "trainer", "image": "trainer:1", "command": ["elasticrun", "train.py"]}]}
}


def job(name: str, workers: int, endpoint: str) -> Json:
    sizes = {"replicas": workers, "minReplicas": 1, "maxReplicas": workers, "template": TEMPLATE}
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"workers": sizes, "rendezvous": {"type": "External", "endpoint": endpoint}},
    }


@contextlib.asynccontextmanager
async def namespace(client: Client, name: str) -> AsyncIterator[str]:
    """Created, and deleted at the end."""
    await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    await client.call("DELETE", JOBS.format(name))
    await client.call("DELETE", PODS.format(name), {"gracePeriodSeconds": 0})
    await client.call("DELETE", f"/api/v1/namespaces/{name}")
    while True:  # the next measurement must not include this one's garbage collection
        found = await client.call("GET", f"/api/v1/namespaces?fieldSelector=metadata.name={name}")
        if not found["items"]:
            return
        await asyncio.sleep(0.5)


@contextlib.contextmanager
def etcds(folder: Path, count: int) -> Iterator[Callable[[int], str]]:
    """An etcd on this many loopback addresses, so that clients see as many etcds. Yields the endpoint of each."""
    port, peer = free_ports(2)
    hosts = ["127.0.0.1", *(f"127.7.{number // 250}.{number % 250 + 1}" for number in range(count if count > 1 else 0))]
    urls = ",".join(f"http://{host}:{port}" for host in hosts)
    command = [*components.etcd(folder / f"etcd-{count}", port, peer), f"--listen-client-urls={urls}"]
    child = Child(command, folder / "etcd.log")
    try:
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield lambda number: f"{hosts[1 + number] if count > 1 else hosts[0]}:{port}"
    finally:
        child.stop(grace=0)


async def big_jobs(
    client: Client, operator: Operator, workers: int, endpoint: str, repetitions: int
) -> dict[str, float]:
    """The median of each figure over several repetitions: other load on the machine affects operator and bare client at
    different times."""
    found = [await _big_job(client, operator, workers, endpoint) for _ in range(repetitions)]
    return {name: statistics.median(item[name] for item in found) for name in found[0]}


async def _big_job(client: Client, operator: Operator, workers: int, endpoint: str) -> dict[str, float]:
    """Seconds from apply until all pods are created, until all run, and until the status shows it; and the same creates
    by the bare client."""
    before = operator.metrics()
    async with namespace(client, "big") as ns, PodCount(client, ns) as pods:
        started, cpu = time.monotonic(), operator.cost().cpu
        await client.call("POST", JOBS.format(ns), job("big", workers, endpoint))
        await pods.until(created=workers, running=workers)
        while (await client.call("GET", JOBS.format(ns) + "/big"))["status"]["workers"] != f"{workers}/{workers}":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        shown = time.monotonic() - started
        cpu = operator.cost().cpu - cpu
        bodies = [_as_created(item) for item in (await client.call("GET", PODS.format(ns)))["items"]]
        mine = (max(pods.created.values()) - started, max(pods.running.values()) - started)
        spent = difference(before, operator.metrics())
    async with namespace(client, "bare") as ns, PodCount(client, ns) as pods:
        started = time.monotonic()
        await send_all([client.call("POST", PODS.format(ns), body) for body in bodies])
        await pods.until(created=workers, running=workers)
        bare = (max(pods.created.values()) - started, max(pods.running.values()) - started)
    return {
        "created, s": mine[0],
        "running, s": mine[1],
        "status shows it, s": shown,
        "bare client: created, s": bare[0],
        "bare client: running, s": bare[1],
        "created / bare": mine[0] / bare[0],
        "running / bare": mine[1] / bare[1],
        "status / bare running": shown / bare[1],
        "operator's CPU, s": cpu,
        "API calls per pod beyond create": beyond_creates(spent),
    }


def _as_created(pod: Json) -> Json:
    """The pod as it was created: without the server's additions, and without an owner, lest it be garbage-collected."""
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in ("nodeName", "tolerations", "priority", "preemptionPolicy")
    }
    return {"metadata": {key: pod["metadata"].get(key) for key in ("name", "labels", "annotations")}, "spec": spec}


async def many_jobs(
    client: Client,
    operator: Operator,
    jobs: int,
    workers: int,
    endpoint: Callable[[int], str],
    idle_seconds: float,
    *,
    storm: bool,
) -> dict[str, float]:
    """`jobs` jobs of `workers` pods: their cost at rest, then what happens when a tenth of all pods fails at once."""
    figures: dict[str, float] = {}
    total = jobs * workers
    ns = "many"  # which ends with the cluster
    await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": ns}})
    async with PodCount(client, ns) as pods:
        started, began = time.monotonic(), operator.metrics()
        await send_all(
            [
                client.call("POST", JOBS.format(ns), job(f"job-{number}", workers, endpoint(number)))
                for number in range(jobs)
            ]
        )
        await pods.until(created=total, running=total, seconds=600)
        figures["start: time until all pods run, s"] = time.monotonic() - started
        await wait_until_quiet(operator)
        figures["start: reconcile p99, s"] = quantile(
            difference(began, operator.metrics()), "elasticjob_reconcile_seconds", 0.99
        )
        cores, cost = await asyncio.to_thread(idle_cost, operator, idle_seconds)
        figures |= {"idle: % of a core": cores * 100, "idle: MiB": cost.memory, "idle: threads": cost.threads}
        if storm:
            figures |= await _storm(client, operator, ns, pods, total)
        spent = difference(began, operator.metrics())
        created, counted = spent["elasticjob_pods_created_total"], requests(spent)
        figures["API calls per pod beyond create"] = beyond_creates(spent)
        figures |= {f"  {name}": count / created for name, count in counted.items() if count / created >= 0.01}
    return figures


async def _storm(client: Client, operator: Operator, ns: str, pods: PodCount, total: int) -> dict[str, float]:
    found = (await client.call("GET", PODS.format(ns)))["items"]
    victims = [pod for pod in found if pod["metadata"]["labels"].get("elasticjob.dev/component") == "worker"][::10]
    before, started, cpu = operator.metrics(), time.monotonic(), operator.cost().cpu
    ages: list[float] = []
    watching = asyncio.create_task(_watch_queue(operator, ages))
    path = PODS.format(ns) + "/{}/status"
    kind = "application/merge-patch+json"
    with operator.profiled():
        await send_all(
            [client.call("PATCH", path.format(pod["metadata"]["name"]), as_failed(pod), kind) for pod in victims]
        )
        sent = time.monotonic() - started
        await pods.until(created=total + len(victims), running=total + len(victims))
        took = time.monotonic() - started
        await wait_until_quiet(operator)
    watching.cancel()
    spent: Samples = difference(before, operator.metrics())
    return {
        "storm: failed pods": len(victims),
        "storm: time to report the failures, s": sent,
        "storm: time until all are replaced and running, s": took,
        "storm: reconciliations per failure": spent["elasticjob_reconcile_seconds_count"] / len(victims),
        "storm: API calls per failure": sum(requests(spent).values()) / len(victims),
        "storm: reconcile p50, s": quantile(spent, "elasticjob_reconcile_seconds", 0.5),
        "storm: reconcile p99, s": quantile(spent, "elasticjob_reconcile_seconds", 0.99),
        "storm: wait in the queue p50, s": quantile(spent, "elasticjob_queue_wait_seconds", 0.5),
        "storm: wait in the queue p99, s": quantile(spent, "elasticjob_queue_wait_seconds", 0.99),
        "storm: oldest in the queue, s": max(ages, default=0.0),
        "storm: operator's CPU per failure, ms": (operator.cost().cpu - cpu) / len(victims) * 1000,
    }


def as_failed(pod: Json) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"exitCode": 1, "reason": "Error", "startedAt": pod["status"]["startTime"], "finishedAt": now}
    container = {
        "name": "trainer",
        "image": "trainer:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    return {"status": {"phase": "Failed", "containerStatuses": [container]}}


async def _watch_queue(operator: Operator, ages: list[float]) -> None:
    while True:
        samples = await asyncio.to_thread(operator.metrics)
        ages.append(samples["elasticjob_queue_oldest_seconds"])
        await asyncio.sleep(1)


async def wait_until_quiet(operator: Operator) -> None:
    """Returns once the operator has reconciled nothing for 3 s, except for the resync."""
    count = -1.0
    while True:
        now = (await asyncio.to_thread(operator.metrics))["elasticjob_reconcile_seconds_count"]
        if now - count <= 2:
            return
        count = now
        await asyncio.sleep(3)


async def send_all(calls: list[object]) -> None:
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(call: object) -> None:
        async with slots:
            await call  # type: ignore[misc]

    await asyncio.gather(*(one(call) for call in calls))
