"""One job per test, on an etcd that all share; or on one of its own, to break."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.contract.etcd_servers import EtcdServer, require_etcd
from tests.integration.runtime.agents import Job


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[Job]:
    job = Job(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(require_etcd("3.6"), tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.stop()


@pytest.fixture
def fragile_job(own_etcd: EtcdServer, tmp_path: pathlib.Path) -> Iterator[Job]:
    """On `own_etcd`."""
    job = Job(own_etcd.url, tmp_path)
    yield job
    job.close()
