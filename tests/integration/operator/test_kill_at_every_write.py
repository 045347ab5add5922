"""The operator killed before and after each of its writes: the result is always the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.faulty import Drop, Fault, FaultyServer, Request
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.test_api_server_faults import operator

__all__ = ["operator"]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]  # a dozen operators, one after the other


def normalised(ns: Namespace, job: str) -> Json:
    """What there is of a job, without names and times that differ between two equal lives."""

    def plain(text: Any) -> Any:
        return str(text).replace(job, "JOB")

    pods = {
        plain(name): (pod["status"]["phase"], plain(pod["spec"]["containers"]))
        for name, pod in ns.workers().items()
        if job in name
    }
    status = ns.status(job)
    return {
        "pods": {name: (phase, _without_uid(spec, ns, job)) for name, (phase, spec) in pods.items()},
        "services": sorted(plain(name) for name in ns.all("services") if job in name),
        "statefulsets": sorted(plain(name) for name in ns.all("statefulsets") if job in name),
        "conditions": [
            (condition["type"], condition["status"], condition["reason"])
            for condition in status.get("conditions") or []
        ],
        "restarts": status["restarts"]["total"],
        "workers": status["workers"],
    }


def _without_uid(text: str, ns: Namespace, job: str) -> str:
    return text.replace(ns.job(job)["metadata"]["uid"], "UID")


def settled(server: FaultyServer) -> bool:
    """Nothing was written for a while."""
    before = len(server.writes())
    time.sleep(1.2)
    return len(server.writes()) == before


class Killer:
    """Kills the operator at its `at`-th write from now on: before the API server gets it, or once it has acted."""

    def __init__(self, server: FaultyServer, operator: Operator, at: int, *, acted: bool) -> None:
        self._operator = operator
        self._at = at
        self._acted = acted
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()
        self.killed = ""
        server.fault, server.after = self._before, self._after

    def _before(self, request: Request) -> Fault | None:
        with self._lock:
            if not request.is_write or self.killed:
                return None
            self._seen[request.number] = len(self._seen) + 1
            if self._acted or self._seen[request.number] != self._at:
                return None
            return self._kill(request)

    def _after(self, request: Request) -> None:
        with self._lock:
            if self._acted and not self.killed and self._seen.get(request.number) == self._at:
                self._kill(request)

    def _kill(self, request: Request) -> Fault:
        self._operator.kill()
        self.killed = str(request)
        return Drop()


@pytest.mark.parametrize("acted", [False, True], ids=["before", "after"])
def test_a_start_gives_the_same_result_wherever_the_operator_is_killed(
    acted: bool, ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    def is_there(job: str) -> bool:
        return bool(
            len([name for name in ns.workers() if name.startswith(f"{job}-")]) == 2
            and f"{job}-etcd" in ns.all("statefulsets")
            and ns.is_true(job, "Accepted")
        )

    submit("whole", replicas=2, endpoint="")
    eventually(lambda: is_there("whole"), what="it starts")
    eventually(lambda: settled(server), what="rest", timeout=60)
    expected = normalised(ns, "whole")
    killed_at = []
    for number in range(1, 30):
        killer = Killer(server, operator, number, acted=acted)
        job = f"kill-{number}"
        submit(job, replicas=2, endpoint="")
        eventually(lambda: killer.killed or is_there(job), what="killed, or through", timeout=60)  # noqa: B023
        if not killer.killed:
            eventually(lambda: killer.killed or settled(server), what="rest", timeout=60)  # noqa: B023
        if not killer.killed:
            break
        killed_at.append(killer.killed)
        operator.restart()
        eventually(lambda: is_there(job), what=f"it starts, although killed at {killer.killed}", timeout=60)  # noqa: B023
        eventually(
            lambda: normalised(ns, job) == expected,  # noqa: B023
            what=f"the same as ever, killed at {killer.killed}",
            timeout=60,
        )
        ns.delete("elasticjobs", job)
    assert len(killed_at) >= 7, f"dry run, two Services, StatefulSet, two pods, status: {killed_at}"


@pytest.mark.parametrize("acted", [False, True], ids=["before", "after"])
def test_a_pod_failure_counts_once_wherever_the_operator_is_killed(
    acted: bool, ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    """Counted once, replaced once."""

    def fail(job: str) -> None:
        submit(job, replicas=2)
        eventually(lambda: len([name for name in ns.workers() if name.startswith(f"{job}-")]) == 2, what="two workers")
        for index in range(2):
            ns.run(f"{job}-worker-{index}")
        eventually(
            lambda: ns.status(job).get("workers") == "2/2" and settled(server), what="both are ready", timeout=60
        )

    def is_replaced(job: str) -> bool:
        pod = ns.workers().get(f"{job}-worker-0")
        return bool(pod and pod["status"]["phase"] == "Pending" and ns.status(job)["workers"] == "1/2")

    fail("whole")
    ns.end("whole-worker-0", 1, at=rfc3339())
    eventually(lambda: is_replaced("whole"), what="it is replaced")
    eventually(lambda: settled(server), what="rest", timeout=60)
    expected = normalised(ns, "whole")
    assert expected["restarts"] == 1
    killed_at = []
    for number in range(1, 20):
        job = f"kill-{number}"
        server.fault = server.after = lambda _: None
        fail(job)
        killer = Killer(server, operator, number, acted=acted)
        ns.end(f"{job}-worker-0", 1, at=rfc3339())
        eventually(lambda: killer.killed or is_replaced(job), what="killed, or through", timeout=60)  # noqa: B023
        if not killer.killed:
            eventually(lambda: killer.killed or settled(server), what="rest", timeout=60)  # noqa: B023
        if not killer.killed:
            break
        killed_at.append(killer.killed)
        operator.restart()
        eventually(lambda: is_replaced(job), what=f"replaced, although killed at {killer.killed}", timeout=60)  # noqa: B023
        eventually(
            lambda: normalised(ns, job) == expected,  # noqa: B023
            what=f"the same as ever, killed at {killer.killed}",
            timeout=60,
        )
        ns.delete("elasticjobs", job)
    assert len(killed_at) >= 3, f"status, delete, create: {killed_at}"
