"""Which state the processes of a new world continue with."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.order import NO_FENCE, Kind, State
from elasticjob_runtime.training.session.world import (
    BETWEEN_STEPS,
    NO_STATE,
    SPREAD,
    Agreement,
    ProcessState,
    SessionError,
    World,
    agree,
    are_together,
)


def held(
    committed: int, *, live: bool = True, layout: str = "same", fence: str = "", evaluation: int = 0
) -> ProcessState:
    kind = Kind.LIVE if live else Kind.STORAGE
    state = State(step=committed, kind=kind, job="own", fence=parse(fence), evaluation=evaluation)
    return ProcessState(state=state, layout=layout)


def saved(committed: int, job: str, fence: str, *, unreadable: str = "") -> ProcessState:
    """From a checkpoint."""
    state = State(step=committed, job=job, fence=parse(fence))
    return ProcessState(state=state, layout="same", unreadable=unreadable)


def parse(fence: str) -> Fence:
    return Fence.parse(fence) if fence else NO_FENCE


FRESH = held(NO_STATE, live=False)


@pytest.mark.parametrize(
    ("states", "sources"),
    [
        ([FRESH, FRESH, FRESH], (0,)),
        ([held(0), held(0)], (0, 1)),
        ([held(7), held(8), held(7)], (1,)),
        ([held(8, fence="1.0.2"), held(8, fence="1.0.3"), held(8, fence="1.0.3")], (1, 2)),
        ([held(25, fence="1.0.9"), held(15, fence="1.0.10")], (1,)),
        ([FRESH, held(8), held(8)], (1, 2)),
        ([held(500, live=False), FRESH], (0,)),
        ([held(500, live=False), held(600, live=False)], (1,)),
        ([held(500, live=False), held(8)], (1,)),
        ([held(BETWEEN_STEPS, live=False), held(8)], (1,)),
        ([held(BETWEEN_STEPS, live=False), held(500, live=False)], (1,)),
        ([held(150, live=False, fence="1.0.4"), held(110, live=False, fence="1.0.5")], (1,)),
        ([held(110, live=False, fence="1.0.4"), held(110, live=False, fence="1.0.5")], (1,)),
        ([held(90, live=False, fence="2.0.1"), held(110, live=False, fence="1.0.5")], (0,)),
        ([held(90, live=False, fence="1.0.5"), held(110, live=False, fence="1.0.5")], (1,)),
        ([held(90, live=False), held(80, live=False, fence="1.0.5"), FRESH], (1,)),
        ([held(90, fence="1.0.2"), held(110, live=False, fence="1.0.5")], (0,)),
        ([held(8, evaluation=1), held(8), held(8, evaluation=2)], (1,)),
        ([held(8, evaluation=1), held(8, evaluation=2)], (1,)),
        ([held(8, evaluation=1), held(7)], (0,)),
        ([saved(150, "old", "1.0.4"), saved(110, "old", "1.0.5")], (1,)),
        ([saved(150, "old", "1.0.4"), saved(110, "older", "9.0.5")], (0,)),
        ([saved(150, "old", "9.0.4"), saved(110, "own", "1.0.1")], (1,)),
        ([saved(150, "own", "1.0.4", unreadable="EIO"), saved(150, "own", "1.0.4")], (1,)),
        ([saved(150, "own", "1.0.4", unreadable="EIO"), saved(110, "own", "1.0.5")], (1,)),
        ([saved(150, "own", "1.0.4", unreadable="EIO"), held(8)], (1,)),
    ],
)
def test_the_newest_whole_state_wins_and_running_training_outranks_checkpoints(
    states: list[ProcessState], sources: tuple[int, ...]
) -> None:
    agreement = agree(states, "own")
    assert agreement.sources == sources
    assert sorted((*agreement.sources, *agreement.receivers)) == list(range(len(states)))


@pytest.mark.parametrize(
    ("states", "together"),
    [
        pytest.param([FRESH, FRESH], True, id="the beginning"),
        pytest.param([FRESH, held(500, live=False)], True, id="from a checkpoint"),
        pytest.param([held(8, evaluation=1), held(8, evaluation=1)], True, id="the same evaluation"),
        pytest.param([held(8), held(8)], True, id="the same batch"),
        pytest.param([held(8), FRESH], False, id="a joiner"),
        pytest.param(
            [held(8, evaluation=1), held(NO_STATE, live=False, evaluation=1)],
            False,
            id="it evaluates",
        ),
        pytest.param([held(8, evaluation=1), held(8)], False, id="it is over for one"),
        pytest.param([held(8, evaluation=1), held(7)], False, id="one has not ended the step"),
    ],
)
def test_only_processes_at_the_same_place_evaluate_together(states: list[ProcessState], together: bool) -> None:
    assert are_together(states) is together


@pytest.mark.parametrize("others", [[], [FRESH]])
def test_incomplete_states_are_never_a_beginning(others: list[ProcessState]) -> None:
    with pytest.raises(SessionError, match=r"after optimizer\.step"):
        agree([held(BETWEEN_STEPS, live=False), *others], "own")


@pytest.mark.parametrize("other", [FRESH, saved(140, "own", "1.0.4"), saved(150, "own", "1.0.4", unreadable="ESTALE")])
def test_a_checkpoint_that_no_process_can_read_is_an_error_if_it_is_the_newest(other: ProcessState) -> None:
    with pytest.raises(CheckpointError, match="Rank 0: EIO"):
        agree([saved(150, "own", "1.0.4", unreadable="EIO"), other], "own")


@pytest.mark.parametrize(
    ("states", "strangers"),
    [
        ([held(3), held(3, layout="other")], (1,)),
        ([held(NO_STATE, live=False, layout="other"), held(3), held(3)], (0,)),
        ([FRESH, held(NO_STATE, live=False, layout="other"), FRESH], (1,)),
    ],
)
def test_a_process_with_another_model_has_no_part_in_the_training(
    states: list[ProcessState], strangers: tuple[int, ...]
) -> None:
    agreement = agree(states, "own")
    assert agreement.strangers == strangers
    assert not set(strangers) & {*agreement.sources, *agreement.receivers}


def test_large_tensors_come_from_all_sources_and_small_ones_from_one() -> None:
    agreement = Agreement(sources=(0, 2), receivers=(1, 3))
    assert {agreement.source_of(1, tensor, SPREAD) for tensor in range(4)} == {0, 2}
    assert {agreement.source_of(receiver, 0, SPREAD) for receiver in (1, 3)} == {0, 2}
    assert {agreement.source_of(3, tensor, SPREAD - 1) for tensor in range(4)} == {0}


def test_a_plan_sets_only_variables_of_the_agent() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "h", "MASTER_PORT": "29500", "LD_PRELOAD": "x"}
    world = World.parse({"round": 2, "attempt": "p-1", "environment": environment})
    assert (world.rank, world.size, world.store, world.prefix) == (1, 3, ("h", 29500), "in-place/2/p-1")
    assert "LD_PRELOAD" not in world.environment
    assert not World.parse({"round": 2, "attempt": "p-1", "environment": None}).environment
    with pytest.raises(KeyError):
        World.parse({"round": 2, "attempt": "p-1", "environment": {"RANK": "1"}})


def plan_of(rank: str, **replicas: object) -> World:
    environment = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "own", "MASTER_PORT": "1"}
    message = {"round": 3, "attempt": "a", "environment": environment, "replicas": replicas or None}
    return World.parse(message)


def test_replicas_meet_by_rank_index_where_the_plan_says() -> None:
    """Whatever the world inside the replica is."""
    worlds = [plan_of(rank, place=1, count=4, store="fd00::7:4000") for rank in ("0", "1")]
    assert {(world.rank, world.size, world.store) for world in worlds} == {(1, 4, ("fd00::7", 4000))}
    assert len({world.prefix for world in worlds}) == 2
    alone = plan_of("1")
    assert (alone.rank, alone.size, alone.store) == (1, 2, ("own", 1))


def test_a_process_outside_of_a_plan_knows_how_many_replicas_are_in_it() -> None:
    assert World.parse({"round": 3, "attempt": "a", "environment": None, "others": 2}).others == 2
    assert plan_of("0", place=0, count=2, store="10.0.0.7:29400").others == 0
