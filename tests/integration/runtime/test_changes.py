"""Every change of a job's membership, with real agents on a real etcd."""

from __future__ import annotations

import os
import signal
import time

from elasticjob_runtime.contract import ExitCode, MemberState, OutcomeState, PlanReason

from hack.support import eventually
from tests.integration.runtime.agents import Job, lives


def test_all_succeed_and_exit_0(job: Job) -> None:
    agents = job.start_all("a b c")
    workers = job.trains(3)
    assert sorted(worker.member for worker in workers) == ["a", "b", "c"]
    job.finish()
    assert [agent.ends() for agent in agents] == [0, 0, 0], job.logs
    outcome = job.outcome
    assert outcome is not None
    assert (outcome.state, outcome.round) == (OutcomeState.SUCCEEDED, workers[0].round)
    assert job.members == {}, "an agent left its key behind"
    assert not any(lives(pid) for worker in workers for pid in [worker.pid, *worker.children])


def test_a_crashed_worker_restarts_the_group_and_counts_once(job: Job) -> None:
    job.start_all("a b c", "--max-restarts", "2")
    before = job.trains(3)
    job.tell("b", "raise")
    after = job.trains(3, after=before)
    assert [worker.member for worker in after] == [worker.member for worker in before], "ranks are stable"
    assert {worker.restarts for worker in after} == {1}
    plan = job.plan
    assert plan is not None
    assert (plan.reason, plan.restart_count) == (PlanReason.WORKER_FAILED, 1)
    eventually(
        lambda: not any(lives(pid) for worker in before for pid in [worker.pid, *worker.children]),
        what="the old workers end",
    )


def test_after_the_last_restart_everybody_exits_1_and_says_why(job: Job) -> None:
    agents = job.start_all("a b", "--max-restarts", "1", nnodes="2")
    before = job.trains(2)
    job.tell("a", "exit")
    job.trains(2, after=before)
    job.tell("b", "raise")  # its peer fails of it, and ends earlier
    assert [agent.ends() for agent in agents] == [ExitCode.WORKERS_FAILED] * 2, job.logs
    outcome = job.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.reason) == (OutcomeState.FAILED, "MaxRestartsExceeded")
    assert outcome.failure["member"] == "b"
    for agent in agents:
        assert "RuntimeError: told to fail" in agent.output
        assert 'raise RuntimeError("told to fail")' in agent.termination_file.read_text(), (
            "no traceback in the termination message"
        )


def test_a_killed_agent_takes_its_workers_along_and_the_others_go_on_at_once(job: Job) -> None:
    # The lease would last for a minute: only a question to the agent itself can find out sooner.
    agents = {agent.name: agent for agent in job.start_all("a b c", conf="start_grace=0.5,join_delay=0.1,lease_ttl=60")}
    before = job.trains(3)
    lost = before[1]
    agents[lost.member].signal(signal.SIGKILL)
    after = job.trains(2, after=before)
    assert [worker.member for worker in after] == [before[0].member, before[2].member]
    assert {worker.restarts for worker in after} == {0}, "a lost member is free"
    assert lost.member in job.members, "the lease cannot have ended yet"
    eventually(
        lambda: not any(lives(pid) for pid in [lost.pid, *lost.children]), what="its workers and their children end"
    )


