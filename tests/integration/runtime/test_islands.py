"""A group that is cut off from etcd and from those who could take over: real agents on a real etcd, with proxies that
can be cut."""

from __future__ import annotations

from elasticjob_runtime.contract import Fence

from hack.support import eventually
from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import Job, lives


def test_a_whole_group_that_is_cut_off_stops_when_its_spares_take_over(job: Job) -> None:
    """The members of the plan reach each other, and nobody else; etcd and two spares are on the other side (finding
    R1)."""
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]))
    try:
        group = job.start_all("a b", nnodes="2", endpoint=f"127.0.0.1:{proxy.port}")
        before = job.trains(2)
        job.start_all("c d", nnodes="2")
        eventually(lambda: len(job.members) == 4, what=f"the spares are there; logs:\n{job.logs}")
        proxy.refuse()
        after = job.trains(2, after=before)
        assert {worker.member for worker in after} == {"c", "d"}
        eventually(
            lambda: not any(lives(worker.pid) for worker in before),
            60.0,
            what=f"the workers of the group that was cut off are stopped; logs:\n{job.logs}",
        )
        assert any("another member follows a later plan" in agent.output for agent in group), (
            job.logs
        )  # the other may lose its peer first
        plan = job.plan
        assert plan is not None
        assert plan.restart_count == 0, "a partition is no failure"
        assert plan.run_began
        assert Fence(plan.run_began, plan.store_generation, plan.round) > Fence(
            plan.run_began, plan.store_generation, before[0].round
        )
        proxy.admit()
        eventually(lambda: len(job.members) == 4, 60.0, what=f"they come back as spares; logs:\n{job.logs}")
        job.finish()
        assert [agent.ends(60.0) for agent in job.agents] == [0, 0, 0, 0], job.logs
    finally:
        proxy.close()
