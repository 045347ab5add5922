from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import ConditionType, Reason, RendezvousStatus
from elasticjob_operator.policies.rendezvous import (
    is_superseded,
    needs_publishing,
    rendezvous_of,
    rendezvous_ready,
    unknown_outcome,
    wanted_spec,
    with_store,
)
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Pod, RendezvousView
from elasticjob_runtime.contract import SpecValue

from tests.unit.operator.builders import NOW, UID, at, make_job, make_pod, make_status, make_view, rendezvous_at
from tests.unit.operator.tables import table

OWN = "digits-etcd.ml.svc:2379"
SECURE = f"https://{OWN}"


@table(
    "in_spec, default, in_status, expected",
    {
        "neither given: the job's own etcd, with TLS": ("", "", None, (SECURE, True)),
        "an etcd that was started without TLS stays without": ("", "", OWN, (OWN, True)),
        "the endpoint in the spec": ("etcd:2379", "", None, ("etcd:2379", False)),
        "the operator's default": ("", "shared:2379", None, ("shared:2379", False)),
        "the endpoint in the spec takes precedence": ("etcd:2379", "shared:2379", None, ("etcd:2379", False)),
        "a new default does not move a running job": ("", "new:2379", OWN, (OWN, True)),
        "nor one with TLS": ("", "new:2379", SECURE, (SECURE, True)),
        "a removed default does not move a running job either": ("", "", "old:2379", ("old:2379", False)),
    },
)
def test_the_endpoint_of_a_job(in_spec: str, default: str, in_status: str | None, expected: tuple[str, bool]) -> None:
    status = make_status(rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint=in_status)) if in_status else None
    job = make_job(spec={"rendezvous": rendezvous_at(in_spec)}, status=status)
    found = rendezvous_of(job, Settings(endpoint=default))
    assert (found.endpoint, found.managed) == expected


@pytest.mark.parametrize("default", ["", "shared:2379"])
def test_a_dedicated_etcd_is_the_jobs_own_whatever_the_operators_default(default: str) -> None:
    found = rendezvous_of(make_job(spec={"rendezvous": {"type": "Dedicated"}}), Settings(endpoint=default))
    assert (found.endpoint, found.managed) == (SECURE, True)


@table(
    "in_status, expected",
    {"new": (None, 1), "first": (f"{UID}-1", 1), "third": (f"{UID}-3", 3), "other job": ("someone-else-7", 1)},
)
def test_the_run_id_is_unique_to_job_and_run(in_status: str | None, expected: int) -> None:
    """Two jobs in one etcd must not meet, nor two runs of one job."""
    status = make_status(rendezvous=RendezvousStatus(id=in_status, endpoint="x:1")) if in_status else None
    found = rendezvous_of(make_job(status=status), Settings())
    assert (found.run, found.run_id) == (expected, f"{UID}-{expected}")


def test_the_membership_hint() -> None:
    spec = wanted_spec(
        make_job(replicas=3, generation=7), draining=["digits-worker-5", "digits-worker-4"], max_restarts=3
    )
    assert spec == SpecValue(
        min=2,
        max=8,
        wanted=3,
        draining=["digits-worker-4", "digits-worker-5"],
        max_restarts=3,
        fail_before_first_step=True,
        generation=7,
    )


def test_agents_know_how_large_replicas_are() -> None:
    assert wanted_spec(make_job(workers={"replicaSize": 2}), draining=[], max_restarts=3).replica_size == 2


def test_the_hint_about_hangs_leaves_the_agents_own_flags_where_the_spec_says_nothing() -> None:
    hang = {"action": "Report", "factor": 5, "minSeconds": 300}
    spec = wanted_spec(make_job(spec={"failurePolicy": {"hang": hang}}), draining=[], max_restarts=3)
    assert (spec.hang_restarts, spec.hang_factor, spec.hang_min) == (False, 5, 300)
    spec = wanted_spec(make_job(), draining=[], max_restarts=3)
    assert (spec.hang_restarts, spec.hang_factor, spec.hang_min) == (None, None, None)


