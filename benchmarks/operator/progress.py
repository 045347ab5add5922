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
from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, ProgressValue

from benchmarks.operator.fake_cluster import Client, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.process import Operator, cpu_seconds, difference, quantile, requests
from benchmarks.operator.scale import NODES, TENANTS, Seeded, copy, make_original
from benchmarks.operator.scenarios import JOBS, job
from benchmarks.operator.seed import Etcd, nodes
from hack.cluster.processes import Child

REPORT_SECONDS, TICK_SECONDS = 10.0, 0.25
"""What agents do after ten minutes; how often the reports that are due are written together."""
STARTS_PER_SECOND = 40
"""Jobs: an operator that starts reconciles each once, and creates the object of its progress."""
NEW_JOBS, LONGEST_WAIT = 10, 30.0
"""How many are created one after the other meanwhile, and how long to wait for the pods of each, s."""
Figures = dict[str, float]
NAMESPACES = tuple([f"tenant-{number}" for number in range(TENANTS)])
PROGRESSES = JOBS.replace("elasticjobs", "elasticjobprogresses")


class PlayedAgents:
    """Report the progress of jobs by turns, each every `REPORT_SECONDS`."""

    def __init__(self, etcd: Etcd, run_ids: dict[str, str]) -> None:
        """`run_ids`: by name of the job."""
        self._etcd = etcd
        self._run_ids = list(run_ids.items())
        self.reports: dict[str, dict[int, float]] = {name: {} for name in run_ids}
        """By job: steps, and when they were reported (monotonic, s)."""
        self._began = time.monotonic()

    async def run(self) -> None:
        reported = 0
        while True:
            due = int((time.monotonic() - self._began) / REPORT_SECONDS * len(self._run_ids))
            await self._etcd.write([self._report(number) for number in range(reported, due)])
            reported = due
            await asyncio.sleep(TICK_SECONDS)

    def _report(self, number: int) -> tuple[str, bytes]:
        turn, index = divmod(number, len(self._run_ids))
        name, run_id = self._run_ids[index]
        step = 1000 + 31 * (turn + 1)
        self.reports[name][step] = time.monotonic()
        value = ProgressValue(
            step=step,
            round=1,
            steps_per_second=3.0971,
            last_checkpoint_step=step // 100 * 100,
            metrics={"loss": 2.5 / (turn + 1), "learning_rate": 1.1e-5},
            updated_at=time.time(),
        )
        return Keys(DEFAULT_PREFIX, run_id).progress, value.to_json().encode()

    def ages(self, steps: dict[str, int]) -> list[float]:
        """How long ago these steps were reported, s, sorted. `steps`: what is shown, by job."""
        now = time.monotonic()
        return sorted(now - self.reports[name].get(step, self._began) for name, step in steps.items())


async def run(
    folder: Path, endpoint: str, jobs: int, workers: int, seconds: float, start: Callable[[Path, str], Operator]
) -> dict[str, float]:
    """`start(kubeconfig, name of the log)` returns an operator, which leads or is a standby."""
    with Seeded(folder) as cluster:
        async with (
            Client(cluster.kubeconfig) as client,
            Etcd(cluster.etcd_endpoint) as etcd,
            Etcd(f"http://{endpoint}") as agents_etcd,
        ):
            for tenant in ("seed", *(f"tenant-{number}" for number in range(TENANTS))):
                await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": tenant}})
            await etcd.write(nodes(NODES))
            with start(cluster.kubeconfig, "seed.log"):
                original = await make_original(client, agents_etcd, workers, endpoint, trains=True)
            await copy(original, jobs, workers, etcd, agents_etcd)
            while len(found := await _list(client)) < jobs:  # noqa: ASYNC110 the API server's cache follows its etcd
                await asyncio.sleep(1)
            run_ids = {name: body["status"]["rendezvous"]["id"] for name, body in found.items()}
            agents = PlayedAgents(agents_etcd, run_ids)
            # Before the operator: jobs that have not progressed for a minute would all be stalled.
            playing = asyncio.create_task(agents.run())
            with contextlib.ExitStack() as operators:
                operator, _ = [
                    await asyncio.to_thread(operators.enter_context, start(cluster.kubeconfig, log))
                    for log in ("operator.log", "standby.log")
                ]
                await asyncio.sleep(2 * REPORT_SECONDS + jobs / STARTS_PER_SECOND)
                etcd_child, api_server = cluster.children[:2]
                meter = Meter(operator, etcd_child, api_server, cluster.etcd_endpoint)
                figures = await meter.over(seconds)
                figures |= await ages_of_steps(client, agents.ages)
                figures |= await asyncio.to_thread(read_list, cluster.kubeconfig)
                created = sorted([await create(client, f"new-{number}", endpoint) for number in range(NEW_JOBS)])
                operator.kill()
                figures["leader killed: the next pods, s"] = await create(client, "last", endpoint)
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
    return figures | {"a new job: pods created, median, s": created[NEW_JOBS // 2], "the slowest, s": created[-1]}


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


async def create(client: Client, name: str, endpoint: str, namespace: str = "seed", workers: int = 2) -> float:
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
