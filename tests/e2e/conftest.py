"""The cluster of the end-to-end tests, with images and chart installed, and jobs that are deleted after their test."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import kueue as own_kueue
from hack.demo import set_up
from hack.drivers import ClusterDriver, NodePower, cluster_driver, collect_logs
from hack.images.recipe import ROOT
from tests.e2e.jobs import COUNTING, Job
from tests.e2e.queues import QUOTA, Queue
from tests.e2e.release import Release

LOGS = ROOT / ".cluster" / "e2e"


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterDriver]:
    """Started once, with images and chart, and removed at the end. Processes of pytest-xdist share one, and keep it."""
    driver = cluster_driver()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    if run:
        set_up_once(driver, run)
    else:
        set_up(driver)
    yield driver
    if not run and not os.environ.get("KEEP_CLUSTER"):  # keep it while you work on one test
        driver.down()


def set_up_once(driver: ClusterDriver, run: str) -> None:
    """The first process of this test run sets the cluster up; the others wait for it."""
    LOGS.parent.mkdir(exist_ok=True)
    with (LOGS.parent / "e2e-run").open("a+", encoding="utf-8") as ready:
        fcntl.flock(ready, fcntl.LOCK_EX)
        ready.seek(0)
        if ready.read() != run:
            set_up(driver)
            ready.truncate(0)
            ready.write(run)


@pytest.fixture
def power(cluster: ClusterDriver) -> NodePower:
    """Power over nodes. Skips the test, with the reason, on a cluster without it."""
    if cluster.power is None:
        pytest.skip(cluster.no_power)
    return cluster.power


@pytest.fixture
def new_job(cluster: ClusterDriver) -> Iterator[Callable[..., Job]]:
    """Creates jobs, and deletes them after the test."""
    jobs: list[Job] = []

    def make(name: str, **options: object) -> Job:
        job = Job(cluster, name, **options)  # type: ignore[arg-type]
        jobs.append(job)
        job.apply()
        return job

    yield make
    for job in jobs:
        job.delete()


@pytest.fixture
def release(cluster: ClusterDriver, tmp_path: Path) -> Iterator[Release]:
    """The operator's Helm release. Its values are restored after the test."""
    release = Release(cluster, tmp_path)
    yield release
    release.restore()


@pytest.fixture(scope="session")
def kueue(cluster: ClusterDriver) -> Iterator[ClusterDriver]:
    if cluster.name != "own":
        pytest.skip("it installs and removes Kueue, which is right on the test cluster only (CLUSTER=own)")
    own_kueue.install()
    yield cluster
    own_kueue.uninstall()


@pytest.fixture
def queue(kueue: ClusterDriver) -> Iterator[Queue]:
    """With room for a job of four workers and its etcd."""
    queue = Queue(kueue, "team")
    queue.create(QUOTA)
    yield queue
    queue.delete()


@pytest.fixture
def batch(queue: Queue) -> Iterator[Callable[[str, int], None]]:
    """Starts batch Jobs of high priority, and ends them after the test."""
    started: list[str] = []

    def start(name: str, cpu: int) -> None:
        started.append(name)
        queue.start(name, cpu)

    yield start
    for name in started:
        queue.end(name)


@pytest.fixture
def queued(queue: Queue, new_job: Callable[..., Job]) -> Callable[..., Job]:
    """Creates jobs of two to four workers in the queue."""

    def make(name: str, **options: Any) -> Job:
        defaults: dict[str, Any] = {
            "replicas": 4,
            "least": 2,
            "most": 4,
            "command": COUNTING,
            "edit": queue.label,
        }
        return new_job(name, **{**defaults, **options})

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Saves the logs of a failed test to .cluster/e2e/<test> before its jobs are deleted."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and driver is not None:  # type: ignore[attr-defined]
        folder = LOGS / re.sub(r"\W+", "-", item.name)
        collect_logs(driver, folder)
        print(f"\nlogs, events and objects of this test: {folder.relative_to(ROOT)}")
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """End-to-end tests take minutes, not seconds. Those marked `alone` never run side by side."""
    here = Path(__file__).parent
    side_by_side = hasattr(config, "workerinput")
    for item in items:
        if here not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(420, func_only=True))  # the first one waits for the images
        if side_by_side and item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.skip(reason="cannot run in parallel with other tests: run it without -n"))
