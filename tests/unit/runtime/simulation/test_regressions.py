"""Walks that once failed, made small. Each is named for the promise that was broken."""

from __future__ import annotations

import pytest

from tests.unit.runtime.simulation.events import Event, Kind, Walk
from tests.unit.runtime.simulation.world import World

WALKS = {
    "ranks of an unfinished plan do not count for the next one": Walk(
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
    "a member that did not respond while too few were there is probed again": Walk(
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
    "a round of a store restored from a backup is not taken for the running one": Walk(
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
    "a store restored from a backup does not give restarts back": Walk(
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
    "workers that could save only after the others were told that they have are not waited for": Walk(
        agents=4,
        least=1,
        most=6,
        operator=True,
        seed=230,
        saves=True,
        together=True,
        events=[
            Event(after=0.6, kind=Kind.CLOCK_JUMPS, who=2, seconds=0.016, arg=5),
            Event(after=3.813, kind=Kind.JOIN_BROKEN, who=4, seconds=4.016, arg=2),
            Event(after=0.1, kind=Kind.DRAIN, who=1, seconds=2.782, arg=0),
            Event(after=1.2, kind=Kind.DRAIN, who=3, seconds=0.002, arg=2),
            Event(after=0.015, kind=Kind.DRAIN, who=3, seconds=0.409, arg=0),
            Event(after=0.6, kind=Kind.JOIN_BROKEN, who=4, seconds=0.008, arg=5),
            Event(after=0.1, kind=Kind.DRAIN, who=2, seconds=4.311, arg=5),
        ],
    ),
    "a member whose registration is not answered learns the secret of the run": Walk(
        agents=3,
        least=3,
        most=5,
        max_restarts=1,
        seed=553066014,
        events=[
            Event(after=5.6, kind=Kind.STORE_SET_BACK, who=2, seconds=7.225, arg=3),
            Event(after=0.677, kind=Kind.NO_DESCRIPTORS, who=5, seconds=0.01, arg=4),
            Event(after=0.0, kind=Kind.CRASH_AGENT, who=2, seconds=6.761, arg=4),
            Event(after=0.0, kind=Kind.LOSE_ANSWERS, who=3, seconds=12.645, arg=4),
        ],
    ),
    "no member waits for a plan that only a lost member followed, and etcd no longer has": Walk(
        agents=2,
        least=1,
        most=2,
        max_restarts=3,
        operator=True,
        seed=797171575,
        events=[
            Event(after=1.0, kind=Kind.COMPACT, who=5, seconds=4.445, arg=4),
            Event(after=0.1, kind=Kind.DRAIN, who=3, seconds=0.389, arg=0),
            Event(after=0.5, kind=Kind.FINISH, who=0, seconds=0.008, arg=0),
            Event(after=0.0, kind=Kind.STORE_SET_BACK, who=0, seconds=0.034, arg=4),
            Event(after=0.0, kind=Kind.CRASH_AGENT, who=4, seconds=6.842, arg=2),
        ],
    ),
    "a leader that restarts under its name does not follow itself": Walk(
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
    "no two members each wait for the other to plan": Walk(
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
    "a job scaled to a size that is not allowed still trains": Walk(
        agents=1,
        least=1,
        most=6,
        allowed=(4,),
        max_restarts=3,
        operator=True,
        seed=367,
        events=[Event(after=0.0, kind=Kind.RESIZE, who=4, seconds=0.382, arg=2)],
    ),
    "actions complete although revisions start over in an empty etcd": Walk(
        agents=2,
        least=2,
        most=4,
        max_restarts=3,
        seed=184,
        events=[Event(after=0.8, kind=Kind.STORE_EMPTIED, who=2, seconds=0.034, arg=5)],
    ),
    "a plan is not missed when its ranks cannot be read at once": Walk(
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
    "no plan names a member that has left": Walk(
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
    "only one of two planners writes its plan": Walk(
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
    "a lost node costs no restart": Walk(
        agents=5,
        least=5,
        most=6,
        max_restarts=1,
        seed=211,
        events=[Event(after=7.4, kind=Kind.CRASH_AGENT, who=2, seconds=0.024, arg=2)],
    ),
    "an agent that lost its lease registers again": Walk(
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
    "an earlier response of a node lost right after another does not count": Walk(
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
    "a failure reported to a store that lost its data is reported again": Walk(
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
    "two replicas whose members do not reach each other do not replace each other again and again": Walk(
        agents=5,
        least=2,
        most=2,
        max_restarts=100,
        seed=1213,
        session=True,
        replica_size=2,
        events=[
            Event(after=0.4, kind=Kind.CUT_LINK, who=1, seconds=0.03, arg=4),
            Event(after=0.0, kind=Kind.CUT_LINK, who=4, seconds=5.995, arg=5),
            Event(after=0.3, kind=Kind.CUT_LINK, who=0, seconds=4.383, arg=5),
        ],
    ),
}


@pytest.mark.parametrize("promise", WALKS)
def test_a_walk_that_once_failed_succeeds(promise: str) -> None:
    World(WALKS[promise]).run()
