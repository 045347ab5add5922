"""A fleet of jobs that train and report their progress: it starts, trains, loses a twentieth of its nodes, and the
operator that leads it. What grows with the number of jobs is measured at several sizes, and drawn on to the size that
a fleet may have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.operator import scenarios
from benchmarks.operator.agents import LONG_AGO_SECONDS, TICK_SECONDS, PlayedAgents
from benchmarks.operator.fake_cluster import NODES, Client, FakeCluster, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.progress import (
    NEW_JOBS,
    Figures,
    Meter,
    ages_of_steps,
    create,
    leader_and_standby,
    read_list,
)
from benchmarks.operator.scenarios import JOBS, PODS, job, send_all
from benchmarks.operator.seed import Etcd

FULL = 5000
"""Jobs of the fleet that the goals are for."""
NAMESPACE = "fleet"
LOST_SHARE = 0.05
"""Of the nodes."""
WHOLE_SECONDS = 600.0
"""How long to wait until all jobs train."""
MERGE = "application/merge-patch+json"
GROWING = {
    "operator, cores": 0.5,
    "kube-apiserver, cores": 0.5,
    "etcd of Kubernetes: MiB": 200,
    "etcd of Kubernetes: written, GB/h": 0.6,
    "operator, MiB": 512,
}
"""Figures that grow with the number of jobs -> at most, at FULL."""
GOALS = GROWING | {
    "step in `elasticjob list`, p99: age, s": 60,
    "step in `kubectl get`, p99: age, s": 300,
    "`elasticjob list -A`: first page, s": 1,
    "event loop, p99: lag, ms": 20,
    "a new job: pods created, slowest of 10, s": 2,
    "5 % of nodes lost: all jobs whole, s": 60,
    "leader killed: the next pods, s": 5,
}
"""The others say something about the size that was measured only."""


async def run(folder: Path, jobs: int, workers: int, seconds: float) -> Figures:
    """`seconds`: how long to measure while all train."""
    with FakeCluster(folder) as cluster, scenarios.etcds(folder, 1) as endpoint, contextlib.ExitStack() as operators:
        first, _ = leader_and_standby(operators, cluster, folder)
        async with Client(cluster.kubeconfig) as client, Etcd(f"http://{endpoint(0)}") as etcd:
            await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            agents = PlayedAgents(etcd, workers)
            async with PodCount(client, NAMESPACE, agents.on_running), asyncio.TaskGroup() as group:
                playing = group.create_task(agents.run())
                meter = Meter.of(first, cluster)
                figures = await _ramp(client, agents, jobs, workers, endpoint(0))
                agents.age(LONG_AGO_SECONDS)
                figures |= await meter.over(seconds)
                figures |= await ages_of_steps(client, agents.ages, NAMESPACE)
                figures |= await asyncio.to_thread(read_list, cluster.kubeconfig)
                took = [await create(client, f"new-{n}", endpoint(0), NAMESPACE, workers) for n in range(NEW_JOBS)]
                figures["a new job: pods created, slowest of 10, s"] = max(took)
                figures |= await _storm(client, agents, jobs + NEW_JOBS)
                first.kill()
                figures["leader killed: the next pods, s"] = await create(
                    client, "last", endpoint(0), NAMESPACE, workers
                )
                playing.cancel()
    return figures


async def _ramp(client: Client, agents: PlayedAgents, jobs: int, workers: int, endpoint: str) -> Figures:
    began = time.monotonic()
    path = JOBS.format(NAMESPACE)
    await send_all([client.call("POST", path, job(f"job-{number:05}", workers, endpoint)) for number in range(jobs)])
    await _until(lambda: agents.all_train(jobs))
    return {"jobs": jobs, "worker pods": jobs * workers, "start: all train, s": time.monotonic() - began}


async def _storm(client: Client, agents: PlayedAgents, jobs: int) -> Figures:
    """Nodes fall silent, with their pods."""
    await _until(lambda: agents.all_train(jobs))
    lost = {f"node-{number}" for number in range(max(1, round(NODES * LOST_SHARE)))}
    found = (await client.call("GET", PODS.format(NAMESPACE)))["items"]
    victims = [pod for pod in found if pod["spec"].get("nodeName") in lost]
    began = time.monotonic()
    for name in lost:
        await client.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}, MERGE)
        await client.call("PATCH", f"/api/v1/nodes/{name}/status", _silent(), MERGE)
    agents.lose(victims)
    await _until(lambda: agents.all_train(jobs))
    return {
        "5 % of nodes lost: worker pods": len(victims),
        "5 % of nodes lost: all jobs whole, s": time.monotonic() - began,
    }


def _silent() -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
    return {"status": {"conditions": [ready]}}


async def _until(done: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(WHOLE_SECONDS):
        while not done():  # noqa: ASYNC110 the agents are played in steps
            await asyncio.sleep(TICK_SECONDS)


def at_full(sizes: Sequence[float], values: Sequence[float], full: float = FULL) -> float:
    """On the straight line through the smallest and the largest size, not below the largest value.

    >>> at_full([40, 80], [1.0, 1.4], 180), at_full([40, 80], [1.4, 1.0], 180)
    (2.4, 1.0)
    """
    slope = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
    return round(values[-1] + max(0.0, slope) * (full - sizes[-1]), 6)


def show(console: Console, found: Sequence[Figures]) -> None:
    """`found`: by size, the smallest first."""
    table = Table(title=f"fleet, load of this machine {os.getloadavg()[0]:.1f}", title_justify="left")
    table.add_column("")
    for figures in found:
        table.add_column(f"{figures['jobs']:.0f} jobs", justify="right")
    table.add_column(f"{FULL} by the slope", justify="right")
    table.add_column(f"goal for {FULL}", justify="right")
    for name in found[-1]:
        values = [figures.get(name, 0.0) for figures in found]
        drawn = name in GROWING and len(found) > 1
        full = _text(at_full([item["jobs"] for item in found], values)) if drawn else ""
        table.add_row(name, *map(_text, values), full, f"{GOALS[name]:g}" if name in GOALS else "")
    console.print(table)


def _text(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
