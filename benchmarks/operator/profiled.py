"""The operator under a sampling profiler: `python -m benchmarks.operator.profiled FILE`.

The first SIGUSR2 starts the profile, the second ends it and writes FILE. It takes a sample per millisecond of CPU time,
so waiting costs nothing and the operator is hardly slower. A sample counts for the innermost part of the program on its
stack: what pydantic does for a policy counts for the policy.
"""

from __future__ import annotations

import collections
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from elasticjob_operator.__main__ import main as operator

SECONDS = 0.001
PARTS = {
    "/kopf/": "kopf: watch of jobs",
    "/elasticjob_operator/planning/status.py": "plan: status",
    "/elasticjob_operator/planning/": "plan",
    "/elasticjob_operator/policies/": "plan",
    "/elasticjob_operator/resources/": "plan: pods and objects",
    "/elasticjob_api/": "job and status: parse, compare, serialize",
    "/elasticjob_operator/kube/informer.py": "informers",
    "/elasticjob_operator/kube/cache.py": "informers",
    "/elasticjob_operator/kube/convert.py": "informers",
    "/elasticjob_operator/etcd/": "etcd",
    "/elasticjob_operator/metrics.py": "metrics",
    "/prometheus_client/": "metrics",
    "/logging/": "logging",
    "/elasticjob_operator/kube/": "requests",
    "/elasticjob_operator/controller/": "controller: queue, reconciler",
    "/elasticjob_operator/": "other parts of the operator",
    "/ssl.py": "TLS",
    "/aiohttp/": "HTTP (aiohttp)",
    "/asyncio/sslproto.py": "TLS",
    "/asyncio/": "event loop",
}


class Sampler:
    """Counts samples of the main thread by part and by function."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: collections.Counter[str] = collections.Counter()
        self._lines: collections.Counter[str] = collections.Counter()
        self._known: dict[str, str] = {}
        self._running = False

    def toggle(self, _signal: int, _frame: FrameType | None) -> None:
        self._running = not self._running
        signal.setitimer(signal.ITIMER_PROF, SECONDS if self._running else 0, SECONDS)
        if not self._running:
            found = {"parts": dict(self._parts.most_common()), "functions": dict(self._lines.most_common(60))}
            self._path.write_text(json.dumps(found, indent=1), encoding="utf-8")

    def sample(self, _signal: int, frame: FrameType | None) -> None:
        while frame is not None:
            code = frame.f_code
            part = self._known.get(code.co_filename)
            if part is None:
                part = self._known[code.co_filename] = next(
                    (PARTS[part] for part in PARTS if part in code.co_filename), ""
                )
            if part:
                self._parts[part] += 1
                self._lines[f"{part}: {Path(code.co_filename).name} {code.co_qualname}"] += 1
                return
            frame = frame.f_back
        self._parts["other"] += 1


def main() -> None:
    sampler = Sampler(Path(sys.argv[1]))
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.signal(signal.SIGUSR2, sampler.toggle)
    operator()


if __name__ == "__main__":
    main()
