"""The scenario `queued`: jobs that wait in a ClusterQueue of stock Kueue until it opens, and batch Jobs of as many pods
through the same queue, in the same run.

On the test cluster (root), since Kueue needs webhooks, with kwok's nodes beside its own. The operator runs outside.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import yaml

from benchmarks.operator.fake_cluster import Client, Json
from benchmarks.operator.pods import PodCount
from benchmarks.operator.process import Operator, Samples
from benchmarks.operator.scenarios import JOBS, PODS, etcds, send_all
from benchmarks.operator.scenarios import job as elastic_job
from hack import cluster
from hack.cluster import kueue
from hack.cluster.components import command
from hack.cluster.lifecycle import kubectl
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.cluster.programs import source_of_module
from hack.images.recipe import ROOT

API = "kueue.x-k8s.io/v1beta2"
NODES = 8
FAKE = "kwok"
"""Label and taint of kwok's nodes, and the name of everything else of this scenario."""
NAMESPACE = "queued"
POD: Json = {
    "nodeSelector": {FAKE: "true"},
    "tolerations": [{"key": FAKE, "operator": "Exists"}],
    "containers": [{"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "100m"}}}],
}
LABELS = {"kueue.x-k8s.io/queue-name": FAKE}
Writes = dict[str, float]
"""Resource -> POST, PUT, PATCH and DELETE requests that the API server has answered."""


async def run(folder: Path, jobs: int, workers: int) -> dict[str, float]:
    """`jobs` of `workers` pods each, one kind after the other. On a new test cluster, in place of one that is up: an
    operator that is installed there would take part."""
    cluster.up(3, fresh=True)
    try:
        kueue.install()
        kubectl("apply", "--server-side", "--filename", str(ROOT / "crds"))
        with _kwok(folder), etcds(folder, 1) as endpoint:
            async with Client(cluster.KUBECONFIG) as client:
                _create_queue(jobs * workers)
                with Operator(cluster.KUBECONFIG, folder / "operator.log", ELASTICJOB_KUEUE="auto") as operator:
                    return await _compare(client, operator, jobs, workers, endpoint(0))
    finally:
        cluster.down()


async def _compare(client: Client, operator: Operator, jobs: int, workers: int, endpoint: str) -> dict[str, float]:
    def batch(name: str) -> tuple[str, Json]:
        spec = {"suspend": True, "parallelism": workers, "completions": workers}
        template = {"spec": {**POD, "restartPolicy": "Never"}}
        return "/apis/batch/v1/namespaces/{}/jobs", {
            "metadata": {"name": name, "labels": LABELS},
            "spec": {**spec, "template": template},
        }

    def elastic(name: str) -> tuple[str, Json]:
        body = elastic_job(name, workers, endpoint)
        body["metadata"]["labels"] = LABELS
        body["spec"]["workers"] |= {"minReplicas": workers, "template": {"spec": POD}}
        return JOBS, body

    def growing(name: str) -> tuple[str, Json]:
        path, body = elastic(name)
        body["spec"]["workers"]["minReplicas"] = 1
        return path, body

    figures: dict[str, float] = {}
    for kind, make in (("batch Job", batch), ("ElasticJob", elastic), ("ElasticJob, 1 to all", growing)):
        figures |= await _measure(client, operator, kind, make, jobs, workers)
    return figures


async def _measure(
    client: Client, operator: Operator, kind: str, make: Callable[[str], tuple[str, Json]], jobs: int, workers: int
) -> dict[str, float]:
    total = jobs * workers
    async with _namespace(client) as ns, PodCount(client, ns) as pods:
        before, cpu, manager = await _writes(client), operator.cost().cpu, _cpu_of_manager()
        _open(False)
        made = [make(f"job-{number}") for number in range(jobs)]
        await send_all([client.call("POST", path.format(ns), body) for path, body in made])
        while len((await client.call("GET", f"/apis/{API}/namespaces/{ns}/workloads"))["items"]) < jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)  # until Kueue and the operator are at rest
        assert not pods.created, "a job in a queue has a pod before it is admitted"
        queued = await _writes(client)
        _open(True)
        started = time.monotonic()
        await pods.until(created=total, running=total, seconds=600)
        took = time.monotonic() - started
        await asyncio.sleep(5)
        after = await _writes(client)
        figures = {
            f"{kind}: queue opens until all pods run, s": took,
            f"{kind}: writes per job while it waits": _sum(before, queued) / jobs,
            f"{kind}: writes per job in all": _sum(before, after) / jobs,
            f"{kind}: operator's CPU per job, ms": (operator.cost().cpu - cpu) / jobs * 1000,
            f"{kind}: Kueue's CPU per job, ms": (_cpu_of_manager() - manager) / jobs * 1000,
        }
        figures |= {
            f"  {kind}: {name}": (value - before.get(name, 0.0)) / jobs
            for name, value in sorted(after.items())
            if (value - before.get(name, 0.0)) / jobs >= 0.1
        }
        await client.call("DELETE", made[0][0].format(ns))
        await client.call("DELETE", PODS.format(ns), {"gracePeriodSeconds": 0})
    return figures


@asynccontextmanager
async def _namespace(client: Client) -> AsyncIterator[str]:
    """With its LocalQueue; gone at the end, so that nothing of it disturbs the next measurement."""
    await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    local = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": FAKE}, "spec": {"clusterQueue": FAKE}}
    await client.call("POST", f"/apis/{API}/namespaces/{NAMESPACE}/localqueues", local)
    yield NAMESPACE
    await client.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    while (await client.call("GET", f"/api/v1/namespaces?fieldSelector=metadata.name={NAMESPACE}"))["items"]:
        found = await client.call("GET", PODS.format(NAMESPACE))
        if found["items"]:  # nothing that runs here ends pods of kwok's nodes
            await client.call("DELETE", PODS.format(NAMESPACE), {"gracePeriodSeconds": 0})
        await asyncio.sleep(0.5)


@contextmanager
def _kwok(folder: Path) -> Iterator[None]:
    """kwok in place of the kubelets of `NODES` more nodes."""
    (port,) = free_ports(1)
    stages = source_of_module("sigs.k8s.io/kwok") / "kustomize" / "stage"
    files = [stages / "node/fast/node-initialize.yaml", stages / "pod/fast/pod-ready.yaml"]
    flags = {
        "kubeconfig": cluster.KUBECONFIG,
        "manage-all-nodes": False,
        "manage-nodes-with-label-selector": f"{FAKE}=true",
        "node-lease-duration-seconds": 8,  # the test cluster looks for lost nodes often
        "server-address": f"127.0.0.1:{port}",
    }
    child = Child([*command("kwok", flags), *(f"--config={path}" for path in files)], folder / "kwok.log")
    try:
        for number in range(NODES):
            metadata = {"name": f"{FAKE}-{number}", "labels": {FAKE: "true"}}
            taints = [{"key": FAKE, "effect": "NoSchedule"}]
            _apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}})
        kubectl("wait", "--for=condition=Ready", "nodes", "--selector", FAKE, "--timeout=60s")
        yield
    finally:
        kubectl("delete", "nodes", "--selector", FAKE)
        child.stop()


