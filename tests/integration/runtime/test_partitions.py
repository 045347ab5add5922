"""A network partition between a group and etcd with its spares: real agents on a real etcd, behind a proxy."""

from __future__ import annotations

from elasticjob_runtime.contract import Fence

from hack.support import eventually
from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import Job, is_alive


def test_a_partitioned_group_stops_when_spares_take_over(job: Job) -> None:
    """The members of the plan reach only each other; etcd and two spares are on the other side."""
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]))
    try:
        group = job.start_all("a b", nnodes="2", endpoint=f"127.0.0.1:{proxy.port}")
        before = job.wait_for_training(2)
        job.start_all("c d", nnodes="2")
        eventually(lambda: len(job.members) == 4, what=f"the spares are registered; logs:\n{job.logs}")
        proxy.refuse()
        after = job.wait_for_training(2, after=before)
        assert {worker.member for worker in after} == {"c", "d"}
        eventually(
            lambda: not any(is_alive(worker.pid) for worker in before),
            60.0,
            what=f"the worker processes of the partitioned group are stopped; logs:\n{job.logs}",
        )
        assert any("another member follows a later plan" in agent.output for agent in group), (
            job.logs
        )  # the other one may lose its peer first
        plan = job.plan
        assert plan is not None
        assert plan.restart_count == 0, "a partition costs no restart"
        assert plan.run_began
        assert Fence(plan.run_began, plan.store_generation, plan.round) > Fence(
            plan.run_began, plan.store_generation, before[0].round
        )
        proxy.admit()
        eventually(lambda: len(job.members) == 4, 60.0, what=f"they rejoin as spares; logs:\n{job.logs}")
        job.finish()
        assert [agent.exit_code(60.0) for agent in job.agents] == [0, 0, 0, 0], job.logs
    finally:
        proxy.close()
