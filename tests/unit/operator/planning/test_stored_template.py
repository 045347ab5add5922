"""A run keeps its template's hash: another release may compute another one for the same template."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, RendezvousStatus
from elasticjob_operator.planning import CreatePod, DeletePod, Plan
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.state import Admission, Pod

from tests.unit.operator.builders import NOW, UID, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import ask, made, names, rendezvous_in

BEFORE = "e4d909c290"
"""Of the same template, as the release before computed it."""
OTHER: dict[str, Any] = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}


def stored(*, stored_hash: str = BEFORE, generation: int = 1, of_template: int = 1, **job: Any) -> ElasticJob:
    """A job that has trained since its generation 1. `of_template`: the newest generation with its run's template."""
    rendezvous = RendezvousStatus(
        id=f"{UID}-1",
        backend="etcd-v3",
        endpoint="etcd:2379",
        template_hash=stored_hash,
        template_generation=of_template,
    )
    status = make_status(
        ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, start_time=make_pod().created_at, rendezvous=rendezvous
    )
    return make_job(status=status, generation=generation, **job)


def pods(label: str = BEFORE, run: int = 1) -> list[Pod]:
    return [dataclasses.replace(make_pod(index, run=run), template_hash=label) for index in range(3)]


def look(job: ElasticJob, *found: Pod, run: int = 1) -> Plan:
    view = make_view(plan=make_plan(size=3), run_id=f"{UID}-{run}")
    return ask(job, *found, rendezvous=view, admission=Admission(template_hash=hash_of(job), at=NOW))


def labels(found: Plan) -> list[str]:
    pods = [action.body for action in made(found, CreatePod)]
    return [pod["metadata"]["labels"]["elasticjob.dev/template-hash"] for pod in pods]


def template_of(found: Plan) -> tuple[str, int | None]:
    known = found.status.rendezvous
    assert known is not None
    return known.template_hash, known.template_generation


def test_training_survives_an_upgrade_that_hashes_templates_differently() -> None:
    job = stored()
    assert hash_of(job) != BEFORE
    found = look(job, *pods())
    assert names(found, DeletePod) == []
    assert labels(found) == [BEFORE], "a run has one label"
    assert template_of(found) == (hash_of(job), 1), "as this release computes it, for comparison with later changes"


@pytest.mark.parametrize("generation", [1, 2])
def test_after_an_upgrade_a_change_of_another_field_restarts_nothing(generation: int) -> None:
    job = stored(stored_hash=hash_of(make_job()), generation=generation, max_restarts=generation)
    found = look(job, *pods())
    assert names(found, DeletePod) == []
    assert labels(found) == [BEFORE]
    assert template_of(found) == (hash_of(job), generation)


def test_a_changed_template_starts_a_new_run_after_an_upgrade_too() -> None:
    """Suspended, changed and resumed while no operator was running."""
    found = look(stored(generation=4, template=OTHER), *pods())
    assert len(names(found, DeletePod)) == 3
    assert rendezvous_in(found).id == f"{UID}-2"
    assert template_of(found) == (hash_of(make_job(template=OTHER)), 4)


def test_a_suspended_run_remembers_its_template_until_its_pods_are_gone() -> None:
    suspended = stored(generation=3, template=OTHER, spec={"suspend": True})
    first = look(suspended, *pods())
    assert template_of(first) == (BEFORE, 1)
    again = suspended.model_copy(update={"status": first.status})
    assert template_of(look(again, *pods())) == (BEFORE, 1), "also once status has seen the change"
    assert template_of(look(again)) == (hash_of(suspended), 3)


def test_a_run_that_status_does_not_know_yet_is_compared_by_its_label() -> None:
    """The operator was killed after it had created the pods of run 2, before it wrote status."""
    new = hash_of(make_job(template=OTHER))
    found = look(stored(generation=4, template=OTHER), *pods(new, run=2), run=2)
    assert names(found, DeletePod) == []
    assert template_of(found) == (new, 4)


def test_a_new_field_with_a_default_leaves_the_hash_as_it_is() -> None:
    """A value that differs from this one restarts no job, but is compared with nothing that came before."""
    spec = {"checkpoint": {"volume": {"nfs": {"server": "nfs", "path": "/"}}}}
    assert hash_of(make_job(spec=spec)) == "a7447ec847"
