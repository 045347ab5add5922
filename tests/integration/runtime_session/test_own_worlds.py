"""Replicas under real agents: their worker processes are a world of their own, which lasts over plans, and they start
and end together."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.contract import ReplicaValue

from hack.support import eventually
from tests.integration.runtime_session import own_world_script
from tests.integration.runtime_session.session_job import START, SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@dataclasses.dataclass(frozen=True)
class Process:
    """What the newest worker process of a member has noted."""

    pid: int
    world: dict[str, str]
    round: int
    replicas: dict[str, Any] | None
    """Of the newest plan."""


class ReplicaJob(SessionJob):
    def process(self, member: str, local_rank: int = 0) -> Process:
        path = self.directory / f"{member}-{local_rank}.jsonl"
        assert path.exists(), f"{member} has not started"
        lines = path.read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        own = [note for note in notes if note["pid"] == notes[-1]["pid"]]
        plan: dict[str, Any] = next((item for item in reversed(own) if "round" in item), {"round": 0, "replicas": None})
        return Process(own[0]["pid"], own[0].get("world", {}), plan["round"], plan["replicas"])

    def replica(self, member: str) -> ReplicaValue:
        kv = self.client.get(self.keys.replica(member))
        assert kv is not None
        return ReplicaValue.from_json(kv.value)

    def wait(self, count: int, *members: str, local_ranks: int = 1) -> list[Process]:
        """These members' worker processes are in the newest plan, of `count` replicas."""

        def trains() -> list[Process]:
            plan = self.plan
            assert plan is not None
            found = [self.process(name, rank) for name in members for rank in range(local_ranks)]
            assert [item.round for item in found] == [plan.round] * len(found)
            assert all(item.replicas and item.replicas["count"] == count for item in found)
            return found

        return eventually(trains, START, what=lambda: f"{count} replicas; logs:\n{self.logs}")

    def finish(self) -> None:
        (self.directory / "finish").touch()


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[ReplicaJob]:
    job = ReplicaJob(
        etcd, tmp_path, script=pathlib.Path(own_world_script.__file__), environment={"FINISH": str(tmp_path / "finish")}
    )
    yield job
    job.close()


def test_a_member_with_two_processes_is_a_replica_that_starts_again_alone(job: ReplicaJob) -> None:
    for name in "ab":
        job.start(name, "--replica-size=1", "--nproc-per-node=2", nnodes="1:2")
    before = job.wait(2, "a", "b", local_ranks=2)
    assert [(item.world["RANK"], item.world["WORLD_SIZE"], item.world["GROUP_RANK"]) for item in before] == [
        ("0", "2", "0"), ("1", "2", "0"), ("0", "2", "0"), ("1", "2", "0"),
    ]  # fmt: skip
    assert [item.world["ELASTICJOB_REPLICA"] for item in before] == ["0", "0", "1", "1"]
    assert sorted(item.replicas["place"] for item in before if item.replicas) == [0, 0, 1, 1]

    os.kill(before[3].pid, signal.SIGKILL)
    job.wait(1, "a", local_ranks=2)
    after = job.wait(2, "a", "b", local_ranks=2)
    assert [item.pid for item in after[:2]] == [item.pid for item in before[:2]], "the other replica went on"
    assert not {item.pid for item in after[2:]} & {item.pid for item in before[2:]}, "its own started again as a whole"
    assert [item.world["ELASTICJOB_REPLICA"] for item in after] == ["0", "0", "1", "1"]
    job.finish()
    assert [agent.exit_code() for agent in job.agents] == [0, 0], job.logs


def test_members_of_a_replica_are_put_together_anew_when_one_is_lost(job: ReplicaJob) -> None:
    agents = {name: job.start(name, "--replica-size=2", nnodes="2:4") for name in "abcd"}
    before = {name: item.pid for name, item in zip("abcd", job.wait(2, *"abcd"), strict=True)}
    lost = "d" if job.replica("a").index == 0 else "b"  # not of the planner's replica
    (partner,) = set(job.replica(lost).members) - {lost}
    others = sorted({*"abcd"} - {lost, partner})
    agents[lost].process.kill()
    assert [item.pid for item in job.wait(1, *others)] == [before[name] for name in others]

    job.start("e", "--replica-size=2", nnodes="2:4")
    after = dict(zip((*others, partner, "e"), job.wait(2, *others, partner, "e"), strict=True))
    assert [after[name].pid for name in others] == [before[name] for name in others]
    assert after[partner].pid != before[partner]
    assert {*job.replica("e").members} == {partner, "e"}
    job.finish()
    assert [agent.exit_code() for agent in job.agents if agent.name != lost] == [0, 0, 0, 0], job.logs
