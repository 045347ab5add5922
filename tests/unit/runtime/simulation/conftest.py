"""Fixtures of the simulation's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Agents log what the store does to them, which here is the test's own doing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=[*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 12))])
def seed(request: pytest.FixtureRequest) -> int:
    """It decides how long messages and starts take. The first four differ enough for every change."""
    return int(request.param)
