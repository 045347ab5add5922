"""Walks that failed once, made small. Each is named after what was wrong then."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.runtime.simulation.events import Event, Kind, Walk
from tests.unit.runtime.simulation.world import World

WALKS = {
    "ranks of a plan that was never finished count for the next one": Walk(
        agents=4,
        least=2,
        most=3,
        max_restarts=1,
        seed=126,
        events=[
            Event(after=0.8, kind=Kind.CUT_PEERS, who=3, seconds=14.429, arg=5),
            Event(after=0.0, kind=Kind.LEAVE, who=1, seconds=0.2, arg=1),
            Event(after=1.1, kind=Kind.LEAVE, who=1, seconds=4.464, arg=0),
        ],
    ),
    "who did not answer once while too few were there is never asked again": Walk(
        agents=2,
        least=2,
        most=6,
        max_restarts=100,
        seed=17,
        events=[
            Event(after=2.7, kind=Kind.STORE_DOWN, who=5, seconds=1.833, arg=2),
            Event(after=0.0, kind=Kind.CUT_PEERS, who=2, seconds=4.432, arg=5),
        ],
    ),
    "a round of a store that was set back is taken for the one that runs": Walk(
        agents=5,
        least=4,
        most=6,
        max_restarts=0,
        seed=695,
        events=[
            Event(after=0.0, kind=Kind.SLOW, who=3, seconds=1.831, arg=0),
            Event(after=0.6, kind=Kind.SLOW, who=3, seconds=2.714, arg=4),
            Event(after=0.027, kind=Kind.SLOW, who=0, seconds=0.466, arg=1),
            Event(after=3.039, kind=Kind.SLOW, who=4, seconds=1.194, arg=5),
            Event(after=2.7, kind=Kind.STORE_SET_BACK, who=5, seconds=8.773, arg=5),
        ],
    ),
    "a store that was set back gives the restart budget back": Walk(
        agents=4,
        least=3,
        most=4,
        max_restarts=1,
        seed=3,
        events=[
            Event(after=0.4, kind=Kind.STORE_SET_BACK, who=1, seconds=0.434, arg=4),
            Event(after=0.7, kind=Kind.CUT_STORE, who=1, seconds=0.642, arg=0),
            Event(after=0.047, kind=Kind.CRASH_WORKER, who=5, seconds=2.765, arg=4),
            Event(after=1.0, kind=Kind.STORE_SET_BACK, who=2, seconds=0.002, arg=3),
        ],
    ),
    "a leader that comes back under its old name follows itself": Walk(
        agents=2,
        least=1,
        most=1,
        max_restarts=100,
        seed=290,
        events=[
            Event(after=2.1, kind=Kind.CLOCK_JUMPS, who=1, seconds=0.001, arg=1),
            Event(after=0.1, kind=Kind.CRASH_AGENT, who=5, seconds=0.39, arg=4),
        ],
    ),
    "two members each wait for the other to plan": Walk(
        agents=5,
        least=5,
        most=6,
        max_restarts=1,
        seed=381,
        events=[
            Event(after=0.2, kind=Kind.CRASH_AGENT, who=0, seconds=6.289, arg=1),
            Event(after=2.7, kind=Kind.CRASH_AGENT, who=2, seconds=4.955, arg=3),
            Event(after=0.7, kind=Kind.PARTITION, who=2, seconds=7.518, arg=2),
            Event(after=0.1, kind=Kind.FREEZE, who=3, seconds=1.454, arg=4),
            Event(after=5.2, kind=Kind.PARTITION, who=0, seconds=0.047, arg=5),
            Event(after=2.9, kind=Kind.CRASH_AGENT, who=4, seconds=1.712, arg=4),
            Event(after=2.4, kind=Kind.CRASH_AGENT, who=1, seconds=0.039, arg=0),
            Event(after=0.0, kind=Kind.CRASH_AGENT, who=2, seconds=10.461, arg=4),
        ],
    ),
    "scaled to a size that is not allowed, a job stands still": Walk(
        agents=1,
        least=1,
        most=6,
        allowed=(4,),
        max_restarts=3,
        operator=True,
        seed=367,
        events=[Event(after=0.0, kind=Kind.RESIZE, who=4, seconds=0.382, arg=2)],
    ),
    "after an etcd came back empty, an action never ends, because revisions start over": Walk(
        agents=2,
        least=2,
        most=4,
        max_restarts=3,
        seed=184,
        events=[Event(after=0.8, kind=Kind.STORE_EMPTIED, who=2, seconds=0.034, arg=5)],
    ),
    "a plan is missed when its ranks cannot be read at once": Walk(
        agents=1,
        least=1,
        most=5,
        max_restarts=3,
        seed=237,
        events=[
            Event(after=0.0, kind=Kind.JOIN, who=1, seconds=0.226, arg=4),
            Event(after=0.251, kind=Kind.JOIN, who=4, seconds=0.005, arg=2),
            Event(after=0.1, kind=Kind.LOSE_ANSWERS, who=1, seconds=7.564, arg=5),
        ],
    ),
    "a plan names a member that has gone": Walk(
        agents=2,
        least=2,
        most=6,
        max_restarts=0,
        seed=125,
        events=[
            Event(after=1.9, kind=Kind.CRASH_WORKER, who=5, seconds=0.235, arg=5),
            Event(after=0.6, kind=Kind.LOSE_LEASE, who=2, seconds=0.245, arg=1),
        ],
    ),
    "two planners both win": Walk(
        agents=5,
        least=3,
        most=3,
        max_restarts=100,
        seed=209,
        events=[
            Event(after=0.007, kind=Kind.CUT_PEERS, who=5, seconds=1.146, arg=5),
            Event(after=0.006, kind=Kind.CUT_PEERS, who=2, seconds=1.799, arg=2),
            Event(after=7.0, kind=Kind.CUT_PEERS, who=2, seconds=0.434, arg=3),
            Event(after=0.1, kind=Kind.CUT_PEERS, who=3, seconds=5.299, arg=1),
            Event(after=0.0, kind=Kind.CUT_PEERS, who=5, seconds=12.314, arg=3),
        ],
    ),
    "a lost node costs a restart": Walk(
        agents=5,
        least=5,
        most=6,
        max_restarts=1,
        seed=211,
        events=[Event(after=7.4, kind=Kind.CRASH_AGENT, who=2, seconds=0.024, arg=2)],
    ),
    "an agent that lost its lease never registers again": Walk(
        agents=4,
        least=3,
        most=3,
        max_restarts=1,
        seed=167,
        events=[
            Event(after=0.0, kind=Kind.STORE_EMPTIED, who=5, seconds=1.68, arg=3),
            Event(after=0.8, kind=Kind.STORE_EMPTIED, who=3, seconds=0.909, arg=3),
            Event(after=0.4, kind=Kind.STORE_EMPTIED, who=1, seconds=10.266, arg=4),
        ],
    ),
    "a second node is lost right after the first, and its answer from before counts": Walk(
        agents=3,
        least=1,
        most=5,
        max_restarts=100,
        seed=140,
        events=[
            Event(after=3.1, kind=Kind.CRASH_AGENT, who=2, seconds=0.045, arg=1),
            Event(after=0.6, kind=Kind.CRASH_AGENT, who=5, seconds=6.449, arg=0),
        ],
    ),
    "a failure that was reported to a store that then lost its data is forgotten": Walk(
        agents=2,
        least=1,
        most=5,
        max_restarts=100,
        seed=289585817,
        events=[
            Event(after=2.6, kind=Kind.CUT_STORE, who=1, seconds=0.287, arg=2),
            Event(after=0.5, kind=Kind.CRASH_WORKER, who=0, seconds=0.02, arg=4),
            Event(after=0.03, kind=Kind.STORE_EMPTIED, who=0, seconds=1.606, arg=3),
        ],
    ),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("complaint", WALKS)
def test_what_was_wrong_once(complaint: str) -> None:
    World(WALKS[complaint]).run()
