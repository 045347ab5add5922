"""Which etcd tier takes a run, and what a run without one waits for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, Reason, RendezvousStatus
from elasticjob_operator.policies.etcd_access import NO_ACCESS, EtcdAccess
from elasticjob_operator.policies.etcd_tiers import (
    FIRST_LOOK_SECONDS,
    LAST_LOOK_SECONDS,
    choose,
    left_over,
    look_again_at,
    problem_of,
    wait_for_tier,
)
from elasticjob_operator.policies.rendezvous import rendezvous_of
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_operator.state import TierView

from tests.unit.operator.builders import NOW, UID, at, make_job, make_status
from tests.unit.operator.tables import table

OTHER = "0f1f6bde-1f0a-4c1e-9c57-5b1f8a1d2e3f"
NAMES = ("t0", "t1", "t2")
TIERS = EtcdTiers(
    tiers=tuple(EtcdTier(name=name, endpoint=f"https://{name}.ej.svc:2379") for name in NAMES),
    max_runs=100,
    max_bytes=64 << 20,
)
SETTINGS = Settings(etcd_tiers=TIERS, ca_namespace="ej")
FREE = TierView(asked=True)
DOWN, FULL = dataclasses.replace(FREE, error="no response"), dataclasses.replace(FREE, runs=100)
ALL_FREE = dict.fromkeys(NAMES, FREE)


def closed(*names: str) -> EtcdTiers:
    tiers = (dataclasses.replace(tier, open=tier.name not in names) for tier in TIERS.tiers)
    return dataclasses.replace(TIERS, tiers=tuple(tiers))


def order_of(uid: str) -> list[str]:
    """The tiers in the order in which a job asks them."""
    found: list[str] = []
    while len(found) < len(NAMES):
        tier = choose(uid, closed(*found), ALL_FREE)
        assert tier is not None
        found.append(tier.name)
    return found


FIRST, SECOND, THIRD = order_of(UID)


@table(
    "views, tiers, expected",
    {
        "the first by hash": ({}, TIERS, FIRST),
        "a full one is skipped": ({FIRST: FULL}, TIERS, SECOND),
        "an unreachable one, too": ({FIRST: DOWN}, TIERS, SECOND),
        "and one that was not asked yet": ({FIRST: TierView()}, TIERS, SECOND),
        "to the last": ({FIRST: FULL, SECOND: DOWN}, TIERS, THIRD),
        "a closed one takes none": ({}, closed(FIRST), SECOND),
        "there is room for one more": ({FIRST: dataclasses.replace(FREE, runs=99)}, TIERS, FIRST),
        "its database is full": ({FIRST: dataclasses.replace(FREE, bytes=64 << 20)}, TIERS, SECOND),
        "none is left": ({FIRST: FULL, SECOND: FULL, THIRD: DOWN}, TIERS, None),
        "none of the open ones": ({SECOND: FULL, THIRD: FULL}, closed(FIRST), None),
    },
)
def test_a_run_gets_the_first_tier_by_hash_that_takes_it(
    views: dict[str, TierView], tiers: EtcdTiers, expected: str | None
) -> None:
    found = choose(UID, tiers, {**ALL_FREE, **views})
    assert (found.name if found is not None else None) == expected


def test_jobs_are_spread_and_another_tier_changes_the_choice_of_its_share_only() -> None:
    uids = [f"job-{number}" for number in range(3000)]
    before = {uid: order_of(uid)[0] for uid in uids}
    assert all(900 < list(before.values()).count(name) < 1100 for name in NAMES)
    more = dataclasses.replace(TIERS, tiers=(*TIERS.tiers, EtcdTier(name="t3", endpoint="https://t3.ej.svc:2379")))
    after = {uid: choose(uid, more, {**ALL_FREE, "t3": FREE}) for uid in uids}
    moved = {uid for uid, tier in after.items() if tier is not None and tier.name != before[uid]}
    assert 650 < len(moved) < 850
    assert {tier.name for uid, tier in after.items() if tier is not None and uid in moved} == {"t3"}


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (TierView(), "it has not been asked yet"),
        (DOWN, "no response"),
        (FULL, "it is full: 100 runs, and the chart's etcd.tier.maxRuns is 100"),
        (dataclasses.replace(FREE, bytes=70 << 20), "70 MiB are in use, and the chart's etcd.tier.maxMiB is 64"),
        (FREE, ""),
    ],
)
def test_a_tier_says_why_it_takes_no_run(view: TierView, words: str) -> None:
    found = problem_of(view, TIERS)
    assert words in found if words else not found


def test_a_waiting_run_names_its_first_tier_since_when_it_is_full_and_what_to_do() -> None:
    views = {**ALL_FREE, **dict.fromkeys(NAMES, dataclasses.replace(FULL, since=NOW))}
    wait = wait_for_tier(UID, TIERS, views)
    assert (wait.reason, wait.name, wait.since) == (Reason.NO_ETCD_TIER, FIRST, NOW)
    for words in (
        f"Etcd tier {FIRST} takes no new run: it is full: 100 runs",
        "nor do the other open tiers: 2",
        "Since 2026-01-01T12:00:00Z",
        "add a tier (the chart's etcd.tiers)",
    ):
        assert words in wait.cause.message
    starting = wait_for_tier(UID, TIERS, {})
    assert not starting.serious, "the operator has only just started"


@pytest.mark.parametrize(("waited", "seconds"), [(0, FIRST_LOOK_SECONDS), (40, 10.0), (3600, LAST_LOOK_SECONDS)])
def test_a_run_that_has_waited_for_long_looks_rarely(waited: float, seconds: float) -> None:
    wait = wait_for_tier(UID, TIERS, dict.fromkeys(NAMES, dataclasses.replace(FULL, since=NOW)))
    assert look_again_at(wait, at(waited)) == at(waited + seconds)


IN_TIER = RendezvousStatus(id=f"{UID}-1", endpoint=f"https://{SECOND}.ej.svc:2379", tier=SECOND)
OWN = RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379")
NOWHERE = RendezvousStatus(id=f"{UID}-1")
PER_JOB = dataclasses.replace(SETTINGS, etcd_tiers=closed(*NAMES))
WITHOUT = Settings(ca_namespace="ej")
FEWER = dataclasses.replace(SETTINGS, etcd_tiers=dataclasses.replace(TIERS, tiers=()))
SUSPENDED: dict[str, Any] = {"suspend": True}


def job(known: RendezvousStatus | None, *true: ConditionType, spec: dict[str, Any] | None = None) -> ElasticJob:
    return make_job(
        spec=spec, status=make_status(*true, rendezvous=known, start_time=NOW if known is not None else None)
    )


@table(
    "case, settings, views, tier, followed",
    {
        "a new job: nothing happens before status says where": (job(None), SETTINGS, {}, FIRST, False),
        "a run stays where it is": (job(IN_TIER), SETTINGS, {}, SECOND, True),
        "however full": (job(IN_TIER), SETTINGS, {SECOND: FULL}, SECOND, True),
        "or unreachable": (job(IN_TIER), SETTINGS, {SECOND: DOWN}, SECOND, True),
        "or closed": (job(IN_TIER), PER_JOB, {}, SECOND, True),
        "or removed": (job(IN_TIER), FEWER, {}, SECOND, False),
        "the next run chooses again": (job(IN_TIER, ConditionType.SUSPENDED), SETTINGS, {}, FIRST, False),
        "and avoids a full tier": (job(IN_TIER, ConditionType.SUSPENDED), SETTINGS, {FIRST: FULL}, SECOND, False),
        "or gets an etcd of its own": (job(IN_TIER, ConditionType.SUSPENDED), WITHOUT, {}, "", True),
        "a run with an etcd of its own keeps it": (job(OWN), SETTINGS, {}, "", True),
        "until it is resumed": (job(OWN, ConditionType.SUSPENDED), SETTINGS, {}, FIRST, False),
        "a run that waited gets a tier": (job(NOWHERE), SETTINGS, {}, FIRST, False),
        "one that is not to run holds no place": (job(None, spec=SUSPENDED), SETTINGS, {}, "", False),
        "who wants its own has it": (job(None, spec={"rendezvous": {"type": "Dedicated"}}), SETTINGS, {}, "", True),
        "no tier is open: each job has its own etcd": (job(None), PER_JOB, {}, "", True),
    },
)
def test_a_run_uses_one_tier_from_its_start_to_its_end(
    case: ElasticJob, settings: Settings, views: dict[str, TierView], tier: str, followed: bool
) -> None:
    found = rendezvous_of(case, settings, tiers={**ALL_FREE, **views})
    assert (found.tier, found.followed, found.managed) == (tier, followed, not tier and followed)
    assert found.endpoint == (f"https://{tier}.ej.svc:2379" if tier else OWN.endpoint if followed else "")
    known = settings.etcd_tiers.named(tier) is not None
    assert found.access == (_user(found.run, tier) if known else NO_ACCESS)
    assert (found.wait is not None) == (bool(tier) and not known)


def _user(run: int, tier: str) -> EtcdAccess:
    name = f"digits-rendezvous-{UID[:8]}-{run}"
    return EtcdAccess(secret=("ej", tier), mounted=name, user=f"elasticjob-{UID}-{run}")


def test_a_job_cannot_name_the_secret_of_a_tier() -> None:
    spec = {"rendezvous": {"type": "External", "endpoint": "https://mine:2379", "secretName": "t0"}}
    found = rendezvous_of(make_job(spec=spec), dataclasses.replace(SETTINGS, ca_namespace="ml"))
    assert not found.access.allowed


def test_the_root_of_a_tier_is_used_for_no_run_that_only_names_its_address() -> None:
    spec = {"rendezvous": {"type": "External", "endpoint": TIERS.tiers[0].endpoint}}
    assert rendezvous_of(make_job(spec=spec), SETTINGS, tiers=ALL_FREE).access == NO_ACCESS


def test_the_root_of_a_tier_goes_to_no_address_but_its_own() -> None:
    """Not even to one in status, which was written by a release with other addresses, or by someone else."""
    elsewhere = IN_TIER.model_copy(update={"endpoint": "https://digits-etcd.ml.svc:2379"})
    found = rendezvous_of(job(elsewhere), SETTINGS, tiers=ALL_FREE)
    assert (found.endpoint, found.access) == (IN_TIER.endpoint, _user(1, SECOND))


@pytest.mark.parametrize(
    ("run_id", "is_left_over"),
    [
        (f"{UID}-1", False),
        (f"{UID}-12.3", False),
        (f"{OTHER}-1", True),
        (f"{OTHER}-12.3", True),
        (f"{OTHER}", False),
        (f"{OTHER}-", False),
        (f"{OTHER}-1/spec", False),
        ("my-job-1", False),
        ("", False),
    ],
)
def test_only_what_the_operator_has_named_after_a_job_that_is_gone_is_left_over(
    run_id: str, is_left_over: bool
) -> None:
    assert left_over([run_id], [UID]) == [run_id] * is_left_over
