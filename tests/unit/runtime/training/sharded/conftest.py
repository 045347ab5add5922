"""Agents' sockets for worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.runtime.training.conftest import serving_agent


@pytest.fixture
def agents() -> Iterator[tuple[str, str, str]]:
    """The sockets of three agents."""
    with serving_agent() as first, serving_agent() as second, serving_agent() as third:
        yield first, second, third
