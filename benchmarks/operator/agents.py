"""Agents of many jobs, played: the keys, bytes and times of real ones, from their registration on. Real ones also renew
their leases, which writes nothing, and each sends its own requests."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Iterable

from elasticjob_operator import names
from elasticjob_runtime.agent.progress import publish_pause
from elasticjob_runtime.contract import (
    DEFAULT_PREFIX,
    LEASE_TTL,
    Keys,
    LastJoinedValue,
    MemberState,
    MemberValue,
    Neighbour,
    PlanReason,
    PlanValue,
    ProgressValue,
    RankValue,
    TransitionValue,
)

from benchmarks.operator.fake_cluster import Json
from benchmarks.operator.seed import Etcd

TICK_SECONDS = 0.25
LAST_CALL_SECONDS = 1.0
"""How long a group that is not complete waits for others."""
STEPS_PER_SECOND = 3.1
LONG_AGO_SECONDS = 600.0
"""For how long jobs have trained that report every 10 s."""
Put = tuple[str, bytes]


@dataclasses.dataclass(slots=True)
class _Run:
    """Times are monotonic, s."""

    keys: Keys
    size: int
    present: dict[str, MemberValue] = dataclasses.field(default_factory=dict)
    lost_at: dict[str, float] = dataclasses.field(default_factory=dict)
    planned: tuple[str, ...] = ()
    changed_at: float = 0.0
    round: int = 0
    began: float = 0.0
    """When its worker processes were started."""
    due: float = 0.0
    told: bool = False
    """How the round began is written."""
    shown: dict[int, float] = dataclasses.field(default_factory=dict)
    """Steps, and when they were reported."""


class PlayedAgents:
    def __init__(self, etcd: Etcd, size: int) -> None:
        """`size`: worker pods of a job."""
        self._etcd, self._size = etcd, size
        self._runs: dict[str, _Run] = {}
        """By job."""
        self._puts: list[Put] = []

    def on_running(self, pod: Json) -> None:
        """The agent in this worker pod has started."""
        labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
        run_id = names.run_id(labels[names.LABEL_JOB_UID], int(labels[names.LABEL_RUN]))
        run = self._runs.setdefault(labels[names.LABEL_JOB], _Run(Keys(DEFAULT_PREFIX, run_id), self._size))
        member = MemberValue(
            address=str(pod["status"].get("podIP") or "10.0.0.1"),
            ports=[40001, 40002],
            nproc=1,
            incarnation=secrets.token_hex(8),
            state=MemberState.READY,
            peer_port=40003,
            stores=True,
            changed_at=time.time(),
        )
        run.present[name], run.changed_at = member, time.monotonic()
        text = member.to_json()
        self._put(run.keys.member(name), text)
        self._put(run.keys.last_joined, LastJoinedValue(member=name, value=text).to_json())

    def take_over(self, job: str, run_id: str, first_report_in: float) -> None:
        """A run whose agents have registered, have a plan and report every 10 s: from now on, they are played."""
        now, step = time.monotonic(), 1000
        run = _Run(Keys(DEFAULT_PREFIX, run_id), self._size, round=1, told=True, shown={step: now})
        run.planned = tuple(map(str, range(self._size)))
        run.began, run.due = now - LONG_AGO_SECONDS, now + first_report_in
        self._runs[job] = run

    def lose(self, pods: Iterable[Json]) -> None:
        """Their machines are cut off."""
        for pod in pods:
            run = self._runs[pod["metadata"]["labels"][names.LABEL_JOB]]
            run.lost_at[pod["metadata"]["name"]] = time.monotonic()

    def all_train(self, jobs: int) -> bool:
        runs = list(self._runs.values())
        whole = (run.told and len(run.planned) == run.size and not run.lost_at for run in runs)
        return len(runs) >= jobs and all(whole)

    def age(self, seconds: float) -> None:
        """As if all had trained for so much longer: they report less often."""
        for run in self._runs.values():
            run.began -= seconds

    def ages(self, steps: dict[str, int]) -> list[float]:
        """How long ago these steps were reported, s, sorted. `steps`: what is shown, by job."""
        now = time.monotonic()
        known = [(self._runs[name], step) for name, step in steps.items() if name in self._runs]
        return sorted(now - run.shown.get(step, min(run.shown.values(), default=now)) for run, step in known)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._etcd.write(self.due(time.monotonic()))
            await asyncio.sleep(TICK_SECONDS)

    def due(self, now: float) -> list[Put]:
        """What they write until then."""
        for run in list(self._runs.values()):
            self._play(run, now)
        puts, self._puts = dict(self._puts), []  # a transaction may write a key once
        return list(puts.items())

    def _put(self, key: str, text: str) -> None:
        self._puts.append((key, text.encode()))

    def _play(self, run: _Run, now: float) -> None:
        if not run.present and now < run.due:
            return  # taken over, so its agents only report: thousands are played on the machine that is measured
        for name, lost_at in list(run.lost_at.items()):
            if now >= lost_at + LEASE_TTL:
                del run.lost_at[name]
                run.present.pop(name, None)
                run.changed_at = lost_at
        members = tuple(name for name in run.planned if name in run.present)
        members += tuple(name for name in run.present if name not in members)
        complete = len(members) == run.size or now >= run.changed_at + LAST_CALL_SECONDS
        if members and members != run.planned and complete:
            self._plan(run, members, now)
        if run.planned and not run.lost_at and now >= run.due:
            self._report(run, now)

    def _plan(self, run: _Run, members: tuple[str, ...], now: float) -> None:
        lost = any(name not in members for name in run.planned)
        run.round, run.planned, run.began, run.due, run.told = run.round + 1, members, now, now + 1.0, False
        attempt = run.keys.attempt(run.round, members[0])
        for rank, name in enumerate(members):
            others = [members[(rank + ahead) % len(members)] for ahead in range(1, min(3, len(members)))]
            neighbours = tuple(
                Neighbour(name=other, incarnation=found.incarnation, address=found.address, peer_port=found.peer_port)
                for other in others
                if (found := run.present[other])
            )
            value = RankValue(
                group_rank=rank,
                incarnation=run.present[name].incarnation,
                joined=run.round,
                predecessor=members[rank - 1] if rank else "",
                neighbours=neighbours,
            )
            self._put(f"{run.keys.ranks}{attempt}/{name}", value.to_json())
        first = run.present[members[0]]
        plan = PlanValue(
            round=run.round,
            attempt=attempt,
            size=len(members),
            world_size=len(members),
            nproc=1,
            master_addr=first.address,
            master_port=first.ports[0],
            leader=members[0],
            restart_count=0,
            reason=PlanReason.START if run.round == 1 else PlanReason.MEMBER_LOST if lost else PlanReason.MEMBER_JOINED,
            agent_store=True,
            reports_steps=True,
            created_at=time.time(),
            caused_at=time.time() - (now - run.changed_at),
        )
        self._put(run.keys.plan, plan.to_json())

    def _report(self, run: _Run, now: float) -> None:
        step = 1 + max(run.shown, default=0) + int(STEPS_PER_SECOND * (now - max(run.shown.values(), default=now)))
        if not run.told:
            run.told = True
            phases = {"detect": 0.51, "plan": 0.24, "connect": 0.21, "form": 0.42, "first-step": 0.32}
            value = TransitionValue(round=run.round, seconds=1.7, phases=phases, step=step, steps_lost=0)
            self._put(run.keys.transition, value.to_json())
        progress = ProgressValue(
            step=step,
            round=run.round,
            steps_per_second=3.0971,
            last_checkpoint_step=step // 100 * 100,
            metrics={"loss": 2.5 / step, "learning_rate": 1.1e-5},
            updated_at=time.time(),
        )
        self._put(run.keys.progress, progress.to_json())
        run.shown[step], run.due = now, now + publish_pause(now - run.began)