def test_a_killed_leader_is_succeeded_at_once(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b c", conf="start_grace=0.5,join_delay=0.1,lease_ttl=60")}
    before = job.trains(3)
    agents[before[0].member].signal(signal.SIGKILL)
    after = job.trains(2, after=before)
    assert [worker.member for worker in after] == [before[1].member, before[2].member]
    assert {worker.restarts for worker in after} == {0}


def test_a_leader_that_starts_again_under_its_name_is_a_newcomer(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b c", conf="start_grace=0.5,join_delay=0.1,lease_ttl=60")}
    before = job.trains(3)
    leader = before[0].member
    agents[leader].signal(signal.SIGKILL)
    job.start(leader)
    after = job.trains(3, after=before)
    assert [worker.member for worker in after] == [before[1].member, before[2].member, leader]
    assert {worker.restarts for worker in after} == {0}


def test_a_frozen_agent_is_left_behind_and_taken_back(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b c")}
    before = job.trains(3)
    frozen = before[-1]
    agents[frozen.member].signal(signal.SIGSTOP)
    after = job.trains(2, after=before)
    assert frozen.member not in [worker.member for worker in after]
    agents[frozen.member].signal(signal.SIGCONT)
    again = job.trains(3, after=after)
    assert [worker.member for worker in again] == [*[worker.member for worker in after], frozen.member]
    assert {worker.restarts for worker in again} == {0}
    assert not lives(frozen.pid), "its old workers went on"


def test_sigterm_lets_the_worker_save_while_the_others_go_on(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b c")}
    before = job.trains(3)
    leaving = before[0].member
    agents[leaving].signal(signal.SIGTERM)
    assert agents[leaving].ends() == ExitCode.TERMINATED
    assert (job.directory / f"saved-{leaving}-{before[0].round}").exists(), "the worker got no time to save"
    after = job.trains(2, after=before)
    assert {worker.restarts for worker in after} == {0}
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LEFT


def test_ctrl_c_exits_130(job: Job) -> None:
    agents = job.start_all("a", nnodes="1")
    job.trains(1)
    agents[0].signal(signal.SIGINT)
    assert agents[0].ends() == ExitCode.INTERRUPTED


def test_a_joining_member_gets_the_last_rank(job: Job) -> None:
    job.start_all("a b")
    before = job.trains(2)
    job.start("c")
    after = job.trains(3, after=before)
    assert [worker.member for worker in after] == [*[worker.member for worker in before], "c"]
    plan = job.plan
    assert plan is not None
    assert (plan.reason, plan.restart_count) == (PlanReason.MEMBER_JOINED, 0)


def test_a_spare_is_parked_and_promoted(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b", nnodes="2")}
    before = job.trains(2)
    spare = job.start("c", nnodes="2")
    eventually(lambda: "spare" in spare.output, what="the spare is parked")
    agents[before[1].member].signal(signal.SIGKILL)
    after = job.trains(2, after=before)
    assert [worker.member for worker in after] == [before[0].member, "c"]
    job.finish()
    assert spare.ends() == 0


def test_a_spare_costs_nothing_however_long_it_waits(job: Job) -> None:
    job.start_all("a b", nnodes="2")
    job.trains(2)
    spare = job.start("c", nnodes="2", conf="join_timeout=1")
    eventually(lambda: "spare" in spare.output, what="the spare is parked")
    time.sleep(1.5)  # past its join timeout
    before = spare.cpu_seconds
    time.sleep(2.0)
    assert spare.cpu_seconds - before < 0.2, "it spins"
    assert spare.process.poll() is None


def test_a_spare_exits_0_when_the_others_have_succeeded(job: Job) -> None:
    job.start_all("a b", nnodes="2")
    job.trains(2)
    spare = job.start("c", nnodes="2")
    eventually(lambda: "spare" in spare.output, what="the spare is parked")
    job.finish()
    assert [agent.ends() for agent in job.agents] == [0, 0, 0], job.logs


def test_below_its_minimum_a_job_waits_and_goes_on_when_one_comes(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b", nnodes="2:3")}
    before = job.trains(2)
    survivor = before[0].member
    agents[before[1].member].signal(signal.SIGKILL)
    eventually(lambda: "at least 2 needed" in agents[survivor].output, what="the survivor waits")
    job.start("c")
    after = job.trains(2, after=before)
    assert [worker.member for worker in after] == [survivor, "c"]


def test_a_hanging_worker_is_not_waited_for_when_the_plan_changes(job: Job) -> None:
    job.start_all("a b")
    before = job.trains(2)
    job.tell("a", "hang")
    hanging = next(worker for worker in before if worker.member == "a")
    eventually(lambda: not (job.directory / "do" / "a").exists(), what="it hangs")
    job.start("c")
    job.trains(3, after=before)
    assert not lives(hanging.pid)


def test_the_children_of_a_crashed_worker_die_with_it(job: Job) -> None:
    job.start_all("a", "--max-restarts", "1", nnodes="1")
    before = job.trains(1)
    os.kill(before[0].pid, signal.SIGKILL)
    job.trains(1, after=before)
    assert not any(lives(pid) for pid in before[0].children)
    plan = job.plan
    assert plan is not None
    assert "SIGKILL" in plan.message


def test_several_workers_per_member_fail_as_one(job: Job) -> None:
    job.start_all("a b", "--nproc-per-node", "2", "--max-restarts", "3", nnodes="2")
    before = job.trains(2)
    assert [worker.rank for worker in before] == [0, 1, 2, 3]
    os.kill(before[3].pid, signal.SIGKILL)
    after = job.trains(2, after=before)
    assert {worker.restarts for worker in after} == {1}
    eventually(lambda: not any(lives(worker.pid) for worker in before), what="the old group ends")


def test_all_agents_killed_at_once_and_started_again_go_on(job: Job) -> None:
    agents = job.start_all("a b", nnodes="2")
    before = job.trains(2)
    for agent in agents:
        agent.signal(signal.SIGKILL)
    job.start_all("a b", nnodes="2")
    job.trains(2, after=before)


def test_who_comes_after_the_end_leaves_with_the_outcome_and_is_told_what_to_do(job: Job) -> None:
    first = job.start_all("a b", nnodes="2")
    job.trains(2)
    job.finish()
    assert [agent.ends() for agent in first] == [0, 0]
    late = job.start("c", nnodes="2")
    assert late.ends() == ExitCode.SUCCEEDED
    assert "the job succeeded before this agent joined; use another --rdzv-id to run it again" in late.output
    assert job.members == {}


def test_progress_and_phases_can_be_read(job: Job) -> None:
    agent = job.start("a", nnodes="1")
    job.trains(1)
    eventually(
        lambda: '"step"' in (value.value if (value := job.client.get(job.keys.progress)) else ""),
        what="progress in etcd",
    )
    assert job.members["a"].state is MemberState.READY
    job.finish()
    assert agent.ends() == 0
    events = agent.events
    assert [event["event"] for event in events] == ["ready", "phase", "phase", "phase", "change", "exit"]
    assert [event["phase"] for event in events if event["event"] == "phase"] == ["plan", "fork", "first-step"]
