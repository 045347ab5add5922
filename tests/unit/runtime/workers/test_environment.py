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


def environment(
    base: dict[str, str] | None = None, *, group_rank: int = 1, local_rank: int = 1, libuv: bool = True, **group: Any
) -> Any:
    spec = GroupSpec(**{"run_id": "run", "role": "trainer", "nproc": 2, "max_restarts": 5, **group})
    return worker_environment(
        base or {}, spec, PLAN, group_rank, local_rank, error_file="/e", agent_socket="/s", without_libuv=not libuv
    )


def test_ranks_and_sizes_follow_the_plan() -> None:
    found = environment()
    names = (
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
    )
    assert {name: found[name] for name in names} == dict(
        zip(names, ("3", "1", "1", "3", "6", "2", "3", "6"), strict=True)
    )


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


def test_a_session_without_replicas_hears_of_none() -> None:
    assert replicas_message(Plan(value=PLAN, mod_revision=1, rank=RankValue(group_rank=0, incarnation="i"))) is None


def test_the_restart_count_is_the_jobs() -> None:
    found = environment()
    assert (found["TORCHELASTIC_RESTART_COUNT"], found["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "5")
    assert found["ELASTICJOB_ROUND"] == "7"


def test_the_store_address_comes_from_the_plan_or_the_user() -> None:
    assert (environment()["MASTER_ADDR"], environment()["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert environment(master_port=29500)["MASTER_PORT"] == "29500"


def test_the_users_variables_are_kept_except_our_own() -> None:
    found = environment({"HOME": "/home", "RANK": "99", "OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})
    assert (found["HOME"], found["RANK"], found["OMP_NUM_THREADS"], found["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == (
        "/home",
        "3",
        "8",
        "3",
    )


def test_threads_are_limited_if_several_worker_processes_share_a_machine() -> None:
    assert environment()["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(nproc=1, local_rank=0)


def test_use_libuv_is_turned_off_for_a_torch_without_it() -> None:
    assert "USE_LIBUV" not in environment()
    assert environment(libuv=False)["USE_LIBUV"] == "0"
    assert environment({"USE_LIBUV": "1"}, libuv=False)["USE_LIBUV"] == "1"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "6"}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}),
    ],
)
def test_with_virtual_local_rank_each_worker_process_sees_one_gpu(
    base: dict[str, str], expected: dict[str, str]
) -> None:
    found = environment(base, virtual_local_rank=True)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("virtual", [False, True])
def test_each_worker_process_has_a_number_that_no_other_one_of_its_agent_has(virtual: bool) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "4,5"}
    found = [environment(base, local_rank=rank, virtual_local_rank=virtual) for rank in (0, 1)]
    assert [each[Env.LOCAL_RANK] for each in found] == ["0", "1"]


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
