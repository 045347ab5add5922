"""The reserved environment variables are those that the operator and the agent set."""

from __future__ import annotations

from elasticjob_operator.resources.pods import worker_pod
from elasticjob_runtime.contract import Env, PlanReason, PlanValue
from elasticjob_runtime.workers.environment import GroupSpec, worker_environment

from tests.unit.operator.builders import make_job


def set_by_operator() -> set[str]:
    jobs = [
        make_job(spec=spec) for spec in ({"checkpoint": {"directory": "/ckpt"}}, {"rendezvous": {"backend": "c10d"}})
    ]
    pods = [worker_pod(job, index=0, run=1, endpoint="x:1") for job in jobs]
    return {variable["name"] for pod in pods for variable in pod["spec"]["containers"][0]["env"]}


def set_by_agent() -> set[str]:
    group = GroupSpec(run_id="r", role="default", nproc=1, max_restarts=0)
    plan = PlanValue(
        round=1,
        attempt="a",
        size=1,
        world_size=1,
        master_addr="h",
        master_port=1,
        leader="l",
        nproc=1,
        restart_count=0,
        reason=PlanReason.START,
    )
    before = dict.fromkeys(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "USE_LIBUV", "OMP_NUM_THREADS"), "kept")
    after = worker_environment(before, group, plan, 0, 0, error_file="e", agent_socket="s")
    return {name for name in after if before.get(name) != after[name]}


def test_exactly_the_variables_that_elasticjob_sets_are_reserved() -> None:
    # PET_RDZV_CONF is merged with the user's, and users may set torch's own switch.
    assert set(Env.SET_BY_OPERATOR) == set_by_operator() - {Env.RDZV_CONF, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    # Only workers of a job that continues in place have ELASTICJOB_IN_PLACE, and only those of replicas the other one.
    assert set(Env.SET_BY_AGENT) == set_by_agent() | {Env.IN_PLACE, Env.REPLICA}
