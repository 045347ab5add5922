"""Fixtures of the tests that drive a member's session with the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.runtime.rendezvous.sessions import CoreDriver, FlakyStore


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def store() -> Iterator[FlakyStore]:
    store = FlakyStore()
    yield store
    store.close()


@pytest.fixture
def core(store: FlakyStore) -> CoreDriver:
    """Member `a`, which has not registered."""
    return CoreDriver(store)


@pytest.fixture
def joined(core: CoreDriver) -> CoreDriver:
    """Member `a`, the planner."""
    core.join()
    return core
