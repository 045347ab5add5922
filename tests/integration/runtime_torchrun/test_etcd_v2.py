"""torch's own backend etcd-v2 trains on a real etcd with the v2 API: elasticrun hands over to torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.cluster.programs import etcd_v2_program
from tests.contract.etcd_servers import EtcdServer
from tests.integration.runtime_torchrun.conftest import TRAIN, Agent, Job
from tests.python_etcd import python_etcd

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    server = EtcdServer(etcd_v2_program(), tmp_path, flags=["--enable-v2"]).start()
    yield server.url.removeprefix("http://")
    server.stop()


def test_what_an_agent_that_fails_has_closed_opens_under_the_next_id(
    jobs: Callable[..., Job], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the operator replaces all worker pods together, with a run ID of their own."""
    prepare(monkeypatch)
    job = jobs("2:2", script=TRAIN, max_restarts=0)

    def start(name: str, attempt: str) -> Agent:
        settings = {"rdzv_backend": "etcd-v2", "rdzv_endpoint": endpoint, "rdzv_conf": "protocol=http"}
        return job.start(name, ("elasticjob_runtime", str(TRAIN)), rdzv_id=f"8c-{attempt}", **settings)

    agents = [start(name, "1") for name in "ab"]
    first = job.train("a", "b")
    job.crash("b")
    assert [agent.exit_code() for agent in agents] == [1, 1]

    late = start("b", "1")
    assert late.exit_code() == 1
    assert "RendezvousClosedError" in late.output

    agents = [start(name, "1.2") for name in "ab"]
    job.train("a", "b", without=first)
    job.stop()
    assert [agent.exit_code() for agent in agents] == [0, 0]


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(python_etcd()), *filter(None, sys.path)]))
    monkeypatch.setenv("ELASTICJOB_FENCE", "")  # torch's backends have none, and the script wants one
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # as the operator does


def test_a_job_trains_and_recovers_with_torchs_etcd_v2_backend(
    jobs: Callable[..., Job], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch)
    job = jobs("2:2", script=TRAIN)
    settings = {"rdzv_backend": "etcd-v2", "rdzv_endpoint": endpoint, "rdzv_conf": "protocol=http"}
    agents = [job.start(name, ("elasticjob_runtime", str(TRAIN)), **settings) for name in "ab"]
    first = job.train("a", "b")
    assert all("handing over to torchrun" in agent.output for agent in agents)

    job.crash("b")
    second = job.train("a", "b", without=first)
    assert min(step.number for step in second) > 1, "training resumes from the checkpoint"

    job.stop()
    assert [agent.exit_code() for agent in agents] == [0, 0]
