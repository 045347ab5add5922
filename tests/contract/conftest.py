"""Fixtures of the contract suite: every implementation of interface.Store, and real etcd servers to break."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.etcd import EtcdClient, Store

from tests.contract.backends import NAMES, Backend, start_backend
from tests.contract.certificates import Pki
from tests.contract.etcd_servers import VERSIONS, EtcdServer, require_etcd
from tests.contract.proxy import Proxy

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=NAMES)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with start_backend(request.param, tmp_path_factory.mktemp(request.param)) as backend:
        yield backend


@pytest.fixture
def store(backend: Backend) -> Store:
    """A store that the whole session shares: never close it."""
    return backend.store


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"/test-{next(_numbers)}/"


@pytest.fixture(scope="session", params=VERSIONS)
def etcd_program(request: pytest.FixtureRequest) -> Path:
    """An etcd binary of each supported version that is installed."""
    version: str = request.param
    return require_etcd(version)


@pytest.fixture
def etcd_server(etcd_program: Path, tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd server for one test, which may break it."""
    server = EtcdServer(etcd_program, tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[Proxy]:
    """A proxy between a client and `etcd_server`."""
    proxy = Proxy(etcd_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def open_client() -> Iterator[Callable[..., EtcdClient]]:
    """Creates clients that are closed at the end of the test."""
    clients: list[EtcdClient] = []

    def make(*arguments: object, **settings: object) -> EtcdClient:
        clients.append(EtcdClient(*arguments, **settings))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))
