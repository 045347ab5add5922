"""etcd goes away while training goes on."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.contract import MemberState

from tests.contract.etcd_servers import EtcdServer, require_etcd, three_members
from tests.integration.runtime.agents import Job
from tests.support import eventually


@pytest.mark.parametrize("data", ["kept", "lost"])
def test_an_etcd_that_was_away_restarts_nobody(fragile_job: Job, own_etcd: EtcdServer, data: str) -> None:
    job = fragile_job
    agents = job.start_all("a b c")
    before = job.trains(3)
    plan = job.plan
    assert plan is not None
    own_etcd.kill()
    eventually(lambda: all("out of reach" in agent.output for agent in agents), what="the agents notice")
    if data == "lost":
        own_etcd.wipe()
    own_etcd.start()
    eventually(
        lambda: len(job.members) == 3 and all(member.state is MemberState.READY for member in job.members.values()),
        what=f"all are registered again; logs:\n{job.logs}",
    )
    eventually(lambda: job.plan == plan, what=f"the plan is there again; logs:\n{job.logs}")
    assert job.workers(plan.epoch) == before
    job.tell("a", "raise")  # and changes work again: no restarts are left, so this one ends the job
    assert [agent.ends() for agent in agents] == [1, 1, 1]
    assert not job.workers(plan.epoch + 1), "somebody was restarted"


def test_a_change_waits_for_etcd_and_then_happens(fragile_job: Job, own_etcd: EtcdServer) -> None:
    job = fragile_job
    job.start_all("a b c", "--max-restarts", "3")
    before = job.trains(3)
    own_etcd.kill()
    job.tell(before[1].member, "raise")
    eventually(lambda: not (job.directory / "do" / before[1].member).exists(), what="the worker fails")
    own_etcd.start()
    after = job.trains(3, after=before)
    assert [worker.member for worker in after] == [worker.member for worker in before]
    assert {worker.restarts for worker in after} == {1}


def test_an_etcd_that_loses_one_member_of_three_is_not_noticed(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path) -> None:
    servers = three_members(require_etcd("3.6"), tmp_path_factory.mktemp("etcd"))
    job = Job(servers[2].url, tmp_path)
    try:
        job.start_all("a b c", "--max-restarts", "3", endpoint=",".join(f"127.0.0.1:{server.port}" for server in servers))
        before = job.trains(3)
        servers[0].kill()  # the one that all agents asked first
        job.tell("b", "raise")
        after = job.trains(3, after=before)
        assert {worker.restarts for worker in after} == {1}, "more than the crash"
        job.finish()
        assert [agent.ends() for agent in job.agents] == [0, 0, 0], job.logs
    finally:
        job.close()
        for server in servers:
            server.stop()
