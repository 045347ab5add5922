"""What decisions need of an object of Kueue."""

from __future__ import annotations

import datetime

import pytest
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.queue_convert import workload_of
from elasticjob_operator.names import ANNOTATION_WITHDRAWN, LABEL_JOB, LABEL_WORKLOAD_PART
from elasticjob_operator.queue_state import Withdrawals, WorkloadPart

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Withdrawals()),
        ("2 2026-01-01T12:00:00Z", Withdrawals(count=2, last=NOON)),
        ("2 2026-01-01T14:00:00+02:00", Withdrawals(count=2, last=NOON)),
        # Changed by hand.
        ("2 0001-01-01T00:00:00+14:00", Withdrawals()),
        ("", Withdrawals()),
        ("2", Withdrawals()),
        ("two 2026-01-01T12:00:00Z", Withdrawals()),
        ("2 2026-01-01T12:00:00", Withdrawals()),
    ],
)
def test_withdrawals_are_read_from_the_base(text: str | None, expected: Withdrawals) -> None:
    metadata = {
        "name": "digits",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {LABEL_WORKLOAD_PART: "base"},
        "annotations": {} if text is None else {ANNOTATION_WITHDRAWN: text},
    }
    assert workload_of({"metadata": metadata}).withdrawals == expected


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("digits", {LABEL_WORKLOAD_PART: "base"}, WorkloadPart.BASE),
        ("digits-surplus-0", {LABEL_WORKLOAD_PART: "surplus"}, WorkloadPart.SURPLUS),
        # Changed or removed by hand.
        ("digits", {LABEL_WORKLOAD_PART: "garbage"}, WorkloadPart.BASE),
        ("digits", {}, WorkloadPart.BASE),
        ("digits-surplus-0", {LABEL_WORKLOAD_PART: "garbage"}, WorkloadPart.SURPLUS),
        ("digits-surplus-0", {}, WorkloadPart.SURPLUS),
    ],
)
def test_workload_is_known_even_if_its_label_is_changed(
    name: str, label: dict[str, str], expected: WorkloadPart
) -> None:
    metadata = {"name": name, "uid": "u", "resourceVersion": "1", "labels": {LABEL_JOB: "digits", **label}}
    assert workload_of({"metadata": metadata}).part is expected


@pytest.mark.parametrize(
    ("owner", "labels", "kept"),
    [
        ([{"uid": "job", "controller": True}], {}, True),
        ([], {"kueue.x-k8s.io/multikueue-origin": "multikueue"}, True),
        # Anyone may create any number of these.
        ([], {}, False),
        ([{"uid": "other"}], {}, False),
    ],
)
def test_pod_sets_are_kept_only_of_workloads_that_may_be_used(
    owner: list[Json], labels: dict[str, str], kept: bool
) -> None:
    pod_sets = [{"name": "workers", "count": 2, "template": {"spec": {}}}]
    metadata = {
        "name": "digits",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {LABEL_WORKLOAD_PART: "base", **labels},
        "ownerReferences": owner,
    }
    found = workload_of({"metadata": metadata, "spec": {"podSets": pod_sets}})
    assert (found.pod_sets, found.counts) == (pod_sets if kept else [], {"workers": 2})
