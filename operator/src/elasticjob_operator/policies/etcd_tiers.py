"""Which etcd tier takes a run.

    status names one for this run          that one, whatever its state: an etcd in use is never left behind
    the first open tier, by hash           unless it is unreachable or full
    the next one by hash                   ...
    none                                   the run waits; what for, it says

Each job has an order of the tiers of its own (rendezvous hashing), so that a tier more or less changes the first choice
of no more jobs than it must.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

from elasticjob_api import ElasticJob, Reason, RendezvousStatus

from elasticjob_operator.policies.waits import Wait
from elasticjob_operator.settings import EtcdTier, EtcdTiers
from elasticjob_operator.state import TierView

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 1.0, 30.0
"""Between two attempts of a waiting run, s: rarer, the longer it has waited."""
KIND = "Etcd tier"
_RUN_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-\d+(?:\.\d+)?")
"""A UID of Kubernetes, the number of a run, and that of its attempt."""


def problem_of(view: TierView, limits: EtcdTiers) -> str:
    """Why a tier takes no new run, one clause. Empty: it takes one."""
    if not view.asked:
        return "it has not been asked yet"
    if view.error:
        return view.error
    if view.runs >= limits.max_runs:
        return f"it is full: {view.runs} runs, and the chart's etcd.tier.maxRuns is {limits.max_runs}"
    if view.bytes >= limits.max_bytes:
        used, most = view.bytes >> 20, limits.max_bytes >> 20
        return f"it is full: {used} MiB are in use, and the chart's etcd.tier.maxMiB is {most}"
    return ""


def choose(uid: str, tiers: EtcdTiers, views: Mapping[str, TierView]) -> EtcdTier | None:
    """For a new run of the job with that UID. None: no tier takes it."""
    found = (tier for tier in _in_order(uid, tiers) if not problem_of(views.get(tier.name, TierView()), tiers))
    return next(found, None)


def wait_for_tier(uid: str, tiers: EtcdTiers, views: Mapping[str, TierView]) -> Wait:
    """If `choose` finds none. Names the first choice of the job."""
    order = _in_order(uid, tiers)
    known = [views.get(tier.name, TierView()) for tier in order]
    others = f"; nor do the other open tiers: {len(order) - 1}" if len(order) > 1 else ""
    asked = any(view.asked for view in known)
    return Wait(
        reason=Reason.NO_ETCD_TIER if asked else Reason.ETCD_STARTING,
        kind=KIND,
        name=order[0].name,
        detail=f"{problem_of(known[0], tiers)}{others}",
        since=known[0].since,
        remedy="nothing, if it is starting or runs are about to end; otherwise see its pods in the operator's "
        "namespace, add a tier (the chart's etcd.tiers), or set spec.rendezvous.type to Dedicated while the job is "
        "suspended.",
    )


def removed(job: ElasticJob, known: RendezvousStatus) -> Wait:
    """The tier of a run is not among the operator's any more."""
    return Wait(
        reason=Reason.ETCD_TIER_REMOVED,
        kind=KIND,
        name=known.tier,
        detail="the operator does not connect to it, and training cannot change its worker pods without it",
        remedy="suspend the job and resume it, and its next run uses another etcd (elasticjob suspend "
        f"{job.name} -n {job.namespace}); or raise the chart's etcd.tiers again.",
    )


def look_again_at(wait: Wait | None, now: datetime.datetime) -> datetime.datetime | None:
    """When to choose again. None: that would change nothing."""
    if wait is None or wait.reason is Reason.ETCD_TIER_REMOVED:
        return None
    waited = (now - wait.since).total_seconds() / 4 if wait.since is not None else 0.0
    return now + datetime.timedelta(seconds=min(LAST_LOOK_SECONDS, max(FIRST_LOOK_SECONDS, waited)))


def left_over(run_ids: Iterable[str], uids: Collection[str]) -> list[str]:
    """The runs of jobs that no longer exist. uids: of those that do. An ID that is not of the operator's form is of
    someone else.

    >>> left_over(["8c1f6bde-1f0a-4c1e-9c57-5b1f8a1d2e3f-2", "mine"], [])
    ['8c1f6bde-1f0a-4c1e-9c57-5b1f8a1d2e3f-2']
    """
    found = ((run_id, _RUN_ID.fullmatch(run_id)) for run_id in run_ids)
    return [run_id for run_id, match in found if match is not None and match[1] not in uids]


def _in_order(uid: str, tiers: EtcdTiers) -> list[EtcdTier]:
    return sorted(
        (tier for tier in tiers.tiers if tier.open),
        key=lambda tier: hashlib.blake2b(f"{uid}/{tier.name}".encode(), digest_size=8).digest(),
    )
