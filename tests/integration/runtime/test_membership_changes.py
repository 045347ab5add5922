"""Members join, leave, crash, freeze and wait as spares: real agents on a real etcd."""

from __future__ import annotations

import os
import signal

from elasticjob_runtime.contract import ExitCode, OutcomeState, PlanReason

from hack.support import eventually
from tests.integration.runtime.agents import Job, is_alive


def test_every_agent_exits_0_when_the_job_succeeds_and_one_that_starts_later_says_what_to_do(job: Job) -> None:
    agents = job.start_all("a b c")
    workers = job.wait_for_training(3)
    assert sorted(worker.member for worker in workers) == ["a", "b", "c"]
    job.finish()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0], job.logs
    outcome = job.outcome
    assert outcome is not None
    assert (outcome.state, outcome.round) == (OutcomeState.SUCCEEDED, workers[0].round)
    assert job.members == {}, "an agent left its key behind"
    assert not any(is_alive(pid) for worker in workers for pid in [worker.pid, *worker.children])

    late = job.start("d")
    assert late.exit_code() == ExitCode.SUCCEEDED
    assert "the job succeeded before this agent joined; use another --rdzv-id to run it again" in late.output
    assert job.members == {}


def test_a_crashed_worker_process_costs_the_group_one_restart(job: Job) -> None:
    job.start_all("a b c", "--max-restarts", "2", nnodes="3")
    before = job.wait_for_training(3)
    job.command("b", "raise")
    after = job.wait_for_training(3, after=before)
    assert [worker.member for worker in after] == [worker.member for worker in before], "ranks are stable"
    assert {worker.restarts for worker in after} == {1}
    plan = job.plan
    assert plan is not None
    assert (plan.reason, plan.restart_count) == (PlanReason.WORKER_FAILED, 1)
    eventually(
        lambda: not any(is_alive(pid) for worker in before for pid in [worker.pid, *worker.children]),
        what="the old worker processes end",
    )


def test_the_others_continue_at_once_after_an_agent_and_its_processes_are_killed(job: Job) -> None:
    # The lease lasts a minute: only a probe of the agent itself finds out sooner.
    agents = {agent.name: agent for agent in job.start_all("a b c", conf="start_grace=0.5,join_delay=0.1,lease_ttl=60")}
    before = job.wait_for_training(3)
    lost = before[1]
    agents[lost.member].signal(signal.SIGKILL)
    after = job.wait_for_training(2, after=before)
    assert [worker.member for worker in after] == [before[0].member, before[2].member]
    assert {worker.restarts for worker in after} == {0}, "a lost member costs no restart"
    assert lost.member in job.members, "the lease cannot have expired yet"
    eventually(
        lambda: not any(is_alive(pid) for pid in [lost.pid, *lost.children]),
        what="its worker process and its children end",
    )


def test_sigterm_gives_a_worker_process_time_to_save_while_the_others_continue(job: Job) -> None:
    agents = {agent.name: agent for agent in job.start_all("a b c")}
    before = job.wait_for_training(3)
    leaving = before[-1].member
    agents[leaving].signal(signal.SIGTERM)
    assert agents[leaving].exit_code() == ExitCode.TERMINATED
    assert (job.directory / f"saved-{leaving}-{before[-1].round}").exists(), "the worker process got no time to save"
    after = job.wait_for_training(2, after=before)
    assert {worker.restarts for worker in after} == {0}
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LEFT


def test_a_hanging_worker_process_does_not_hold_up_a_new_round(job: Job) -> None:
    job.start_all("a b")
    before = job.wait_for_training(2)
    job.command("a", "hang")
    hanging = next(worker for worker in before if worker.member == "a")
    eventually(lambda: not (job.directory / "commands" / "a").exists(), what="the worker process hangs")
    job.start("c")
    job.wait_for_training(3, after=before)
    assert not is_alive(hanging.pid)


def test_one_failed_process_restarts_every_process_of_the_group(job: Job) -> None:
    job.start_all("a b", "--nproc-per-node", "2", "--max-restarts", "3", nnodes="2")
    before = job.wait_for_training(2)
    assert [worker.rank for worker in before] == [0, 1, 2, 3]
    os.kill(before[3].pid, signal.SIGKILL)
    after = job.wait_for_training(2, after=before)
    assert {worker.restarts for worker in after} == {1}
    eventually(
        lambda: not any(is_alive(pid) for worker in before for pid in [worker.pid, *worker.children]),
        what="the old worker processes end with what they started",
    )


def test_a_job_resumes_after_all_its_agents_are_killed(job: Job) -> None:
    agents = job.start_all("a b", nnodes="2")
    before = job.wait_for_training(2)
    for agent in agents:
        agent.signal(signal.SIGKILL)
    job.start_all("a b", nnodes="2")
    job.wait_for_training(2, after=before)