@table(
    "in_spec, suspended, endpoint, run",
    {
        "resumed: where the operator's default is now": ({}, True, "new:2379", 2),
        "resumed: the endpoint in the spec": (rendezvous_at("mine:2379"), True, "mine:2379", 2),
        "runs: another default moves nothing": ({}, False, "old:2379", 1),
        "changed and resumed before its pods were gone: a new run": (rendezvous_at("mine:2379"), False, "mine:2379", 2),
        "an etcd of its own, too": ({"type": "Dedicated"}, False, SECURE, 2),
        "another backend, too": ({"backend": "c10d"}, False, "digits-worker-0.digits.ml.svc:29400", 2),
    },
)
def test_a_resumed_job_uses_the_endpoint_of_spec_and_settings(
    in_spec: dict[str, str], suspended: bool, endpoint: str, run: int
) -> None:
    known = RendezvousStatus(id=f"{UID}-1", backend="etcd-v3", endpoint="old:2379")
    conditions = (ConditionType.SUSPENDED,) if suspended else ()
    status = make_status(*conditions, rendezvous=known, start_time=NOW)
    found = rendezvous_of(make_job(spec={"rendezvous": in_spec}, status=status), Settings(endpoint="new:2379"))
    assert (found.endpoint, found.run) == (endpoint, run)


@table(
    "before, pods, expected, gone",
    {
        "none yet": ((None, ""), [], (0, ""), None),
        "the first": ((None, ""), [("a", False)], (1, "a"), False),
        "the same": ((1, "a"), [("a", False)], (1, "a"), False),
        "none for a moment": ((1, "a"), [], (1, "a"), None),
        "another one, however the first was lost": ((1, "a"), [("b", False)], (2, "b"), True),
        "lost: first the number": ((1, "a"), [("a", True)], (2, ""), False),
        "... then it may be forced out": ((2, ""), [("a", True)], (2, ""), True),
        "its successor has that number": ((2, ""), [("b", False)], (2, "b"), True),
        "back after all: under the new number": ((2, ""), [("a", False)], (2, "a"), True),
        "lost before an operator that counts came": ((None, ""), [("a", True)], (1, ""), False),
    },
)
def test_the_store_generation_increases_before_a_lost_etcd_is_replaced(
    before: tuple[int | None, str], pods: list[tuple[str, bool]], expected: tuple[int, str], gone: bool | None
) -> None:
    """`gone`: whether the pod may be taken away by force, with `before` written."""
    written = RendezvousStatus(id=f"{UID}-1", endpoint=OWN, store_generation=before[0], store_pod=before[1])
    etcd = [(dataclasses.replace(make_pod(), uid=uid), lost) for uid, lost in pods]
    found = with_store(rendezvous_of(make_job(), Settings()), written, etcd)
    assert (found.store_generation, found.store_pod) == expected
    if gone is not None:
        assert is_superseded(etcd[0][0], written) is gone


WANTED = SpecValue(min=1, max=2, wanted=2)


@table(
    "view, publish",
    {
        "new, or etcd came back empty": (make_view(spec=None), True),
        "there already": (make_view(spec=WANTED), False),
        "changed": (make_view(spec=SpecValue(min=1, max=2)), True),
        "drained": (make_view(spec=SpecValue(min=1, max=2, wanted=2, draining=["c"])), True),
        "cannot be written now": (make_view(Connectivity.UNREACHABLE), False),
        "not connected yet": (make_view(Connectivity.CONNECTING), False),
    },
)
def test_the_hint_is_published_if_it_differs(view: RendezvousView, publish: bool) -> None:
    assert bool(needs_publishing(view, WANTED)) is publish


