"""etcd goes away while training goes on."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.contract import MemberState

from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer, require_etcd, three_members
from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import Job, lives


@pytest.mark.parametrize("data", ["kept", "lost"])
def test_an_etcd_that_was_away_restarts_nobody(fragile_job: Job, own_etcd: EtcdServer, data: str) -> None:
    job = fragile_job
    agents = job.start_all("a b c")
    before = job.trains(3)
    plan = job.plan
    assert plan is not None
    own_etcd.kill()
    eventually(lambda: all("etcd is unreachable" in agent.output for agent in agents), what="the agents notice")
    if data == "lost":
        own_etcd.wipe()
    own_etcd.start()
    eventually(
        lambda: len(job.members) == 3 and all(member.state is MemberState.READY for member in job.members.values()),
        what=f"all are registered again; logs:\n{job.logs}",
    )
    eventually(lambda: job.plan == plan, what=f"the plan is there again; logs:\n{job.logs}")
    assert job.workers(plan.round) == before
    job.tell("a", "raise")  # and changes work again: no restarts are left, so this one ends the job
    assert [agent.ends() for agent in agents] == [1, 1, 1]
    assert not job.workers(plan.round + 1), "somebody was restarted"


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


def test_an_etcd_that_loses_one_member_of_three_is_not_noticed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path
) -> None:
    servers = three_members(require_etcd("3.6"), tmp_path_factory.mktemp("etcd"))
    job = Job(servers[2].url, tmp_path)
    try:
        job.start_all(
            "a b c", "--max-restarts", "3", endpoint=",".join(f"127.0.0.1:{server.port}" for server in servers)
        )
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


def test_an_agent_that_only_etcd_does_not_hear_stops_when_the_others_go_on_and_comes_back(job: Job) -> None:
    """Its neighbours hear it, and it hears them: two groups would train, with it in both."""
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]))
    try:
        job.start_all("a b")
        cut = job.start("c", endpoint=f"127.0.0.1:{proxy.port}")
        before = job.trains(3)
        job.tell("c", "hang")  # or its worker would notice by itself that the others have gone
        eventually(lambda: not (job.directory / "do" / "c").exists(), what="its worker hangs")
        proxy.refuse()
        after = job.trains(2, after=before)
        assert {worker.member for worker in after} == {"a", "b"}
        eventually(
            lambda: "a neighbour follows plan" in cut.output, what=f"c hears that the others go on; logs:\n{job.logs}"
        )
        plan = job.plan
        assert plan is not None
        eventually(
            lambda: not any(lives(worker.pid) for worker in before if worker.member == "c"),
            what="its worker is stopped",
        )
        proxy.admit()
        again = job.trains(3, after=after)
        assert {worker.restarts for worker in again} == {0}, "a loss is free"
        job.finish()
        assert [agent.ends() for agent in job.agents] == [0, 0, 0], job.logs
    finally:
        proxy.close()


@pytest.mark.parametrize("spares", [0, 1])
def test_the_only_member_of_a_plan_trains_on_while_etcd_is_away(
    fragile_job: Job, own_etcd: EtcdServer, spares: int
) -> None:
    job = fragile_job
    agents = [job.start("a", nnodes="1")]
    before = job.trains(1)
    agents += [job.start("b", nnodes="1")] * spares
    eventually(lambda: len(job.members) == 1 + spares, what="the spare is there")
    plan = job.plan
    own_etcd.kill()
    if spares:
        eventually(
            lambda: "probing 1 members outside the group" in agents[0].output, what=f"it asks; logs:\n{job.logs}"
        )
    else:
        eventually(lambda: "etcd is unreachable" in agents[0].output, what="it notices")
    own_etcd.start()
    eventually(
        lambda: len(job.members) == 1 + spares and job.plan == plan, what=f"all are registered again; logs:\n{job.logs}"
    )
    assert plan is not None
    assert job.workers(plan.round) == before
    job.finish()
    assert [agent.ends() for agent in agents] == [0] * len(agents), job.logs
