"""etcd is unreachable for a while, or for one agent only, and training continues."""

from __future__ import annotations

import pathlib
import signal

import pytest
from elasticjob_runtime.contract import MemberState

from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer, require_etcd, three_members
from tests.contract.proxy import Proxy
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


def test_a_change_during_an_outage_takes_effect_when_etcd_returns(fragile_job: Job, own_etcd: EtcdServer) -> None:
    job = fragile_job
    job.start_all("a b c", "--max-restarts", "3", nnodes="3")
    before = job.wait_for_training(3)
    own_etcd.kill()
    job.command(before[1].member, "raise")
    eventually(lambda: not (job.directory / "commands" / before[1].member).exists(), what="the worker process fails")
    own_etcd.start()
    after = job.wait_for_training(3, after=before)
    assert [worker.member for worker in after] == [worker.member for worker in before]
    assert {worker.restarts for worker in after} == {1}


def test_training_survives_the_loss_of_one_of_three_etcd_members(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path
) -> None:
    servers = three_members(require_etcd("3.6"), tmp_path_factory.mktemp("etcd"))
    job = Job(servers[2].url, tmp_path)
    try:
        endpoint = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        job.start_all("a b c", "--max-restarts", "3", nnodes="3", endpoint=endpoint)
        before = job.wait_for_training(3)
        servers[0].kill()  # the first endpoint of every agent
        job.command("b", "raise")
        after = job.wait_for_training(3, after=before)
        assert {worker.restarts for worker in after} == {1}, "the outage counted as a restart"
        job.finish()
        assert [agent.exit_code() for agent in job.agents] == [0, 0, 0], job.logs
    finally:
        job.close()
        for server in servers:
            server.stop()


def test_an_agent_cut_off_from_etcd_stops_when_the_others_move_on_and_rejoins(job: Job) -> None:
    """Its peers still reach it: without the rule, two groups would train, with it in both."""
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]))
    try:
        job.start_all("a b")
        cut = job.start("c", endpoint=f"127.0.0.1:{proxy.port}")
        before = job.wait_for_training(3)
        job.command("c", "hang")  # otherwise the worker process itself notices that its peers are gone
        eventually(lambda: not (job.directory / "commands" / "c").exists(), what="the worker process of c hangs")
        proxy.refuse()
        after = job.wait_for_training(2, after=before)
        assert {worker.member for worker in after} == {"a", "b"}
        eventually(
            lambda: "a neighbour follows plan" in cut.output,
            what=lambda: f"c learns that the others have moved on; logs:\n{job.logs}",
        )
        plan = job.plan
        assert plan is not None
        eventually(
            lambda: not any(is_alive(worker.pid) for worker in before if worker.member == "c"),
            what="the worker process of c is stopped",
        )
        proxy.admit()
        again = job.wait_for_training(3, after=after)
        assert {worker.restarts for worker in again} == {0}, "a lost member costs no restart"
        job.finish()
        assert [agent.exit_code() for agent in job.agents] == [0, 0, 0], job.logs
    finally:
        proxy.close()


@pytest.mark.parametrize("spares", [0, 1], ids=["no spare", "one spare"])
def test_the_only_member_of_a_plan_trains_through_an_etcd_outage(
    fragile_job: Job, own_etcd: EtcdServer, spares: int
) -> None:
    job = fragile_job
    agents = [job.start("a", nnodes="1")]
    before = job.wait_for_training(1)
    agents += [job.start("b", nnodes="1")] * spares
    eventually(lambda: len(job.members) == 1 + spares, what="every agent is registered")
    plan = job.plan
    own_etcd.kill()
    if spares:
        eventually(
            lambda: "probing 1 members outside the group" in agents[0].output,
            what=lambda: f"the member probes the spare; logs:\n{job.logs}",
        )
    else:
        eventually(lambda: "etcd is unreachable" in agents[0].output, what="the member notices the outage")
    own_etcd.start()
    eventually(
        lambda: len(job.members) == 1 + spares and job.plan == plan,
        what=lambda: f"all members are registered again; logs:\n{job.logs}",
    )
    assert plan is not None
    assert job.workers(plan.round) == before
    job.finish()
    assert [agent.exit_code() for agent in agents] == [0] * len(agents), job.logs


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
