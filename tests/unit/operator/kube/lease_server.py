"""Replicas of the operator in one process and in virtual time: the real `ShardLeases`, and a server of Leases."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import selectors
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest
from elasticjob_operator.kube import shard_leases as module
from elasticjob_operator.kube.client import ConflictError, NotFoundError, RejectedError
from elasticjob_operator.kube.shard_leases import LeaseTerms, ShardLeases, writing_about
from elasticjob_operator.names import NamespacedName

TERMS = LeaseTerms(duration=4)
JOBS = [("team", f"job-{number}") for number in range(16)]
STEP = 0.05
"""How often it is checked who leads, s."""


class _Virtual(selectors.DefaultSelector):
    """Where nothing is ready, time passes at once."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found: list[Any] = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


def in_virtual_time(work: Coroutine[Any, Any, None], patch: pytest.MonkeyPatch) -> None:
    selector = _Virtual()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    patch.setattr(module, "clock", lambda: selector.now)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work)


def _copied(value: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = orjson.loads(orjson.dumps(value))
    return copy


class Server:
    """Leases of one namespace, with resourceVersions that are checked."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.requests = 0
        self.rejects = False
        """All writes, as a webhook may."""

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        self.requests += 1
        if body is not None and (self.rejects or body["spec"]["leaseTransitions"] >= 2**31):
            raise RejectedError(422, "Invalid", "")
        name = path.partition("/leases")[2].strip("/")
        if method == "GET" and not name:
            return {"items": [_copied(lease) for lease in self.leases.values()]}
        if method == "POST":
            assert body
            if body["metadata"]["name"] in self.leases:
                raise ConflictError(409, "AlreadyExists", "")
            return self.store(body)
        if name not in self.leases:
            raise NotFoundError(404, "NotFound", "")
        if method == "GET":
            return _copied(self.leases[name])
        assert body
        if body["metadata"]["resourceVersion"] != self.leases[name]["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "")
        return self.store(body)

    def store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body = {**_copied(body), "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.leases[body["metadata"]["name"]] = body
        return _copied(body)

    def edit(self, name: str, **spec: Any) -> None:
        """As `kubectl edit` does."""
        self.store({**self.leases[name], "spec": {**self.leases[name]["spec"], **spec}})


@dataclasses.dataclass
class Client:
    """Of one replica, with its own connection. Delays in s."""

    server: Server
    chance: random.Random
    slow: float = 0.02
    lost: float = 0.0
    """What part of the responses is lost."""
    cut_off: bool = False

    async def request(self, method: str, path: str, *, body: dict[str, Any] | None = None) -> dict[str, Any]:
        await asyncio.sleep(self.chance.uniform(0, self.slow))
        if self.cut_off:
            raise ConnectionError("cut off")
        found = self.server.answer(method, path, body)
        await asyncio.sleep(self.chance.uniform(0, self.slow))
        if self.cut_off or self.chance.random() < self.lost:
            raise ConnectionError("the response was lost")
        return found


class Replica:
    """One process."""

    def __init__(self, server: Server, name: str, count: int, chance: random.Random) -> None:
        self.name, self.client = name, Client(server, chance)
        self.leases = ShardLeases(self.client, "system", "op", name, TERMS, count)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.leases.run())

    def leads(self, job: NamespacedName) -> bool:
        if not self.leases.led:
            return False
        with writing_about(job):
            return self.leases.may_write()

    async def kill(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.leases._held.clear()

    async def stop(self) -> None:
        """As after SIGTERM."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.leases.release()


class Fleet:
    """Checks all the time that no job has two leaders."""

    def __init__(self, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        random.seed(seed)  # what ShardLeases spreads its load with
        self.server = Server()
        self.replicas: dict[str, Replica] = {}
        self.without: dict[NamespacedName, float] = {}
        """For how long each job has had no leader, s."""
        self.longest = 0.0

    def start(self, name: str, count: int) -> Replica:
        self.replicas[name] = Replica(self.server, name, count, self.chance)
        return self.replicas[name]

    async def end(self, name: str, *, kill: bool = False) -> None:
        replica = self.replicas.pop(name)
        await (replica.kill() if kill else replica.stop())

    def leaders(self, job: NamespacedName) -> list[str]:
        return [name for name, replica in self.replicas.items() if replica.leads(job)]

    def shares(self) -> list[int]:
        return sorted(len(replica.leases.led) for replica in self.replicas.values())

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(STEP)
            for replica in self.replicas.values():
                if replica.task.done():
                    replica.task.result()
            for job in JOBS:
                leaders = self.leaders(job)
                assert len(leaders) <= 1, f"{job} is led by {leaders} at {loop.time():.2f}"
                self.without[job] = 0.0 if leaders else self.without.get(job, 0.0) + STEP
            self.longest = max(self.longest, *self.without.values())

    async def settle(self, seconds: float = 30) -> None:
        await self.run(seconds)
        assert all(self.leaders(job) for job in JOBS), "a job has no leader"
        self.longest = 0.0
