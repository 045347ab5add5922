"""Training continues in place on GPUs, over NCCL. Skipped without them; `make check-gpu` runs all such tests."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import Env

from hack.embedded_etcd.server import EmbeddedServer
from hack.support import eventually
from tests import gpu
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT, Driver, Worker
from tests.integration.runtime_session.history import finish, steps_of, wait_for_step, wait_until
from tests.integration.runtime_session.session_job import LONG, START, SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ON_GPU = {"BACKEND": "nccl", "DEVICE": "cuda:0", Env.IN_PLACE_NCCL: "1"}


@pytest.fixture(scope="session")
def etcd() -> Iterator[str]:
    """Needs no program, so that a machine with a GPU needs no test cluster."""
    with EmbeddedServer() as server:
        yield f"http://{server.endpoint}"


@pytest.fixture
def session_job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    job = SessionJob(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> Iterator[Driver]:
    driver = Driver(tmp_path, {**SETTINGS, **ON_GPU})
    yield driver
    driver.close()


def start(driver: Driver, name: str, index: int) -> Worker:
    driver.environment["DEVICE"] = gpu.device(index)
    [worker] = driver.start(name)
    wait_until(driver, lambda: worker.ready, f"{name} says hello")
    return worker


def undisturbed(folder: pathlib.Path, settings: dict[str, str]) -> Run:
    """One process, plain python, without DDP, on a GPU: its results differ from those of a CPU in the last bits."""
    environment = {**os.environ, **settings, "STEP_SECONDS": "0", "DEVICE": "cuda:0", "OUTPUT": str(folder / "plain")}
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=True)
    return Run.read(folder / "plain")


@pytest.mark.gpu
def test_a_session_continues_on_a_gpu_after_its_communicator_is_aborted(driver: Driver, tmp_path: pathlib.Path) -> None:
    a = start(driver, "a", 0)
    driver.plan([a])
    for step in (10, 30, 50):
        wait_for_step(driver, tmp_path, a, step)
        driver.plan([a])  # in the midst of a step
    [run] = finish(driver, tmp_path, [a])
    run.assert_same_training(undisturbed(tmp_path, SETTINGS))
    assert run.facts["changes"] == [1, 1, 1]


@pytest.mark.gpu(2)
def test_survivors_and_joiners_train_on_over_nccl(driver: Driver, tmp_path: pathlib.Path) -> None:
    a, b, c = start(driver, "a", 0), start(driver, "b", 1), start(driver, "c", 1)
    driver.plan([a, b])
    wait_for_step(driver, tmp_path, a, 10)
    b.kill()
    driver.plan([a])
    wait_for_step(driver, tmp_path, a, 20)
    driver.plan([a, c], step_grace=0.5)
    expected = undisturbed(tmp_path, SETTINGS)
    for run in finish(driver, tmp_path, [a, c]):
        run.assert_same_training(expected)
    assert steps_of(tmp_path, c)[0][1] > 20


@pytest.mark.gpu(2)
def test_nothing_of_a_frozen_process_reaches_the_weights(driver: Driver, tmp_path: pathlib.Path) -> None:
    """No connection ends, so the kernels of the others run until they are aborted."""
    a, b = start(driver, "a", 0), start(driver, "b", 1)
    driver.plan([a, b])
    wait_for_step(driver, tmp_path, a, 10)
    b.freeze()
    driver.pump(1.0)
    driver.plan([a], told=[a])
    [run] = finish(driver, tmp_path, [a])
    run.assert_same_training(undisturbed(tmp_path, SETTINGS))


@pytest.mark.gpu
def test_processes_forked_from_the_zygote_train_on_a_gpu_and_continue_from_memory(
    session_job: SessionJob, tmp_path: pathlib.Path
) -> None:
    """With one process there is no survivor: its replacement reads a snapshot, which has come through pinned memory."""
    job = session_job
    job.start("a", "--start-method=fork", nnodes="1", **ON_GPU)
    job.wait_for_world(1, "a", timeout=START)
    os.kill(job.pids("a")[-1], signal.SIGKILL)
    eventually(lambda: len(job.pids("a")) == 2, 60, what=f"its process is replaced; logs:\n{job.logs}")
    job.assert_finished(undisturbed(tmp_path, LONG), "a")
    assert [step for step, _ in job.steps("a")].count(1) == 1
