"""A status write that is held up on its way, and arrives when the world has gone on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.contract import OutcomeState

from hack.support import eventually
from tests.integration.operator.faulty import Fault, FaultyServer, Request
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents


class SlowServer(FaultyServer):
    """Holds status writes of jobs while `hold` is set, as an API server that is busy with others does."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.hold = False
        self.held: list[Request] = []
        self.arrived: list[int] = []
        """Of these, the numbers of those that the API server has answered."""
        self.release = threading.Event()
        self.fault, self.after = self._hold, self._note

    def _hold(self, request: Request) -> Fault | None:
        if self.hold and request.method == "PATCH" and request.path.endswith("/status"):
            self.held.append(request)
            assert self.release.wait(120)
        return None

    def _note(self, request: Request) -> None:
        if request in self.held:
            self.arrived.append(request.number)


@pytest.fixture
def server(control_plane: Path) -> Iterator[SlowServer]:
    with SlowServer(control_plane) as server:
        yield server
        server.release.set()


@pytest.fixture
def operator(server: SlowServer, tmp_path: Path, start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(server.kubeconfig(tmp_path))


def test_a_finished_job_stays_finished_when_a_write_of_the_old_leader_arrives_late(
    ns: Namespace,
    server: SlowServer,
    operator: Operator,
    training: Callable[..., Agents],
    start_operator: Callable[..., Operator],
) -> None:
    """The write is stuck in the API server's priority and fairness; meanwhile another operator leads, and the job
    ends."""
    agents = training(replicas=2)
    server.hold = True
    ns.patch("pods", "digits-worker-1", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "status")
    eventually(lambda: server.held, what="the old leader's write is on its way", timeout=60)
    operator.kill()
    start_operator()
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    eventually(lambda: ns.is_true("digits", "Succeeded"), what="the new leader reports the end", timeout=60)
    eventually(
        lambda: not agents.keys_left(), what="nothing is left of the run that could tell of its end again", timeout=60
    )
    eventually(lambda: ns.status("digits").get("replicas") == 0, what="the last word of the new leader", timeout=60)
    ended = ns.job("digits")

    server.release.set()
    eventually(lambda: len(server.arrived) == len(server.held), what="the late write arrives", timeout=60)
    now = ns.job("digits")
    assert now["status"] == ended["status"]
    assert now["metadata"]["resourceVersion"] == ended["metadata"]["resourceVersion"], (
        "it was refused, and not mended afterwards"
    )
    assert ns.is_true("digits", "Succeeded")
