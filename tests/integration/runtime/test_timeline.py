"""What --events and --metrics-port tell of every kind of change, with real agents on a real etcd."""

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

from hack.cluster.processes import free_ports
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
    """The summary of its change of this cause, once it is over."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [one for one in changes(agent) if one["cause"] == cause]
        return bool(found)

    eventually(there, what=f"a change because of {cause}; {agent.name} told of {changes(agent)}")
    return found[0]


def known(summary: Mapping[str, Any]) -> set[str]:
    return {name for name, figures in summary["phases"].items() if figures is not None}


def named(job: Job, names: str, **settings: Any) -> dict[str, Agent]:
    return {agent.name: agent for agent in job.start_all(names, **settings)}


@pytest.mark.torch
def test_every_phase_of_a_failed_worker_is_told(job: Job) -> None:
    script = job.directory / "training.py"
    script.write_text(TRAINING)
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    flags = ("--max-restarts", "2", "--start-method", "zygote", "--preload", "json")
    agents = job.start_all("a b", *flags, nnodes="2", script=[str(script), str(job.directory)], environment=environment)
    pid = job.directory / "pid-1-1"
    eventually(pid.exists, 120.0, what=f"training; logs:\n{job.logs}")
    eventually((job.directory / "checkpoints").exists, 60.0, what="a checkpoint")
    start = change(agents[0], "Start")
    assert known(start) >= {"plan", "fork", "connect", "first-step"}
    os.kill(int(pid.read_text()), signal.SIGKILL)
    for agent in agents:
        summary = change(agent, "WorkerFailed")
        assert known(summary) == {"detect", "stop", "plan", "fork", "connect", "restore", "first-step"}, summary
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
    assert len(lost) == 1, "only the agent of rank 0 is told steps"
    (job.directory / "finish").touch()
    assert [agent.ends(60) for agent in agents] == [0, 0], job.logs


def test_a_failure_is_told_with_its_traceback_by_its_member_and_for_the_job(job: Job) -> None:
    agents = named(job, "a b", nnodes="2")
    before = job.trains(2)
    job.tell("b", "raise")
    assert [agent.ends() for agent in agents.values()] == [ExitCode.WORKERS_FAILED] * 2
    rank = next(worker.rank for worker in before if worker.member == "b")
    own = [event for event in agents["b"].events if event["event"] == "failure" and event["scope"] == "member"]
    of_job = [[e for e in agent.events if e["event"] == "failure" and e["scope"] == "job"] for agent in agents.values()]
    for failure in (own[0], of_job[0][-1], of_job[1][-1]):
        assert (failure["failed_member"], failure["rank"], failure["local_rank"], failure["round"]) == ("b", rank, 0, 1)
        assert (failure["exit_code"], failure["signal"]) == (1, None)
        assert "RuntimeError: told to fail" in failure["traceback"]
        assert failure["host"]
    assert agents["a"].events[-1]["event"] == "exit"
    assert agents["a"].events[-1]["code"] == ExitCode.WORKERS_FAILED


def test_a_killed_agent_is_a_lost_member(job: Job) -> None:
    agents = named(job, "a b c", conf=LONG_LEASE)
    before = job.trains(3)
    agents[before[1].member].signal(signal.SIGKILL)
    job.trains(2, after=before)
    for name in (before[0].member, before[2].member):
        assert known(change(agents[name], "MemberLost")) == {"detect", "stop", "plan", "fork", "first-step"}


def test_a_frozen_agent_is_a_silent_member_since_its_last_beat(job: Job) -> None:
    agents = named(job, "a b c")
    before = job.trains(3)
    agents[before[2].member].signal(signal.SIGSTOP)
    job.trains(2, after=before)
    summary = change(agents[before[0].member], "MemberSilent")
    assert summary["phases"]["detect"]["seconds"] >= 0.75, "a second of silence, counted from the last beat"


def test_who_leaves_and_who_joins(job: Job) -> None:
    agents = named(job, "a b c")
    before = job.trains(3)
    agents[before[2].member].signal(signal.SIGTERM)
    after = job.trains(2, after=before)
    survivor = agents[before[0].member]
    assert "detect" in known(change(survivor, "MemberLeft"))
    assert agents[before[2].member].ends() == ExitCode.TERMINATED
    left = change(agents[before[2].member], "MemberLeft")
    assert known(left) - {"plan"} == {"detect", "stop"}, "it may see the others' plan before its worker has saved"
    assert left["phases"]["stop"]["seconds"] > 0, "its worker takes a moment to save"
    newcomer = job.start("d")
    job.trains(3, after=after)
    joined = change(survivor, "MemberJoined")
    assert known(joined) == {"detect", "stop", "plan", "fork", "first-step"}
    job.finish()
    assert newcomer.ends() == 0
    assert "stop" not in known(change(newcomer, "MemberJoined"))


def test_a_resize_is_told_from_when_it_was_seen(job: Job) -> None:
    agents = named(job, "a b c")
    before = job.trains(3)
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2).to_json())
    job.trains(2, after=before)
    summary = change(agents[before[0].member], "Resized")
    assert summary["caused_at"] is None
    assert known(summary) == {"stop", "plan", "fork", "first-step"}


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_metrics_are_served(job: Job, by: str) -> None:
    (port,) = free_ports(1)
    flags = ("--metrics-port", str(port)) if by == "flag" else ()
    environment = {Env.METRICS_PORT: str(port)} if by == "variable" else {}
    agent = job.start("a", "--max-restarts", "1", *flags, nnodes="1", environment=environment)
    before = job.trains(1)

    def read() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
            }

    os.kill(before[0].pid, signal.SIGKILL)
    job.trains(1, after=before)
    name = "elasticjob_agent_"
    eventually(
        lambda: (f"{name}phase_seconds_count", "WorkerFailed", "first-step") in read(),
        what=f"the change is counted: {read()}",
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
    assert agent.ends() == 0


def test_a_store_that_is_away_shows_in_events_and_metrics(job: Job) -> None:
    (nobody,) = free_ports(1)
    agent = job.start("a", nnodes="1", endpoint=f"127.0.0.1:{nobody}", conf=f"{QUICK},join_timeout=2,read_timeout=1")
    assert agent.ends() == ExitCode.UNAVAILABLE
    down = [event for event in agent.events if event["event"] == "store"]
    assert down
    assert down[0]["up"] is False
