"""What --events and --metrics-port report about every kind of change: real agents on a real etcd."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from elasticjob_runtime.contract import Env, ExitCode, SpecValue
from prometheus_client.parser import text_string_to_metric_families

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.integration.runtime.agents import QUICK, Agent, Job

TRAINING = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from elasticjob_runtime.training import load_checkpoint, report_progress, save_checkpoint

dist.init_process_group("gloo")
network = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
here = pathlib.Path(sys.argv[1])
found = load_checkpoint(here / "checkpoints")
step = found["step"] if found else 0
(here / f"pid-{os.environ['ELASTICJOB_ROUND']}-{dist.get_rank()}").write_text(str(os.getpid()))
while not (here / "finish").exists():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if dist.get_rank() == 0:
        save_checkpoint(here / "checkpoints", {"step": step})
        report_progress(step)
    time.sleep(0.05)
    stop = torch.tensor([float((here / "finish").exists())])
    dist.all_reduce(stop)
    if stop.item():
        break
"""

LONG_LEASE = "start_grace=0.5,join_delay=0.1,lease_ttl=60"


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


def timed_phases(summary: Mapping[str, Any]) -> set[str]:
    return {name for name, figures in summary["phases"].items() if figures is not None}


def start_named(job: Job, names: str, **settings: Any) -> dict[str, Agent]:
    return {agent.name: agent for agent in job.start_all(names, **settings)}


@pytest.mark.nightly
@pytest.mark.torch
def test_a_worker_failure_reports_every_phase_of_the_recovery(job: Job) -> None:
    script = job.directory / "training.py"
    script.write_text(TRAINING)
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    flags = ("--max-restarts", "2", "--start-method", "zygote", "--preload", "json")
    agents = job.start_all("a b", *flags, nnodes="2", script=[str(script), str(job.directory)], environment=environment)
    pid = job.directory / "pid-1-1"
    eventually(pid.exists, 120.0, what=f"worker processes train; logs:\n{job.logs}")
    eventually((job.directory / "checkpoints").exists, 60.0, what="a checkpoint is saved")
    start = change(agents[0], "Start")
    assert timed_phases(start) >= {"plan", "fork", "connect", "first-step"}
    os.kill(int(pid.read_text()), signal.SIGKILL)
    for agent in agents:
        summary = change(agent, "WorkerFailed")
        assert timed_phases(summary) == {"detect", "stop", "plan", "fork", "connect", "restore", "first-step"}, summary
        order = [
            summary["phases"][name]["since"] for name in ("detect", "plan", "fork", "connect", "restore", "first-step")
        ]
        assert order == sorted(order)
        assert summary["round"] == 2
    lost = [
        summary["steps_lost"]
        for agent in agents
        if (summary := change(agent, "WorkerFailed"))["steps_lost"] is not None
    ]
    assert len(lost) == 1, "only the agent of rank 0 knows the steps"
    (job.directory / "finish").touch()
    assert [agent.exit_code(60) for agent in agents] == [0, 0], job.logs


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


def test_a_killed_agent_is_reported_as_a_lost_member(job: Job) -> None:
    agents = start_named(job, "a b c", conf=LONG_LEASE)
    before = job.wait_for_training(3)
    agents[before[1].member].signal(signal.SIGKILL)
    job.wait_for_training(2, after=before)
    for name in (before[0].member, before[2].member):
        assert timed_phases(change(agents[name], "MemberLost")) == {"detect", "stop", "plan", "fork", "first-step"}


def test_a_frozen_agent_is_reported_as_silent_since_its_last_heartbeat(job: Job) -> None:
    agents = start_named(job, "a b c")
    before = job.wait_for_training(3)
    agents[before[2].member].signal(signal.SIGSTOP)
    job.wait_for_training(2, after=before)
    summary = change(agents[before[0].member], "MemberSilent")
    assert summary["phases"]["detect"]["seconds"] >= 0.75, "a second of silence, counted from the last heartbeat"


def test_leaving_and_joining_members_are_reported(job: Job) -> None:
    agents = start_named(job, "a b c")
    before = job.wait_for_training(3)
    agents[before[2].member].signal(signal.SIGTERM)
    after = job.wait_for_training(2, after=before)
    survivor = agents[before[0].member]
    assert "detect" in timed_phases(change(survivor, "MemberLeft"))
    assert agents[before[2].member].exit_code() == ExitCode.TERMINATED
    left = change(agents[before[2].member], "MemberLeft")
    assert timed_phases(left) - {"plan"} == {"detect", "stop"}, (
        "it may see the others' plan before its worker process has saved"
    )
    assert left["phases"]["stop"]["seconds"] > 0, "its worker process takes a moment to save"
    joiner = job.start("d")
    job.wait_for_training(3, after=after)
    joined = change(survivor, "MemberJoined")
    assert timed_phases(joined) == {"detect", "stop", "plan", "fork", "first-step"}
    job.finish()
    assert joiner.exit_code() == 0
    assert "stop" not in timed_phases(change(joiner, "MemberJoined"))


def test_a_resize_is_timed_from_when_it_is_observed(job: Job) -> None:
    agents = start_named(job, "a b c")
    before = job.wait_for_training(3)
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2).to_json())
    job.wait_for_training(2, after=before)
    summary = change(agents[before[0].member], "Resized")
    assert summary["caused_at"] is None
    assert timed_phases(summary) == {"stop", "plan", "fork", "first-step"}


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_metrics_are_served(job: Job, by: str) -> None:
    (port,) = free_ports(1)
    flags = ("--metrics-port", str(port)) if by == "flag" else ()
    environment = {Env.METRICS_PORT: str(port)} if by == "variable" else {}
    agent = job.start("a", "--max-restarts", "1", *flags, nnodes="1", environment=environment)
    before = job.wait_for_training(1)

    def read() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
            }

    os.kill(before[0].pid, signal.SIGKILL)
    job.wait_for_training(1, after=before)
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
