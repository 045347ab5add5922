"""Walks that once failed, made small. Each is named for the promise that was broken."""

from __future__ import annotations

import pytest

from tests.unit.runtime.simulation.events import Event, Kind, Walk
from tests.unit.runtime.simulation.world import World

WALKS = {
    "ranks of an unfinished plan do not count for the next one":
        Walk(agents=4, least=2, most=3, seed=126, max_restarts=1, events=[
            Event(0.8, Kind.CUT_PEERS, 3, 14.429, 5),
            Event(0.0, Kind.LEAVE, 1, 0.2, 1),
            Event(1.1, Kind.LEAVE, 1, 4.464, 0),
        ]),
    "a member that did not respond while too few were there is probed again":
        Walk(agents=2, least=2, most=6, seed=17, events=[
            Event(2.7, Kind.STORE_DOWN, 5, 1.833, 2),
            Event(0.0, Kind.CUT_PEERS, 2, 4.432, 5),
        ]),
    "a round of a store restored from a backup is not taken for the running one":
        Walk(agents=5, least=4, most=6, seed=695, max_restarts=0, events=[
            Event(0.0, Kind.SLOW, 3, 1.831, 0),
            Event(0.6, Kind.SLOW, 3, 2.714, 4),
            Event(0.027, Kind.SLOW, 0, 0.466, 1),
            Event(3.039, Kind.SLOW, 4, 1.194, 5),
            Event(2.7, Kind.STORE_SET_BACK, 5, 8.773, 5),
        ]),
    "a store restored from a backup does not give restarts back":
        Walk(agents=4, least=3, most=4, seed=3, max_restarts=1, events=[
            Event(0.4, Kind.STORE_SET_BACK, 1, 0.434, 4),
            Event(0.7, Kind.CUT_STORE, 1, 0.642, 0),
            Event(0.047, Kind.CRASH_WORKER, 5, 2.765, 4),
            Event(1.0, Kind.STORE_SET_BACK, 2, 0.002, 3),
        ]),
    "workers that could save only after the others were told that they have are not waited for":
        Walk(agents=4, least=1, most=6, seed=230, operator=True, saves=True, together=True, events=[
            Event(0.6, Kind.CLOCK_JUMPS, 2, 0.016, 5),
            Event(3.813, Kind.JOIN_BROKEN, 4, 4.016, 2),
            Event(0.1, Kind.DRAIN, 1, 2.782, 0),
            Event(1.2, Kind.DRAIN, 3, 0.002, 2),
            Event(0.015, Kind.DRAIN, 3, 0.409, 0),
            Event(0.6, Kind.JOIN_BROKEN, 4, 0.008, 5),
            Event(0.1, Kind.DRAIN, 2, 4.311, 5),
        ]),
    "a member whose registration is not answered learns the secret of the run":
        Walk(agents=3, least=3, most=5, seed=553066014, max_restarts=1, events=[
            Event(5.6, Kind.STORE_SET_BACK, 2, 7.225, 3),
            Event(0.677, Kind.NO_DESCRIPTORS, 5, 0.01, 4),
            Event(0.0, Kind.CRASH_AGENT, 2, 6.761, 4),
            Event(0.0, Kind.LOSE_ANSWERS, 3, 12.645, 4),
        ]),
    "no member waits for a plan that only a lost member followed, and etcd no longer has":
        Walk(agents=2, least=1, most=2, seed=797171575, max_restarts=3, operator=True, events=[
            Event(1.0, Kind.COMPACT, 5, 4.445, 4),
            Event(0.1, Kind.DRAIN, 3, 0.389, 0),
            Event(0.5, Kind.FINISH, 0, 0.008, 0),
            Event(0.0, Kind.STORE_SET_BACK, 0, 0.034, 4),
            Event(0.0, Kind.CRASH_AGENT, 4, 6.842, 2),
        ]),
    "a leader that restarts under its name does not follow itself": Walk(agents=2, least=1, most=1, seed=290, events=[
        Event(2.1, Kind.CLOCK_JUMPS, 1, 0.001, 1),
        Event(0.1, Kind.CRASH_AGENT, 5, 0.39, 4),
    ]),
    "no two members each wait for the other to plan": Walk(agents=5, least=5, most=6, seed=381, max_restarts=1, events=[
        Event(0.2, Kind.CRASH_AGENT, 0, 6.289, 1),
        Event(2.7, Kind.CRASH_AGENT, 2, 4.955, 3),
        Event(0.7, Kind.PARTITION, 2, 7.518, 2),
        Event(0.1, Kind.FREEZE, 3, 1.454, 4),
        Event(5.2, Kind.PARTITION, 0, 0.047, 5),
        Event(2.9, Kind.CRASH_AGENT, 4, 1.712, 4),
        Event(2.4, Kind.CRASH_AGENT, 1, 0.039, 0),
        Event(0.0, Kind.CRASH_AGENT, 2, 10.461, 4),
    ]),
    "a job scaled to a size that is not allowed still trains":
        Walk(agents=1, least=1, most=6, seed=367, allowed=(4,), max_restarts=3, operator=True, events=[
            Event(0.0, Kind.RESIZE, 4, 0.382, 2),
        ]),
    "actions complete although revisions start over in an empty etcd":
        Walk(agents=2, least=2, most=4, seed=184, max_restarts=3, events=[Event(0.8, Kind.STORE_EMPTIED, 2, 0.034, 5)]),
    "a plan is not missed when its ranks cannot be read at once":
        Walk(agents=1, least=1, most=5, seed=237, max_restarts=3, events=[
            Event(0.0, Kind.JOIN, 1, 0.226, 4),
            Event(0.251, Kind.JOIN, 4, 0.005, 2),
            Event(0.1, Kind.LOSE_ANSWERS, 1, 7.564, 5),
        ]),
    "no plan names a member that has left": Walk(agents=2, least=2, most=6, seed=125, max_restarts=0, events=[
        Event(1.9, Kind.CRASH_WORKER, 5, 0.235, 5),
        Event(0.6, Kind.LOSE_LEASE, 2, 0.245, 1),
    ]),
    "only one of two planners writes its plan": Walk(agents=5, least=3, most=3, seed=209, events=[
        Event(0.007, Kind.CUT_PEERS, 5, 1.146, 5),
        Event(0.006, Kind.CUT_PEERS, 2, 1.799, 2),
        Event(7.0, Kind.CUT_PEERS, 2, 0.434, 3),
        Event(0.1, Kind.CUT_PEERS, 3, 5.299, 1),
        Event(0.0, Kind.CUT_PEERS, 5, 12.314, 3),
    ]),
    "a lost node costs no restart": Walk(agents=5, least=5, most=6, seed=211, max_restarts=1, events=[
        Event(7.4, Kind.CRASH_AGENT, 2, 0.024, 2),
    ]),
    "an agent that lost its lease registers again": Walk(agents=4, least=3, most=3, seed=167, max_restarts=1, events=[
        Event(0.0, Kind.STORE_EMPTIED, 5, 1.68, 3),
        Event(0.8, Kind.STORE_EMPTIED, 3, 0.909, 3),
        Event(0.4, Kind.STORE_EMPTIED, 1, 10.266, 4),
    ]),
    "an earlier response of a node lost right after another does not count":
        Walk(agents=3, least=1, most=5, seed=140, events=[
            Event(3.1, Kind.CRASH_AGENT, 2, 0.045, 1),
            Event(0.6, Kind.CRASH_AGENT, 5, 6.449, 0),
        ]),
    "a failure reported to a store that lost its data is reported again":
        Walk(agents=2, least=1, most=5, seed=289585817, events=[
            Event(2.6, Kind.CUT_STORE, 1, 0.287, 2),
            Event(0.5, Kind.CRASH_WORKER, 0, 0.02, 4),
            Event(0.03, Kind.STORE_EMPTIED, 0, 1.606, 3),
        ]),
    "two replicas whose members do not reach each other do not replace each other again and again":
        Walk(agents=5, least=2, most=2, seed=1213, session=True, replica_size=2, events=[
            Event(0.4, Kind.CUT_LINK, 1, 0.03, 4),
            Event(0.0, Kind.CUT_LINK, 4, 5.995, 5),
            Event(0.3, Kind.CUT_LINK, 0, 4.383, 5),
        ]),
}  # fmt: skip


@pytest.mark.parametrize("promise", WALKS)
def test_a_walk_that_once_failed_succeeds(promise: str) -> None:
    World(WALKS[promise]).run()
