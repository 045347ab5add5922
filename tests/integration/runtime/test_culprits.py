"""Each way in which one rank keeps the others from taking a step: real agents, and real torch over gloo.

The script reports nothing. Rank 1 is the bad one, in one way after the other: after each restart in the next one. The
promise is that it is named, and not one of those that wait for it or end before it.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode, HangValue

from hack.support import eventually
from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import QUICK, SOURCE, Agent, Job
from tests.integration.runtime.own_network import OwnNetwork

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = """
import ctypes, itertools, os, pathlib, signal, sys, threading, time
import torch, torch.distributed as dist

ways, here = sys.argv[1].split(","), pathlib.Path(sys.argv[2])
restarts, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
how = ways[restarts] if restarts < len(ways) else ""
bad = how and rank == 1

class Samples:
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        if how == "loader" and bad and index > 60:
            time.sleep(1000)
        return torch.ones(4)

def hang():
    lock = threading.Lock()
    if how == "lock":
        lock.acquire(), lock.acquire()
    elif how == "gil":
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):  # a sleep would end with the signal that asks for a stack
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    elif how == "spin":
        while not (here / "released").exists():
            pass
    elif how == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(1000)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "exits":
        os._exit(0)
    elif how == "frozen":
        (here / "disk" / "file").write_text("x" * 100_000)
    elif how in ("sleep", "evaluation"):
        time.sleep(1000)
    elif how == "pause":
        while not (here / "released").exists():
            time.sleep(4)

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(Samples(), 4, num_workers=1) if how == "loader" else None
steps = 1000 if how == "network" else 16
for step, batch in zip(range(steps), itertools.repeat(torch.ones(4, 4)) if loader is None else loader):
    if step == 12 and how:
        if bad:
            hang()
        if how == "sizes":
            dist.all_reduce(torch.ones(5 if bad else 7))
        elif how == "order":
            calls = [lambda: dist.all_reduce(torch.ones(8)), lambda: dist.broadcast(torch.ones(8), 0)]
            for call in calls[::-1] if bad else calls:
                call()
        elif how == "network":
            (here / "trains").touch()
        elif how == "skipped" and not bad:
            dist.all_reduce(torch.ones(3))
        elif how == "evaluation":
            dist.barrier()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.2 if how else 0)
