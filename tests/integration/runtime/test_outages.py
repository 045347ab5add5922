"""etcd is unreachable for a while, or for one agent only, and training continues."""

from __future__ import annotations

import signal

import pytest
from elasticjob_runtime.contract import MemberState

from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer
from tests.integration.runtime.agents import Job, is_alive


@pytest.mark.parametrize("data", ["kept", "lost"], ids=["data kept", "data lost"])
def test_an_etcd_outage_restarts_no_worker_process(fragile_job: Job, own_etcd: EtcdServer, data: str) -> None:
    job = fragile_job
    agents = job.start_all("a b c", nnodes="3")  # no joiner, which alone would be left out when it fails so soon
    before = job.wait_for_training(3)
    plan = job.plan
    assert plan is not None
    own_etcd.kill()
    eventually(
        lambda: all("etcd is unreachable" in agent.output for agent in agents), what="the agents notice the outage"
    )
    if data == "lost":
        own_etcd.wipe()
    own_etcd.start()
    eventually(
        lambda: len(job.members) == 3 and all(member.state is MemberState.READY for member in job.members.values()),
        what=lambda: f"all members are registered again; logs:\n{job.logs}",
    )
    eventually(lambda: job.plan == plan, what=lambda: f"the plan is back; logs:\n{job.logs}")
    assert job.workers(plan.round) == before
    job.command("a", "raise")  # changes take effect again: no restarts are left, so this ends the job
    assert [agent.exit_code() for agent in agents] == [1, 1, 1]
    assert not job.workers(plan.round + 1), "worker processes were restarted"


def test_a_survivor_outlives_the_loss_of_etcd_and_its_only_peer(fragile_job: Job, own_etcd: EtcdServer) -> None:
    """As when a node is drained that has the job's etcd and the other worker pod."""
    job = fragile_job
    survivor, drained = job.start("a", nnodes="1:2"), job.start("b", nnodes="1:2")
    before = job.wait_for_training(2)
    own_etcd.kill()
    drained.process.send_signal(signal.SIGTERM)
    eventually(
        lambda: not any(is_alive(worker.pid) for worker in before),
        what=lambda: f"all worker processes end; logs:\n{job.logs}",
    )
    eventually(lambda: "cut off: " in survivor.output, what=lambda: f"the survivor notices; logs:\n{job.logs}")
    drained.exit_code()
    own_etcd.start()
    job.start("c", nnodes="1:2")
    after = job.wait_for_training(2, after=before)
    assert {worker.member for worker in after} == {"a", "c"}
    assert {worker.restarts for worker in after} == {0}, "the outage counted as a restart"
    job.finish()
    assert survivor.exit_code() == 0, job.logs
