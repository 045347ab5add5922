"""The client repeats names and fields of the API, because importing the models is slow: they have to agree."""

from __future__ import annotations

import datetime

import elasticjob_api as api
from elasticjob import names, state
from elasticjob.decisions.job_request import CONTAINER, MAX_NAME, JobOptions, manifest_of
from elasticjob.decisions.obstacles import REMEDIES
from elasticjob.sdk.models import check
from elasticjob_api.crd import validation
from elasticjob_api.job import SINGULAR
from elasticjob_operator import names as operator_names

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def test_the_api_has_the_names_that_the_client_uses() -> None:
    ours = (names.GROUP, names.VERSION, names.API_VERSION, names.KIND, names.PLURAL, names.SINGULAR, MAX_NAME)
    theirs = (api.GROUP, api.VERSION, api.API_VERSION, api.KIND, api.PLURAL, SINGULAR, validation.MAX_NAME)
    assert ours == theirs


def test_the_operator_has_the_labels_that_the_client_selects() -> None:
    assert names.worker_selector("bert") == operator_names.worker_selector("bert")
    assert names.LABEL_INDEX == operator_names.LABEL_INDEX


def test_remedies_are_for_reasons_that_exist() -> None:
    assert set(REMEDIES) <= {item.value for item in api.Reason}


def test_the_remedy_of_a_message_is_found() -> None:
    assert names.REMEDY == api.REMEDY


def test_a_status_is_read_as_the_operator_writes_it() -> None:
    manifest = manifest_of(JobOptions("bert", "train:1", ["python"], "2:4"), "ml")
    condition = api.Condition(
        type="Running", status=api.ConditionStatus.TRUE, reason="Training", message="yes", last_transition_time=NOW
    )
    status = api.Status(
        observed_generation=3,
        replicas=4,
        ready_replicas=3,
        desired_replicas=4,
        world_size=24,
        round=7,
        restarts=api.Restarts(total=2, by_cause={"Signal": 2}),
        progress=api.Progress(
            step=10, steps_per_second=2.5, last_checkpoint_step=8, metrics={"loss": "0.1"}, observed_at=NOW
        ),
        last_failure=api.Failure(
            worker="bert-worker-1", reason="Signal", message="died", exit_code=-9, rank=8, time=NOW
        ),
        failing_nodes=(api.FailingNode(name="n1", failures=2, last_time=NOW),),
        rendezvous=api.RendezvousStatus(backend="etcd-v3", endpoint="etcd:2379"),
        conditions=(condition,),
        summary="Running",
        start_time=NOW,
        completion_time=NOW,
    )
    seen = state.job_state({**manifest, "status": status.to_api()})
    assert (seen.observed_generation, seen.existing, seen.ready, seen.desired) == (3, 4, 3, 4)
    assert (seen.world_size, seen.round, seen.restarts, seen.causes) == (24, 7, 2, {"Signal": 2})
    assert seen.progress == state.Progress(10, 2.5, 8, {"loss": "0.1"}, NOW)
    assert seen.failure == state.Failure("bert-worker-1", "Signal", "died", -9, 8, None, NOW)
    assert seen.failing_nodes == (("n1", 2),)
    assert seen.rendezvous == "etcd-v3 etcd:2379"
    assert seen.conditions["Running"] == state.Condition("Running", "True", "Training", "yes", NOW)
    assert (seen.summary, seen.started, seen.finished) == ("Running", NOW, NOW)


def test_a_spec_is_read_as_the_api_has_it() -> None:
    manifest = manifest_of(JobOptions("bert", "train:1", ["python", "x"], "2:4", max_restarts=3), "ml")
    check(manifest)
    seen = state.job_state(manifest)
    assert (seen.replicas, seen.least, seen.most, seen.max_restarts) == (4, 2, 4, 3)
    assert (seen.image, seen.command, seen.container) == ("train:1", ("python", "x"), CONTAINER)
