"""Random walks: many agents with the real decisions and the real rendezvous, and everything that can happen to them.

The default run is a fixed set of walks, and `make test` runs the first of them.
`ELASTICJOB_WALKS=20000 pytest tests/unit/runtime/simulation` runs as many others, new ones each time. A walk that fails
is made smaller and printed with its trace: keep it in test_regressions.py, named for the promise that it breaks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.unit.runtime.simulation.events import Walk
from tests.unit.runtime.simulation.walks import failure_of, random_walk, replica_walk, session_walk, shrink
from tests.unit.runtime.simulation.world import World

WALKS = int(os.environ.get("ELASTICJOB_WALKS", "0"))
CHUNKS = 10
NIGHTLY = range(1, CHUNKS)
"""The chunks of walks that `make test` leaves out."""
FIRST = random.SystemRandom().randrange(10**9) if WALKS else 0


@pytest.mark.timeout(0 if WALKS else 300)
@pytest.mark.parametrize(
    "make_walk", [random_walk, session_walk, replica_walk], ids=["restarts", "in place", "replicas"]
)
@pytest.mark.parametrize(
    "chunk",
    [pytest.param(number, marks=pytest.mark.nightly) if number in NIGHTLY else number for number in range(CHUNKS)],
)
def test_every_random_walk_keeps_the_invariants_and_the_job_ends(chunk: int, make_walk: Callable[[int], Walk]) -> None:
    each = (WALKS or 1000) // CHUNKS
    for seed in range(FIRST + chunk * each, FIRST + (chunk + 1) * each):
        walk = make_walk(seed)
        if failure_of(walk) is not None:
            World(shrink(walk)).run()
            pytest.fail(f"seed {seed} fails, but the smaller walk made from it does not")