dist.barrier()
"""


@dataclasses.dataclass(frozen=True)
class Case:
    reasons: tuple[str, ...] = ("Hang",)
    text: str = "rank 1 is in hang (hanging.py:"


SLEEPS = Case()
DIFFERS = Case(("Hang", "CollectiveMismatch"), "differs between ranks: rank 1 calls ")
CASES = {
    "sleep": SLEEPS,
    "lock": SLEEPS,
    "gil": SLEEPS,
    "blocked": SLEEPS,
    "evaluation": Case(text="while ranks 0, 2, 3 wait in barrier"),
    "loader": Case(text="rank 1 is in <module> (hanging.py:"),
    "stopped": Case(("Stopped",), "stopped by SIGSTOP"),
    "exits": Case(("PeerLost",), "rank 1 exited with code 0 while the others train"),
    "sizes": DIFFERS,
    "order": DIFFERS,
    "skipped": DIFFERS,
}
IN_EVERY_RUN = ("blocked", "gil", "loader", "exits", "skipped")
"""The others repeat these in another way, or two members have them (sizes)."""


def start(job: Job, how: str, name: str = "a", members: int = 1, *flags: str, world: int = 4, **options: Any) -> Agent:
    script = job.directory / "hanging.py"
    script.write_text(SCRIPT)
    return job.start(
        name, "--nproc-per-node", str(world // members), "--hang-factor", "2", "--max-restarts", "9",
        "--start-method", "zygote", *flags, nnodes=str(members), conf=f"{QUICK},hang_min=2",
        script=[str(script), how, str(job.directory)], **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ways", "method"),
    [
        pytest.param(IN_EVERY_RUN, "zygote", id="in every run"),
        pytest.param(
            [way for way in CASES if way not in IN_EVERY_RUN], "zygote", id="others", marks=pytest.mark.nightly
        ),
        pytest.param(["sleep"], "spawn", id="spawned", marks=pytest.mark.nightly),
    ],
)
def test_the_rank_that_keeps_the_others_waiting_is_named(job: Job, ways: Sequence[str], method: str) -> None:
    agent = start(job, ",".join(ways), "a", 1, "--start-method", method)
    assert agent.exit_code(220) == ExitCode.SUCCEEDED, agent.output
    failures = [event for event in agent.events if event["event"] == "failure" and event["scope"] == "member"]
    for way, failure in zip(ways, failures, strict=True):
        case = CASES[way]
        assert (failure["rank"], failure["reason"] in case.reasons) == (1, True), failure
        assert case.text in failure["message"], failure
        assert case is not SLEEPS or failure["traceback"].startswith("Stacks of rank 1:\n"), failure


@pytest.mark.parametrize("how", ["sizes", pytest.param("blocked", marks=pytest.mark.nightly)])
def test_members_tell_each_other_what_they_see(job: Job, how: str) -> None:
    """Alone, none of them could say which of two ranks is to blame, or whether others wait."""
    agents = [start(job, how, name, members=2) for name in "ab"]
    assert [agent.exit_code() for agent in agents] == [ExitCode.SUCCEEDED] * 2, job.logs
    failures = [event for agent in agents for event in agent.events if event["event"] == "failure"]
    assert {failure["rank"] for failure in failures} == {1}, job.logs
    assert CASES[how].text in failures[0]["message"], failures


def test_a_rank_in_an_endless_loop_is_named_and_not_killed(job: Job) -> None:
    """It may be evaluating, or computing something else that others must wait for. Its stack is written on request, and
    it goes on."""
    agent = start(job, "spin")
    eventually(lambda: "which rank 1 has not begun" in agent.output, 120, what=lambda: f"it is named: {agent.output}")
    stacks = [sys.executable, "-m", "elasticjob_runtime.agent.stacks"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    shown = subprocess.run(stacks, env=environment, capture_output=True, check=False, text=True)
    of_rank_1 = shown.stdout.partition("Stacks of local rank 1")[2].partition("Stacks of local rank 2")[0]
    assert "in hang" in of_rank_1, shown
    assert "not restarting" in agent.output
    (job.directory / "released").touch()
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    assert [event for event in agent.events if event["event"] == "failure"] == []
    hang = next(event for event in agent.events if event["event"] == "hang")
    assert (hang["ranks"], hang["restarts"]) == ([1], False)


def test_a_hang_that_is_only_reported_is_told_until_the_next_step(job: Job) -> None:
    agents = [start(job, "pause", name, 2, "--hang-action", "report", world=2) for name in "ab"]

    def told() -> list[HangValue]:
        found = [job.client.get(job.keys.hang(name)) for name in "ab"]
        return [HangValue.from_json(kv.value) for kv in found if kv is not None]

    eventually(lambda: len(told()) == 2, 120, what=lambda: f"both tell what they see: {job.logs}")
    other, culprit = sorted(told(), key=lambda hang: hang.ranks)
    assert (culprit.ranks, culprit.certain, culprit.reports_only) == ((1,), True, True)
    assert SLEEPS.text in culprit.why
    assert (other.ranks, other.waits_in, other.certain) == ((), "all_reduce", False)
    (job.directory / "released").touch()
    eventually(lambda: not told(), 60, what=lambda: f"the hang is over: {job.logs}")
    assert [agent.exit_code() for agent in agents] == [ExitCode.SUCCEEDED] * 2, job.logs


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def frozen_disk(job: Job) -> Iterator[pathlib.Path]:
    """A file system on which a write waits until the end of the test. Skips where none can be mounted."""
    disk, image = job.directory / "disk", job.directory / "disk.img"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount and freeze a file system")
    try:
        run("truncate", "-s", "16M", str(image))
        run("mkfs.ext4", "-q", str(image))
        run("mount", "-o", "loop", str(image), str(disk))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a file system of its own: {error}")
    try:
        run("fsfreeze", "-f", str(disk))
        yield disk
    finally:
        thaw(disk)
        eventually(lambda: not disk.is_mount() or subprocess.call(["umount", str(disk)]) == 0, what="it is unmounted")


def thaw(disk: pathlib.Path) -> None:
    subprocess.run(["fsfreeze", "-u", str(disk)], check=False, capture_output=True)


@pytest.mark.root
@pytest.mark.nightly
def test_a_rank_that_waits_for_a_disk_is_named_and_not_killed(job: Job, frozen_disk: pathlib.Path) -> None:
    """Nothing could kill it."""
    agent = start(job, "frozen")
    eventually(lambda: "rank 1 waits in the kernel" in agent.output, 120, what=lambda: f"it is named: {agent.output}")
    thaw(frozen_disk)
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    assert [event for event in agent.events if event["event"] == "failure"] == []


@pytest.fixture
def dropped(job: Job, own_network: OwnNetwork) -> Iterator[tuple[Callable[[str], None], list[Agent]]]:
    """Two members, one of them in a network of its own, and what drops ("--append") everything that the first one sends
    to the second one, or no longer ("--delete"). Both reach etcd."""
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]), own_network.host)
    try:
        reaches: dict[str, Any] = {"endpoint": f"{own_network.host}:{proxy.port}"}
        where = [(own_network.host, own_network.device, ()), (own_network.address, "eth0", own_network.within)]
        agents = [
            start(
                job, "network", name, 2, "--nproc-per-node", "1", "--local-addr", address,
                environment={"GLOO_SOCKET_IFNAME": device}, within=within, **reaches,
            )
            for name, (address, device, within) in zip("ab", where, strict=True)
        ]  # fmt: skip
        enter = shlex.join(own_network.within)
        rule = f"INPUT --source {own_network.host} --protocol tcp ! --sport {proxy.port} --jump DROP"
        yield lambda change: own_network.run(f"{enter} iptables --wait 5 {change} {rule}"), agents
    finally:
        proxy.close()


@pytest.mark.nightly
def test_both_ends_of_a_connection_that_drops_packets_are_named(
    job: Job, dropped: tuple[Callable[[str], None], list[Agent]]
) -> None:
    drop, agents = dropped
    eventually((job.directory / "trains").exists, 120, what=lambda: f"it trains: {job.logs}")
    drop("--append")
    for agent in agents:
        eventually(lambda agent=agent: "is not acknowledged, from 10." in agent.output, 120, what=lambda: job.logs)  # type: ignore[misc]
    drop("--delete")
    assert [agent.exit_code() for agent in agents] == [ExitCode.SUCCEEDED] * 2, job.logs
