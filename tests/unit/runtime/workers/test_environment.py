"""The environment of a worker process. That the names are torchrun's is checked against torch in tests/integration."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_runtime.contract import Env, PlanReason, PlanValue, RankValue, ReplicaValue
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.workers.environment import GroupSpec, fencing_token, worker_environment
from elasticjob_runtime.workers.messages import replicas_message

PLAN = PlanValue(
    round=7,
    attempt="a",
    size=3,
    world_size=6,
    master_addr="10.0.0.1",
    master_port=4000,
    leader="w",
    nproc=2,
    restart_count=2,
    reason=PlanReason.START,
)


GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def environment(
    base: dict[str, str] | None = None, *, group_rank: int = 1, local_rank: int = 1, libuv: bool = True, **group: Any
) -> Any:
    spec = GroupSpec(**{"run_id": "run", "role": "trainer", "nproc": 2, "max_restarts": 5, **group})
    return worker_environment(
        base or {}, spec, PLAN, group_rank, local_rank, error_file="/e", agent_socket="/s", without_libuv=not libuv
    )


RANKS = {
    "RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "ROLE_RANK": "3",
    "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "6",
}  # fmt: skip
RESTARTS = {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "5", "ELASTICJOB_ROUND": "7"}
USERS = {"HOME": "/home", "OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "USE_LIBUV": "1"}
ONE_GPU = {"virtual_local_rank": True}
NO_LIBUV = {"libuv": False}


@pytest.mark.parametrize(
    ("base", "settings", "expected"),
    [
        pytest.param({}, {}, RANKS, id="ranks and sizes follow the plan"),
        pytest.param({}, {}, RESTARTS, id="the restart count is the job's"),
        pytest.param({}, {}, {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}, id="the store is the plan's"),
        pytest.param({}, {"master_port": 29500}, {"MASTER_PORT": "29500"}, id="the user's port of the store"),
        pytest.param(
            {**USERS, "RANK": "99"}, NO_LIBUV, {**USERS, "RANK": "3"}, id="variables are the user's, but ours"
        ),
        pytest.param({}, {}, {"OMP_NUM_THREADS": "1"}, id="several processes share a machine"),
        pytest.param({}, {"nproc": 1, "local_rank": 0}, {"OMP_NUM_THREADS": None}, id="one process has the machine"),
        pytest.param({}, {}, {"USE_LIBUV": None}, id="a torch with libuv"),
        pytest.param({}, NO_LIBUV, {"USE_LIBUV": "0"}, id="a torch without libuv"),
        pytest.param({}, ONE_GPU, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}, id="one GPU for each"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "4,6"}, ONE_GPU, {"CUDA_VISIBLE_DEVICES": "6"}, id="one of the user's GPUs"
        ),
        pytest.param({"HIP_VISIBLE_DEVICES": "2,3"}, ONE_GPU, dict.fromkeys(GPUS, "3"), id="one GPU of AMD's"),
    ],
)
def test_variables_follow_from_plan_flags_and_the_users_own(
    base: dict[str, str], settings: dict[str, Any], expected: dict[str, str | None]
) -> None:
    found = environment(base, **settings)
    assert {name: found.get(name) for name in expected} == expected


REPLICA = ReplicaValue(
    index=4, world=9, incarnation="i", ordinal=1, members=("a", "b"), master_addr="10.0.0.8", master_port=5000,
    agent_store=True,
)  # fmt: skip


def test_a_replica_is_a_world_of_its_own_whatever_the_plan() -> None:
    spec = GroupSpec(run_id="run", role="trainer", nproc=2, max_restarts=5)
    found = worker_environment({}, spec, PLAN, 1, 1, error_file="/e", agent_socket="/s", replica=REPLICA, alone=True)
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR",
             "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", Env.REPLICA, Env.ROUND)  # fmt: skip
    assert [found[name] for name in names] == ["3", "1", "1", "4", "2", "2", "10.0.0.8", "5000", "True", "4", "7"]


@pytest.mark.parametrize(("group_rank", "place"), [(0, 0), (1, 0), (2, 1), (5, 2)])
def test_a_session_hears_its_replicas_place_and_where_the_replicas_meet(group_rank: int, place: int) -> None:
    value = dataclasses.replace(PLAN, size=6, replica_size=2)
    plan = Plan(value=value, mod_revision=1, rank=RankValue(group_rank=group_rank, incarnation="i"), replica=REPLICA)
    assert replicas_message(plan) == {"place": place, "count": 3, "store": "10.0.0.1:4000"}
    assert replicas_message(dataclasses.replace(plan, value=PLAN)) is None, "without replicas"


@pytest.mark.parametrize("virtual", [False, True])
def test_each_worker_process_has_a_number_that_no_other_one_of_its_agent_has(virtual: bool) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "4,5"}
    found = [environment(base, local_rank=rank, virtual_local_rank=virtual) for rank in (0, 1)]
    assert [item[Env.LOCAL_RANK] for item in found] == ["0", "1"]


def test_virtual_local_rank_with_too_few_gpus_is_an_error() -> None:
    with pytest.raises(ValueError, match="local rank 1 has no GPU in CUDA_VISIBLE_DEVICES=4"):
        environment({"CUDA_VISIBLE_DEVICES": "4"}, virtual_local_rank=True)


@pytest.mark.parametrize(
    ("base", "token"),
    [
        pytest.param({Env.RUN: "3"}, "3.2.7", id="the operator's number"),
        pytest.param({}, "1700000000.2.7", id="without an operator: when the run began"),
        pytest.param({Env.RUN: "third"}, "1700000000.2.7", id="no number"),
    ],
)
def test_worker_processes_get_a_fencing_token_that_grows(base: dict[str, str], token: str) -> None:
    plan = dataclasses.replace(PLAN, round=7, store_generation=2, run_began=1700000000)
    assert str(fencing_token(base, plan)) == token
