"""An API server that refuses pods, because of a quota, or because a webhook is broken: what it is asked, and what the
job says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Answer, Fault, FaultyServer, Request
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

BROKEN = Answer(500, "InternalError")


@pytest.fixture
def server(control_plane: Path) -> Iterator[FaultyServer]:
    with FaultyServer(control_plane) as server:
        yield server


@pytest.fixture
def operator(server: FaultyServer, tmp_path: Path, start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(server.kubeconfig(tmp_path))


def is_create(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods") and "dryRun" not in request.query


def test_a_webhook_that_breaks_is_told_in_the_status_in_the_servers_words_and_passes(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    server.fault = lambda request: BROKEN if is_create(request) else None
    submit(replicas=2)
    eventually(
        lambda: ns.condition("digits", "Running").get("reason") == "PodRejected", what="the condition", timeout=60
    )
    assert "a fault: 500" in ns.condition("digits", "Running")["message"]
    server.fault = lambda _: None
    eventually(lambda: len(ns.workers()) == 2, what="two workers", timeout=60)
    assert operator.returncode is None


def test_a_webhook_that_is_broken_from_the_start_is_told_in_the_status_and_passes(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    server.fault = lambda request: BROKEN if "dryRun" in request.query else None
    submit(replicas=2)
    eventually(
        lambda: ns.condition("digits", "Accepted").get("reason") == "PodRejected", what="the condition", timeout=60
    )
    assert "a fault: 500" in ns.condition("digits", "Accepted")["message"]
    server.fault = lambda _: None
    eventually(lambda: ns.is_true("digits", "Accepted") and len(ns.workers()) == 2, what="two workers", timeout=60)
    assert operator.returncode is None


def test_a_quota_of_few_costs_few_requests_however_many_are_wanted(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    creates: list[float] = []

    def quota(request: Request) -> Fault | None:
        if not is_create(request):
            return None
        creates.append(time.monotonic())
        return Answer(403, "Forbidden") if len(creates) > 10 else None

    server.fault = quota
    submit(replicas=500, maxReplicas=500)
    eventually(
        lambda: ns.condition("digits", "Running").get("reason") == "PodRejected", what="the condition", timeout=60
    )
    rounds = 4
    eventually(lambda: len(creates) >= 25 or time.monotonic() - creates[0] > 8, what="it is tried again", timeout=60)
    assert len(ns.workers()) == 10
    assert len(creates) <= 10 + 12 + rounds, "doubled at most once more, then one a round, ever later"
    assert operator.returncode is None
