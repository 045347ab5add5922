"""Whose Events must be read for a job, and when. Controllers and kubelets say only in Events why a StatefulSet has no
pod, a claim no volume and a container no start; what follows from them is decided in waits.py."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence

from elasticjob_api import ElasticJob

from elasticjob_operator.state import POD, Explanation, OwnedObject, Pod, PodPhase

QUIET_SECONDS = 3.0
"""How long a StatefulSet may have no pod before its Events are read, in seconds."""
START_SECONDS = 8.0
"""How long the containers of a scheduled pod may take to start before its Events are read, in seconds."""
READ_AGAIN_SECONDS, READ_LATER_SECONDS = 5.0, 30.0
"""Between two reads of the same Events: in the first minute, and later, in seconds."""

CLAIM = "PersistentVolumeClaim"
Question = tuple[str, str]
"""Kind and name of an object whose Events must be read."""
Answers = Mapping[Question, Explanation]

GATED = "SchedulingGated"
OF_SCHEDULER = frozenset({"Unschedulable", "SchedulerError", GATED})
_OF_CLAIM = re.compile(r"persistent ?volume", re.IGNORECASE)
_QUOTED_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)"')


def questions(
    job: ElasticJob, stateful_set: OwnedObject | None, etcd: Sequence[Pod], workers: Iterable[Pod]
) -> list[tuple[Question, datetime.datetime]]:
    """Whose Events must be read from when on: of one pod of etcd and one worker pod, because what holds one of them
    usually holds all."""
    found: list[tuple[Question, datetime.datetime]] = []
    if stateful_set is not None and stateful_set.created_at is not None and len(etcd) < job.etcd_members:
        found.append(((stateful_set.kind.value, stateful_set.name), _after(stateful_set.created_at, QUIET_SECONDS)))
    for pods in (etcd, workers):
        pending = (pod for pod in pods if pod.phase is PodPhase.PENDING)
        found += next((asked for pod in pending if (asked := _of_pending(pod))), [])
    return found


def _of_pending(pod: Pod) -> list[tuple[Question, datetime.datetime]]:
    if claim := claim_of(pod, {}):
        return [((CLAIM, claim), pod.created_at)]
    if pod.blocked is None and not pod.node:
        return []
    due = _after(pod.scheduled_at or pod.created_at, START_SECONDS)
    if pod.blocked is not None:
        return [((CLAIM, claim), due) for claim in pod.blocked.claims if not pod.blocked.reason]
    return [((POD, pod.name), due)]


def read_again_at(answer: Explanation) -> datetime.datetime:
    """When the same Events must be read again."""
    early = (answer.read_at - answer.first_read_at).total_seconds() < 60
    return _after(answer.read_at, READ_AGAIN_SECONDS if early else READ_LATER_SECONDS)


def claim_of(pod: Pod, answers: Answers) -> str:
    """The claim that keeps the scheduler from placing the pod. Empty: no claim does, as far as is known."""
    if (blocked := pod.blocked) is None:
        return ""
    if not blocked.reason:  # the scheduler says nothing while a volume is made for the node that it has chosen
        known = {claim: answers.get((CLAIM, claim)) for claim in blocked.claims}
        return next((claim for claim, said in known.items() if said and said.message and said.at >= pod.created_at), "")
    if blocked.reason not in OF_SCHEDULER or not _OF_CLAIM.search(blocked.message):
        return ""
    quoted = _QUOTED_CLAIM.search(blocked.message)
    return quoted[1] if quoted else next(iter(blocked.claims), "")


def _after(moment: datetime.datetime, seconds: float) -> datetime.datetime:
    return moment + datetime.timedelta(seconds=seconds)