@table(
    "managed, view, was_ready, expected",
    {
        "nothing known": (True, make_view(Connectivity.CONNECTING), False, None),
        "answers": (True, make_view(), False, (True, Reason.ETCD_READY)),
        "own etcd starts": (True, make_view(Connectivity.UNREACHABLE), False, (False, Reason.ETCD_STARTING)),
        "own etcd starts again": (True, make_view(Connectivity.UNREACHABLE), True, (False, Reason.ETCD_STARTING)),
        "external etcd unreachable": pytest.param(
            False, make_view(Connectivity.UNREACHABLE), False, (False, Reason.ETCD_UNREACHABLE)
        ),
        "refuses us": (False, make_view(Connectivity.DENIED), True, (False, Reason.ETCD_DENIED)),
        "another certificate": (True, make_view(Connectivity.UNTRUSTED), True, (False, Reason.ETCD_UNTRUSTED)),
    },
)
def test_rendezvous_ready(
    managed: bool, view: RendezvousView, was_ready: bool, expected: tuple[bool, Reason] | None
) -> None:
    job = make_job(spec={"rendezvous": rendezvous_at("" if managed else "etcd:2379")})
    found = rendezvous_ready(rendezvous_of(job, Settings()), view, [], was_ready=was_ready, now=NOW)
    assert (found and (found.status, found.reason)) == expected


@table(
    "ready, answered, expected",
    {
        "a quiet etcd that is well": (True, -9, True),
        "not ready for a moment": (False, -1, True),
        "frozen": (False, -3, False),
        "starts": (False, None, True),
    },
)
def test_a_silent_etcd_is_reported_within_seconds(ready: bool, answered: float | None, expected: bool) -> None:
    view = make_view(answered_at=at(answered) if answered is not None else None)
    found = rendezvous_ready(
        rendezvous_of(make_job(), Settings()), view, [make_pod(ready=ready)], was_ready=True, now=NOW
    )
    assert found is not None
    assert found.status is expected


@pytest.mark.parametrize("trains", [True, False])
def test_only_of_a_job_that_trains_is_it_said_that_training_continues(*, trains: bool) -> None:
    own = rendezvous_of(make_job(), Settings())
    view = make_view(answered_at=at(-3))
    found = rendezvous_ready(own, view, [make_pod(ready=False)], was_ready=True, trains=trains, now=NOW)
    assert found is not None
    assert ("Training continues meanwhile." in found.message) is trains


@table(
    "endpoint, connectivity, pods, round_number, held",
    {
        "an etcd of the user's: ask": ("mine:2379", Connectivity.CONNECTING, [], 3, True),
        "... which is unreachable": ("mine:2379", Connectivity.UNREACHABLE, [], 3, True),
        "... which denies access": ("mine:2379", Connectivity.REACHABLE, [], 3, False),
        "never trained: pods do not wait for etcd": ("mine:2379", Connectivity.CONNECTING, [], 0, False),
        "a pod is there: its end will tell": ("mine:2379", Connectivity.CONNECTING, [make_pod()], 3, False),
        "its own etcd outlived the workers": ("", Connectivity.CONNECTING, ["e"], 3, True),
        "a new one, which cannot know": ("", Connectivity.CONNECTING, ["e2"], 3, False),
        "nothing is left that could know": ("", Connectivity.CONNECTING, [], 3, False),
    },
)
def test_no_worker_is_created_while_the_outcome_is_unknown(
    endpoint: str, connectivity: Connectivity, pods: list[Pod | str], round_number: int, held: bool
) -> None:
    known = RendezvousStatus(
        id=f"{UID}-1", backend="etcd-v3", endpoint=endpoint or OWN, store_generation=1, store_pod="e"
    )
    job = make_job(
        spec={"rendezvous": rendezvous_at(endpoint)},
        status=make_status(rendezvous=known, round=round_number, start_time=NOW),
    )
    there = [pod if isinstance(pod, Pod) else dataclasses.replace(make_pod(), uid=pod, index=-1) for pod in pods]
    assert (unknown_outcome(job, rendezvous_of(job, Settings()), make_view(connectivity), there) is not None) is held


def test_the_message_of_a_certificate_that_is_not_accepted_has_the_remedy() -> None:
    view = make_view(Connectivity.UNTRUSTED, error="its certificate is not trusted: certificate has expired")
    found = rendezvous_ready(rendezvous_of(make_job(), Settings()), view, [], was_ready=True, now=NOW)
    assert found is not None
    assert "certificate has expired" in found.message
    assert "Check the clocks of the nodes" in found.message
    assert "suspend the job and resume it" in found.message
