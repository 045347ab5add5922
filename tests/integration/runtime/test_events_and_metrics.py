"""What --events and --metrics-port report about every kind of change: real agents on a real etcd."""

from __future__ import annotations

import os
import signal
import urllib.request
from typing import Any

from elasticjob_runtime.contract import Env, ExitCode
from prometheus_client.parser import text_string_to_metric_families

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.integration.runtime.agents import QUICK, Agent, Job


def changes(agent: Agent) -> list[dict[str, Any]]:
    return [event for event in agent.events if event["event"] == "change"]


def change(agent: Agent, cause: str) -> dict[str, Any]:
    """The agent's summary of its change with this cause, once that is over."""
    found: list[dict[str, Any]] = []

    def summarised() -> bool:
        found[:] = [one for one in changes(agent) if one["cause"] == cause]
        return bool(found)

    eventually(summarised, what=f"a change because of {cause}; {agent.name} reported {changes(agent)}")
    return found[0]


def start_named(job: Job, names: str, **settings: Any) -> dict[str, Agent]:
    return {agent.name: agent for agent in job.start_all(names, **settings)}


def test_a_failure_is_reported_with_its_traceback_for_the_member_and_for_the_job(job: Job) -> None:
    agents = start_named(job, "a b", nnodes="2")
    before = job.wait_for_training(2)
    job.command("b", "raise")
    assert [agent.exit_code() for agent in agents.values()] == [ExitCode.WORKERS_FAILED] * 2
    rank = next(worker.rank for worker in before if worker.member == "b")
    own = [event for event in agents["b"].events if event["event"] == "failure" and event["scope"] == "member"]
    of_job = [[e for e in agent.events if e["event"] == "failure" and e["scope"] == "job"] for agent in agents.values()]
    for failure in (own[0], of_job[0][-1], of_job[1][-1]):
        assert (failure["failed_member"], failure["rank"], failure["local_rank"], failure["round"]) == ("b", rank, 0, 1)
        assert (failure["exit_code"], failure["signal"]) == (1, None)
        assert "RuntimeError: failed on command" in failure["traceback"]
        assert failure["host"]
    assert agents["a"].events[-1]["event"] == "exit"
    assert agents["a"].events[-1]["code"] == ExitCode.WORKERS_FAILED


def test_metrics_are_served(job: Job) -> None:
    (port,) = free_ports(1)
    agent = job.start("a", "--max-restarts", "1", nnodes="1", environment={Env.METRICS_PORT: str(port)})
    before = job.wait_for_training(1)

    def read() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
            }

    os.kill(before[0].pid, signal.SIGKILL)
    job.wait_for_training(1, after=before)
    assert job.plan is not None
    assert "SIGKILL" in job.plan.message
    name = "elasticjob_agent_"
    eventually(
        lambda: (f"{name}phase_seconds_count", "WorkerFailed", "first-step") in read(),
        what="the change is counted",
    )
    found = read()
    assert found[f"{name}round",] == 2
    assert found[f"{name}world_size",] == 1
    assert found[f"{name}rank",] == 0
    assert found[f"{name}state", "training"] == 1
    assert found[f"{name}restarts_total", "WorkerFailed"] == 1
    assert found[f"{name}step",] >= 1
    assert found[f"{name}store_up",] == 1
    job.finish()
    assert agent.exit_code() == 0


def test_an_unreachable_etcd_is_reported_in_the_event_log(job: Job) -> None:
    (unused,) = free_ports(1)
    agent = job.start("a", nnodes="1", endpoint=f"127.0.0.1:{unused}", conf=f"{QUICK},join_timeout=2,read_timeout=1")
    assert agent.exit_code() == ExitCode.UNAVAILABLE
    down = [event for event in agent.events if event["event"] == "store"]
    assert down
    assert down[0]["up"] is False