def _create_queue(pods: int) -> None:
    _apply({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": FAKE}, "spec": {}})
    flavors = [{"name": FAKE, "resources": [{"name": "cpu", "nominalQuota": f"{pods * 100}m"}]}]
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
    _apply({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": FAKE}, "spec": spec})


def _open(opened: bool) -> None:
    patch = f'{{"spec": {{"stopPolicy": "{"None" if opened else "Hold"}"}}}}'
    kubectl("patch", "clusterqueue.kueue.x-k8s.io", FAKE, "--type=merge", f"--patch={patch}")


def _apply(body: Json) -> None:
    kubectl("apply", "--filename=-", stdin=yaml.safe_dump(body))


async def _writes(client: Client) -> Writes:
    """Without Leases, which are written whether or not anything happens, and Events, which may be dropped."""
    async with client.session.get(f"{client.server}/metrics") as response:
        text = await response.text()
    found: Writes = {}
    for line in text.splitlines():
        match = re.match(r'apiserver_request_total\{.*resource="(\w+)".*verb="(POST|PUT|PATCH|DELETE)".*\} (\S+)', line)
        if match and match[1] not in ("leases", "events"):
            name = f"{match[2]} {match[1]}"
            found[name] = found.get(name, 0.0) + float(match[3])
    return found


def _sum(before: Samples, after: Samples) -> float:
    return sum(after.values()) - sum(before.values())


def _cpu_of_manager() -> float:
    """CPU time of Kueue's manager on this machine, s."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"/manager\0"):
                stat = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended meanwhile
            continue
    raise RuntimeError("Kueue's manager does not run on this machine")
