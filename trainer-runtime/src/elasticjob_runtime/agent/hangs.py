"""What the agent does when its worker processes take no step for long: it looks at them, says what it sees, and
restarts them if that helps."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.agent.evidence import Investigation, Suspect
from elasticjob_runtime.agent.evidence_exchange import EvidenceExchange, Exchange
from elasticjob_runtime.contract import HangValue
from elasticjob_runtime.membership.culprit import Culprit, RankEvidence, calls_of, find_culprit, main_stack
from elasticjob_runtime.membership.hang import Hang, HangLimits, is_certain, restarts
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.workers.failure import TRACEBACK_BYTES
from elasticjob_runtime.workers.group import WorkerGroup
from elasticjob_runtime.workers.state_machine import HANG

logger = logging.getLogger(__name__)

Step = tuple[int, float] | None
"""The last step that is known, and when it ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about a hang."""

    text: str
    culprit: Culprit
    restarts: bool


MAX_WHY = 300
"""Characters of what is published, which may quote names of the script."""
SPEAKERS = 2
"""Members that say what their worker processes wait in, if another one's are to blame. The first ranks are enough: all
wait for the same."""


class HangWatch:
    """Not thread-safe: use it on the agent's event loop only. Times are monotonic, s."""

    def __init__(
        self,
        limits: HangLimits,
        group: WorkerGroup,
        me: str,
        publish: Callable[[HangValue | None], None],
        exchange: Exchange,
    ) -> None:
        """`publish`: what is found out about a hang that is not acted on; None: it is over. `exchange`: what members
        tell each other of it."""
        self.limits = limits
        self._group = group
        self._me = me
        self._publish = publish
        self._tell_others = exchange
        self._exchange: EvidenceExchange | None = None
        self._began_ns = 0
        """When this round's worker processes began, or began to continue: Unix time, ns."""
        self._published: HangValue | None = None
        self._investigation: Investigation | None = None
        self._hang: Hang | None = None
        self._step: Step = None
        """The last one before the hang."""
        self._stacks: dict[int, str] = {}
        """That processes wrote in this hang, by rank."""

    @property
    def deadline(self) -> float | None:
        if self._investigation is not None:
            return self._investigation.due
        return self._exchange.due if self._exchange is not None else None

    def starting(self) -> None:
        """New worker processes start, or those that run continue under another plan."""
        self._began_ns = time.time_ns()

    def reset(self) -> None:
        """The processes have ended."""
        self._investigation, self._exchange, self._hang, self._step, self._stacks = None, None, None, None, {}
        if self._published is not None:
            self._published = None
            self._publish(None)

    def tick(self, hang: Hang | None, step: Step, now: float, plan: Plan | None) -> Finding | None:
        """`hang`: one that begins now, or is asked about again. Returns what was found, and has done what follows from
        it."""
        if step != self._step:
            self.reset()
            self._step = step
        if hang is not None:
            self._hang = hang
            waiting = {rank: text for rank, text in self._stacks.items() if _waits_for_others(text)}
            self._investigation, self._exchange = Investigation(self._suspects(), now, waiting, self._began_ns), None
        if self._hang is None or plan is None:
            return None
        self._look(plan, now)
        evidence = self._exchange.tick(now) if self._exchange is not None else None
        if self._exchange is None or evidence is None:
            return None
        own, self._exchange = self._exchange.own, None
        return self._found(self._hang, evidence, own, now, plan)

    def _look(self, plan: Plan, now: float) -> None:
        """At the own processes. Once that is done, the other members are told."""
        seen = self._investigation.tick(now) if self._investigation is not None else None
        if self._investigation is None or seen is None:
            return
        self._stacks = self._investigation.stacks
        self._investigation = None
        exited = {rank: RankEvidence(exited=True) for rank in self._group.finished_ranks}
        since = self._step[1] if self._step is not None else now
        size = _world_size(plan)
        self._exchange = EvidenceExchange(self._tell_others, {**seen, **exited}, plan, size, since, now)

    def _found(
        self, hang: Hang, known: Mapping[int, RankEvidence], own: Mapping[int, RankEvidence], now: float, plan: Plan
    ) -> Finding:
        """`known`: of all ranks that are known. Each member acts on its own ranks."""
        culprit = find_culprit(known, whole=len(known) >= _world_size(plan))
        elsewhere = bool(culprit.ranks) and not own.keys() & set(culprit.ranks)
        culprit = dataclasses.replace(
            culprit,
            ranks=tuple(rank for rank in culprit.ranks if rank in own),
            acts=culprit.acts and not elsewhere,
            certain=culprit.certain and not elsewhere,
        )
        evidence = {rank: found for rank, found in own.items() if not found.exited}
        finding = Finding(f"{hang.text}: {culprit.why}", culprit, restarts(hang, culprit, self.limits))
        reason = "that is for another agent" if elsewhere else "nothing shows that a restart would help"
        what = "restarting" if finding.restarts else f"not restarting: {reason}"
        logger.warning("hang: %s; %s\n%s", finding.text, what, report_of(evidence, self._stacks))
        if finding.restarts:
            self._fail(finding, now)
        elif culprit.ranks or (plan.rank is not None and plan.rank.group_rank < SPEAKERS):
            self._tell(hang, culprit, calls_of(evidence), now)
        return finding

    def _tell(self, hang: Hang, culprit: Culprit, waits_in: str, now: float) -> None:
        since, certain = now - self._step[1] if self._step is not None else 0.0, is_certain(hang, culprit)
        if self._published is not None and self._published.certain and not certain:
            return  # only a step ends what was certain
        self._published = HangValue(
            member=self._me,
            round=self._group.view.round,
            since=self._published.since if self._published is not None else round(time.time() - since, 3),
            why=culprit.why[:MAX_WHY],
            ranks=culprit.ranks,
            waits_in=waits_in,
            certain=certain,
            reports_only=not self.limits.restarts,
        )
        self._publish(self._published)

    def _fail(self, finding: Finding, now: float) -> None:
        text, ranks = f"hang: {finding.text}", finding.culprit.ranks
        culprits = [worker for worker in self._group.running if worker.spec.rank in ranks]
        for worker in culprits:
            worker.fail(HANG, text, stacks_of(self._stacks, first=worker.spec.rank))
        if not culprits:
            self._group.fail_hung(text, now, ranks)

    def _suspects(self) -> list[Suspect]:
        return [
            Suspect(worker.spec.rank, worker.spec.local_rank, worker.pid, str(worker.spec.error_file))
            for worker in self._group.running
        ]


