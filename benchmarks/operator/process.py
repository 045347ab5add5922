"""The operator as a process, and what it costs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from hack.cluster.loopback import answers
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

START_SECONDS = 300.0
"""Until the operator must be ready, s: with thousands of pods, it waits for the API server to list them."""

Samples = dict[str, float]
"""Prometheus text: `name{labels}` -> value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    cpu: float
    """CPU time since the process started, s."""
    memory: float
    """Resident memory, MiB."""
    peak: float
    """Peak resident memory, MiB."""
    threads: int


class Operator:
    """An operator that watches the whole cluster. A context manager."""

    def __init__(self, kubeconfig: Path, log: Path, profile: Path | None = None, **environment: str) -> None:
        """`profile`: the file to write a CPU profile to."""
        self._profile = profile
        (self._port,) = free_ports(1)
        settings = {
            "KUBECONFIG": str(kubeconfig),
            "ELASTICJOB_CA_NAMESPACE": "default",
            "ELASTICJOB_PROBE_PORT": str(self._port),
            **environment,
        }
        module = ["elasticjob_operator"] if profile is None else ["benchmarks.operator.profiled", profile]
        self._child = Child([sys.executable, "-m", *module], log, {**os.environ, **settings})

    def __enter__(self) -> Operator:
        self._child.wait_until(lambda: answers(f"http://127.0.0.1:{self._port}/readyz"), timeout=START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def kill(self) -> None:
        self._child.stop(grace=0)

    def cost(self) -> Cost:
        status = Path(f"/proc/{self._child.pid}/status").read_text(encoding="utf-8")
        found = dict(re.findall(r"^(VmRSS|VmHWM|Threads):\s+(\d+)", status, re.MULTILINE))
        return Cost(
            cpu_seconds(self._child.pid), int(found["VmRSS"]) / 1024, int(found["VmHWM"]) / 1024, int(found["Threads"])
        )

    def probe(self) -> None:
        """Returns once /healthz has answered."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=60) as answer:
            answer.read()

    @contextlib.contextmanager
    def profiled(self) -> Iterator[None]:
        """Profiles the body, where a profile was requested."""
        if self._profile is None:
            yield
            return
        self._child.process.send_signal(signal.SIGUSR2)
        yield
        self._child.process.send_signal(signal.SIGUSR2)
        self._child.wait_until(self._profile.exists)

    def profile(self) -> dict[str, float]:
        """Part of the program -> its share of the CPU time, %. Empty where none was recorded."""
        if self._profile is None or not self._profile.exists():
            return {}
        parts = json.loads(self._profile.read_text(encoding="utf-8"))["parts"]
        total = sum(parts.values())
        return {part: 100 * count / total for part, count in parts.items()}

    def metrics(self) -> Samples:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }


def cpu_seconds(pid: int) -> float:
    """CPU time since the process started, s."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def idle_cost(operator: Operator, seconds: float) -> tuple[float, Cost]:
    """(cores used over this many seconds, cost at the end)."""
    before, started = operator.cost(), time.monotonic()
    time.sleep(seconds)
    after = operator.cost()
    return (after.cpu - before.cpu) / (time.monotonic() - started), after


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> Samples:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def quantile(samples: Samples, name: str, share: float) -> float:
    """Quantile of a histogram, s: linear within a bucket, as Prometheus computes it.

    >>> quantile({'x_bucket{le="1.0"}': 50, 'x_bucket{le="2.0"}': 100, 'x_bucket{le="+Inf"}': 100}, "x", 0.75)
    1.5
    """
    buckets = sorted(
        (float(found[1]), value)
        for key, value in samples.items()
        if (found := re.fullmatch(rf'{name}_bucket{{le="(.+)"}}', key))
    )
    if not buckets or not buckets[-1][1]:
        return 0.0
    wanted, edge, below = share * buckets[-1][1], 0.0, 0.0
    for limit, count in buckets:
        if count >= wanted:
            return (
                limit
                if limit == float("inf") or count == below
                else edge + (limit - edge) * (wanted - below) / (count - below)
            )
        edge, below = limit, count
    return edge


def requests(samples: Samples) -> dict[str, float]:
    """`verb resource` -> requests, without watches and those without an answer."""
    found: dict[str, float] = {}
    for key, value in samples.items():
        match = re.fullmatch(r'elasticjob_api_requests_total{code="(\d+)",resource="(.*)",verb="(.*)"}', key)
        if match and match[3] != "watch" and value:
            name = f"{match[3]} {match[2]}"
            found[name] = found.get(name, 0.0) + value
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def beyond_creates(samples: Samples) -> float:
    """Requests per created pod, without that create itself. Dry runs count."""
    created = samples["elasticjob_pods_created_total"]
    return (sum(requests(samples).values()) - created) / created
