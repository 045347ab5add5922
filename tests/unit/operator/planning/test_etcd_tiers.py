"""A job whose run is in an etcd tier: what happens when, and what its conditions say."""

from __future__ import annotations

import dataclasses

from elasticjob_api import ConditionType, ElasticJob
from elasticjob_operator.planning import CreateObject, CreatePod, CreateRunUser, PublishSpec
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_operator.state import Kind, RendezvousView, TierView
from elasticjob_runtime.contract import SpecValue

from tests.unit.operator.builders import NOW, UID, at, make_job, make_pod, make_view
from tests.unit.operator.planning.plans import (
    ADMITTED,
    ask,
    condition,
    environment,
    follow,
    made,
    mounted,
    rendezvous_in,
    target_of,
)

ENDPOINT = "https://t0.ej.svc:2379,https://t0-0.t0-peers.ej.svc:2379"
TIERS = EtcdTiers(tiers=(EtcdTier(name="t0", endpoint=ENDPOINT),), max_runs=1)
SETTINGS = Settings(etcd_tiers=TIERS, ca_namespace="ej")
FREE = {"t0": TierView(asked=True)}
FULL = {"t0": TierView(asked=True, runs=1, since=NOW)}
PUBLISHED = make_view(spec=SpecValue(min=2, max=8, wanted=4))


def placed(job: ElasticJob | None = None) -> ElasticJob:
    """Once its status names the tier."""
    job = job or make_job()
    return follow(job, ask(job, admission=ADMITTED, settings=SETTINGS, tiers=FREE))


def test_a_run_touches_its_tier_only_once_status_names_it() -> None:
    first = ask(make_job(), admission=ADMITTED, settings=SETTINGS, tiers=FREE)
    assert (rendezvous_in(first).tier, rendezvous_in(first).endpoint) == ("t0", ENDPOINT)
    assert first.target is None
    assert not made(first, CreatePod)
    assert first.requeue_at == NOW
    second = ask(placed(), admission=ADMITTED, settings=SETTINGS, tiers=FREE, rendezvous=make_view())
    assert made(second, PublishSpec)
    assert (target_of(second).endpoint, target_of(second).secret, target_of(second).tls) == (
        ENDPOINT,
        ("ej", "t0"),
        False,
    )


def test_pods_meet_in_the_tier_as_the_user_of_their_run_and_the_job_has_no_etcd_of_its_own() -> None:
    found = ask(placed(), admission=ADMITTED, settings=SETTINGS, tiers=FULL, rendezvous=PUBLISHED)
    (user,) = made(found, CreateRunUser)
    assert (user.user, user.credentials) == (f"elasticjob-{UID}-1", ("ej", "t0"))
    assert environment(found)["PET_RDZV_ENDPOINT"] == ENDPOINT
    assert mounted(found) == {user.body["metadata"]["name"]}
    assert Kind.STATEFUL_SET not in {action.kind for action in made(found, CreateObject)}


def test_a_run_without_a_tier_creates_no_pods_warns_once_and_looks_again() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=SETTINGS, tiers=FULL)
    assert not made(found, CreatePod)
    assert not made(found, CreateRunUser)
    for type_ in (ConditionType.RENDEZVOUS_READY, ConditionType.RUNNING):
        assert condition(found, type_) == ("False", "NoEtcdTier")
    assert found.status.summary == "NoEtcdTier"
    assert [event.warning for event in found.events if event.reason == "NoEtcdTier"] == [True]
    assert found.requeue_at == at(1)
    waiting = follow(make_job(), found)
    assert not ask(waiting, admission=ADMITTED, settings=SETTINGS, tiers=FULL).events
    then = ask(waiting, admission=ADMITTED, settings=SETTINGS, tiers=FREE)
    assert rendezvous_in(then).tier == "t0"


def test_training_goes_on_when_its_tier_is_removed_and_the_job_says_what_to_do() -> None:
    status = placed().status.model_copy(update={"round": 1, "world_size": 4})
    job = make_job(status=status)
    gone = dataclasses.replace(SETTINGS, etcd_tiers=EtcdTiers())
    pods = [make_pod(index) for index in range(4)]
    found = ask(job, *pods, admission=ADMITTED, settings=gone, rendezvous=RendezvousView())
    assert not made(found, CreatePod)
    assert condition(found, ConditionType.RUNNING) == ("True", "Training")
    assert condition(found, ConditionType.RENDEZVOUS_READY) == ("False", "EtcdTierRemoved")
    (message,) = [item.message for item in found.status.conditions if item.reason == "EtcdTierRemoved"]
    assert "Etcd tier t0 was removed" in message
    assert "elasticjob suspend digits -n ml" in message
    fewer = ask(job, *pods[:3], admission=ADMITTED, settings=gone, rendezvous=RendezvousView())
    assert not made(fewer, CreatePod), "a new worker pod could not meet the others"
