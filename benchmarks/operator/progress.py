"""Jobs that train, at rest but for their progress: agents are played, with the keys, bytes and rates of real ones."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from benchmarks.operator.agents import PlayedAgents
from benchmarks.operator.fake_cluster import Client, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.process import Operator, cpu_seconds, difference, quantile, requests
from benchmarks.operator.scale import TENANTS, seeded
from benchmarks.operator.scenarios import JOBS, job
from hack.cluster.loopback import ControlPlane
from hack.cluster.processes import Child

WORKERS = 2
REPORT_SECONDS = 10.0
"""What agents do after ten minutes."""
STARTS_PER_SECOND = 40
"""Jobs: an operator that starts reconciles each once, and creates the object of its progress."""
NEW_JOBS, LONGEST_WAIT = 10, 30.0
"""How many are created one after the other meanwhile, and how long to wait for the pods of each, s."""
Figures = dict[str, float]
NAMESPACES = tuple([f"tenant-{number}" for number in range(TENANTS)])
PROGRESSES = JOBS.replace("elasticjobs", "elasticjobprogresses")


async def run(folder: Path, endpoint: str, jobs: int, seconds: float) -> Figures:
    async with seeded(folder, endpoint, jobs, WORKERS, trains=True) as (cluster, client, agents_etcd):
        while len(found := await _list(client)) < jobs:  # noqa: ASYNC110 the API server's cache follows its etcd
            await asyncio.sleep(1)
        agents = PlayedAgents(agents_etcd, WORKERS)
        for number, (name, body) in enumerate(found.items()):
            agents.take_over(name, body["status"]["rendezvous"]["id"], first_report_in=REPORT_SECONDS * number / jobs)
        # Before the operator: jobs that have not progressed for a minute would all be stalled.
        playing = asyncio.create_task(agents.run())
        with contextlib.ExitStack() as operators:
            operator, _ = await asyncio.to_thread(leader_and_standby, operators, cluster, folder)
            await asyncio.sleep(2 * REPORT_SECONDS + jobs / STARTS_PER_SECOND)
            meter = Meter.of(operator, cluster)
            figures = await meter.over(seconds)
            figures |= await ages_of_steps(client, agents.ages)
            figures |= await asyncio.to_thread(read_list, cluster.kubeconfig)
            created = sorted([await create(client, f"new-{number}", endpoint) for number in range(NEW_JOBS)])
            operator.kill()
            figures["leader killed: the next pods, s"] = await create(client, "last", endpoint)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
    return figures | {"a new job: pods created, median, s": created[NEW_JOBS // 2], "the slowest, s": created[-1]}


def leader_and_standby(operators: contextlib.ExitStack, cluster: ControlPlane, folder: Path) -> list[Operator]:
    return [
        operators.enter_context(
            Operator(
                cluster.kubeconfig,
                folder / f"{name}.log",
                ELASTICJOB_LEASE_NAMESPACE="default",
                ELASTICJOB_LEASE_IDENTITY=name,
            )
        )
        for name in ("operator", "standby")
    ]


async def _list(client: Client, path: str = JOBS, namespaces: Sequence[str] = NAMESPACES) -> dict[str, Json]:
    return {
        item["metadata"]["name"]: item
        for namespace in namespaces
        for item in (await client.call("GET", path.format(namespace)))["items"]
    }


async def ages_of_steps(client: Client, ages: Callable[[dict[str, int]], list[float]], *namespaces: str) -> Figures:
    """How old what is shown is. `ages`: of steps by job, sorted."""
    where = namespaces or NAMESPACES
    jobs, beside = await _list(client, JOBS, where), await _list(client, PROGRESSES, where)
    in_status = {name: _step(body["status"]) for name, body in jobs.items()}
    newest = {name: max(step, _step(beside.get(name, {}))) for name, step in in_status.items()}
    figures = {}
    for place, steps in (("kubectl get", in_status), ("elasticjob list", newest)):
        found = ages(steps)
        figures[f"step in `{place}`, p50: age, s"] = found[len(found) // 2]
        figures[f"step in `{place}`, p99: age, s"] = found[len(found) * 99 // 100]
    return figures


def _step(body: Json) -> int:
    return int((body.get("progress") or {}).get("step") or 0)


def read_list(kubeconfig: Path) -> dict[str, float]:
    """How long `elasticjob list -A` takes, with the start of the program."""
    command = [sys.executable, "-m", "elasticjob", "list", "-A", "--kubeconfig", str(kubeconfig)]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        listing.stdout.readline()
        first = time.monotonic() - began
        listing.stdout.read()
    return {"`elasticjob list -A`: first page, s": first, "all, s": time.monotonic() - began}


async def create(client: Client, name: str, endpoint: str, namespace: str = "seed", workers: int = WORKERS) -> float:
    """s until its pods were created; `LONGEST_WAIT` if they were not."""
    async with PodCount(client, namespace) as count:
        there, began = len(count.created), time.monotonic()
        await client.call("POST", JOBS.format(namespace), job(name, workers, endpoint))
        with contextlib.suppress(TimeoutError):
            await count.until(created=there + workers, seconds=LONGEST_WAIT)
        return time.monotonic() - began


@dataclasses.dataclass(frozen=True)
class Meter:
    operator: Operator
    etcd: Child
    api_server: Child
    etcd_endpoint: str

    @classmethod
    def of(cls, operator: Operator, cluster: ControlPlane) -> Meter:
        etcd, api_server = cluster.children[:2]
        return cls(operator, etcd, api_server, cluster.etcd_endpoint)

    async def over(self, seconds: float) -> dict[str, float]:
        """Cores, requests and bytes over this many seconds."""
        before, metrics, began = await self._read(), self.operator.metrics(), time.monotonic()
        await asyncio.sleep(seconds)
        after, spent = await self._read(), difference(metrics, self.operator.metrics())
        seconds = time.monotonic() - began
        cores = {name: (after[name] - before[name]) / seconds for name in ("operator", "kube-apiserver", "etcd")}
        sent = {f"{name}, requests/s": count / seconds for name, count in requests(spent).items() if count > seconds}
        return {
            **{f"{name}, cores": value for name, value in cores.items()},
            "reconciliations/s": spent["elasticjob_reconcile_seconds_count"] / seconds,
            **sent,
            "etcd of Kubernetes: written, GB/h": (after["written"] - before["written"]) / seconds * 3600 / 1e9,
            "etcd of Kubernetes: MiB": after["size"] / 2**20,
            "etcd of Kubernetes: growth, MiB/h": (after["size"] - before["size"]) / seconds * 3600 / 2**20,
            "operator, MiB": self.operator.cost().memory,
            "event loop, p99: lag, ms": 1e3 * quantile(spent, "elasticjob_loop_lag_seconds", 0.99),
            "queue, p99: wait, s": quantile(spent, "elasticjob_queue_wait_seconds", 0.99),
        }

    async def _read(self) -> dict[str, float]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.etcd_endpoint}/metrics") as answer:
            text = await answer.text()
        size, written = (
            float(found[1]) if (found := re.search(rf"(?m)^{name} (\S+)", text)) else 0.0
            for name in ("etcd_mvcc_db_total_size_in_bytes", "etcd_network_client_grpc_received_bytes_total")
        )
        return {
            "operator": self.operator.cost().cpu,
            "kube-apiserver": cpu_seconds(self.api_server.pid),
            "etcd": cpu_seconds(self.etcd.pid),
            "size": size,
            "written": written,
        }
