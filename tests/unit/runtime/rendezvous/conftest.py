"""Fixtures of the tests that drive a member's session with the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.runtime.rendezvous.sessions import FlakyStore


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
