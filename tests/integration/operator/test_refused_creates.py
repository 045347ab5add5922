"""An API server that refuses pods because a webhook is broken: what the job says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Answer, FaultyServer, Request
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