def _world_size(plan: Plan) -> int:
    """Of the worker processes' own world: with replicas, that of theirs."""
    size, value = plan.value.world_size, plan.value
    return size * value.replica_size // value.size if plan.replica is not None and value.size else size


def _waits_for_others(stacks: str) -> bool:
    """Then it still does, for there was no step. One that did not may by now."""
    found = main_stack(stacks)
    return found is not None and bool(found.collective)


def report_of(evidence: dict[int, RankEvidence], stacks: dict[int, str]) -> str:
    """For the log: what each process did while it was watched, and the stacks.

    >>> print(report_of({0: RankEvidence(state="D", kernel="io_schedule")}, {}))
    rank 0: state D in io_schedule; 0 ms of CPU, 0 context switches, 0 bytes
    """
    lines = [
        f"rank {rank}: state {each.state}{f' in {each.kernel}' if each.kernel else ''}; {each.activity}"
        for rank, each in sorted(evidence.items())
    ]
    return "\n".join([*lines, *(f"Stacks of rank {rank}:\n{text.strip()}" for rank, text in stacks.items() if text)])


def stacks_of(stacks: dict[int, str], *, first: int) -> str:
    """For the failure of rank `first`: its stacks, then the others', as long as there is room.

    >>> stacks_of({0: "waits", 1: "sleeps"}, first=1)
    'Stacks of rank 1:\\nsleeps\\nStacks of rank 0:\\nwaits'
    """
    order = sorted(stacks, key=lambda rank: (rank != first, rank))
    text = "\n".join(f"Stacks of rank {rank}:\n{stacks[rank].strip()}" for rank in order if stacks[rank])
    return text.encode()[:TRACEBACK_BYTES].decode(errors="ignore")
