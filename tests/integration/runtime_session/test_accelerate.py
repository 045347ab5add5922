"""A loop with Accelerate, the real package, continues in place under real agents: the weights, optimizers and scheduler
are those of an undisturbed run, bit by bit, and evaluations see each sample once in whatever world."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from hack.support import eventually
from tests.integration.runtime_session import hugging_face
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.session_job import LONG, START, SessionJob

SETTINGS = {**LONG, "ACCUMULATE": "2"}
SCRIPT = pathlib.Path(__file__).with_name("accelerate_script.py")

pytestmark = [pytest.mark.torch, pytest.mark.transformers, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return hugging_face.train_undisturbed(SCRIPT, SETTINGS, tmp_path_factory.mktemp("undisturbed") / "plain")


@pytest.fixture
def accelerate_job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    environment = hugging_face.environment(SETTINGS)
    job = SessionJob(etcd, tmp_path, python=str(hugging_face.python()), script=SCRIPT, environment=environment)
    yield job
    job.close()


def test_a_loop_with_accelerate_continues_in_place_through_a_crash_a_join_and_a_leave(
    accelerate_job: SessionJob, undisturbed: Run
) -> None:
    job = accelerate_job
    for name in "ab":
        job.start(name, nnodes="2:3")
    job.wait_for_world(2, "a", "b", timeout=START)
    c = job.start("c", nnodes="2:3")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    os.kill(job.pids("b")[-1], signal.SIGKILL)
    eventually(lambda: len(job.pids("b")) == 2, START, what=f"b's process is replaced; logs:\n{job.logs}")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    c.signal(signal.SIGTERM)
    job.wait_for_world(2, "a", "b")
    job.assert_finished(undisturbed, "a", "b")
    assert (len(job.pids("a")), len(job.pids("b")), len(job.pids("c"))) == (1, 2, 1), job.logs
    assert Run.read(job.directory / "a-0").facts["evaluated"] > 0
