"""The cluster of the end-to-end tests, with images and chart installed, and jobs that are deleted after their test."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.demo.run import set_up
from hack.drivers import ClusterDriver, NodePower, cluster_driver, collect_logs
from hack.images.recipe import ROOT
from tests.e2e.jobs import Job
from tests.e2e.release import Release

LOGS = ROOT / ".cluster" / "e2e"


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterDriver]:
    """Started once, with images and chart. Removed at the end if it was created here."""
    driver = cluster_driver()
    set_up(driver)
    yield driver
    if not os.environ.get("KEEP_CLUSTER"):  # keep it while you work on one test
        driver.down()


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End-to-end tests take minutes, not seconds."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(420))
