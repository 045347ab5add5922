"""Fixtures of the run watch tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.operator.etcd.watch_bench import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.run_watches.close()
