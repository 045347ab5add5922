"""How often a job's status is written, counted at the API server's door."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Fault, FaultyServer, Request
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

SECOND = 0.99


class Door(FaultyServer):
    """Notes when a status write of a job comes in, monotonic, s."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.writes_of_status: list[float] = []
        self.fault = self._note

    def _note(self, request: Request) -> Fault | None:
        if request.method == "PATCH" and request.path.endswith("/status"):
            self.writes_of_status.append(time.monotonic())
        return None


@pytest.fixture
def door(control_plane: Path) -> Iterator[Door]:
    with Door(control_plane) as door:
        yield door


@pytest.fixture
def operator(door: Door, tmp_path: Path, start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(door.kubeconfig(tmp_path))


def set_ready(ns: Namespace, pod: str, ready: bool) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    ns.patch("pods", pod, {"status": {"phase": "Running", "conditions": [condition]}}, "status")


def says(ns: Namespace, workers: str) -> Callable[[], bool]:
    return lambda: bool(ns.status("digits").get("workers") == workers)


def test_a_busy_jobs_status_is_written_once_a_second_and_loses_nothing(
    ns: Namespace, door: Door, operator: Operator, submit: Callable[..., str]
) -> None:
    submit(replicas=4, spec={"rendezvous": {"backend": "c10d"}})  # with it Running follows the pods alone
    pods = [f"digits-worker-{index}" for index in range(4)]
    eventually(lambda: set(ns.workers()) == set(pods), what="four workers", timeout=60)
    began, changes = time.monotonic(), 0
    while time.monotonic() - began < 4 or changes < 40:
        set_ready(ns, pods[changes % 3], ready=changes % 2 == 0)
        changes += 1
    for pod in pods[:3]:
        set_ready(ns, pod, ready=True)
    eventually(says(ns, "3/4"), what="the last word", timeout=60)
    busy = list(door.writes_of_status)
    assert len([each for each in busy if each > began]) >= 3, "this job was busy"
    pauses = [after - before for before, after in itertools.pairwise(busy)]
    assert min(pauses) >= SECOND, f"{changes} changes, pauses between writes: {pauses}"

    set_ready(ns, pods[3], ready=True)
    operator.kill()  # perhaps before it has written that
    operator.restart()
    eventually(says(ns, "4/4"), what="what was held is decided again", timeout=60)
    written = len(door.writes_of_status)
    time.sleep(2)
    assert len(door.writes_of_status) == written, "nothing changes, nothing is written"
