"""Objects whose labels were removed by hand: a watch by label reports them as deleted."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.kube.adoption import Adoption
from elasticjob_operator.kube.api_resources import WORKLOADS
from elasticjob_operator.kube.cache import ObjectCache
from elasticjob_operator.kube.client import ConflictError, NotFoundError, RejectedError
from elasticjob_operator.kube.convert import job_of
from elasticjob_operator.kube.queue_convert import workload_of
from elasticjob_operator.kube.writer import Writer
from elasticjob_operator.planning import CreateObject
from elasticjob_operator.queue_state import Workload
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import UID, make_job
from tests.unit.operator.waiting import until

JOB, PART = "elasticjob.dev/job-name", "elasticjob.dev/workload-part"
HASH = "elasticjob.dev/template-hash"
OWNED = {"app.kubernetes.io/managed-by": "elasticjob-operator"}


def base(version: int, labels: dict[str, str]) -> dict[str, Any]:
    owner = {"kind": "ElasticJob", "uid": UID, "controller": True}
    metadata = {"name": "digits", "namespace": "ml", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels, "ownerReferences": [owner]}}


class Server:
    """Has one Workload."""

    def __init__(self, found: dict[str, Any] | None, *, rejects: bool = False) -> None:
        self._found = found
        self._rejects = rejects
        self.patched: list[dict[str, str]] = []
        self.reads = 0

    async def request(self, method: str, _: str, **more: Any) -> dict[str, Any]:
        if self._found is None:
            raise NotFoundError(404, "NotFound", "not found")
        if method == "PATCH":
            if self._rejects:
                raise RejectedError(403, "Forbidden", "not allowed")
            self.patched.append(more["body"]["metadata"]["labels"])
            return base(9, more["body"]["metadata"]["labels"])
        if method == "POST":
            raise ConflictError(409, "AlreadyExists", "exists")
        self.reads += 1
        return self._found


def cached() -> ObjectCache[Workload]:
    store: ObjectCache[Workload] = ObjectCache(workload_of, job_of, lambda _: None)
    store.put(base(1, {JOB: "digits", PART: "base"}))
    return store


async def test_workload_without_its_labels_gets_them_back_and_is_known_meanwhile() -> None:
    server, store = Server(base(2, {})), cached()
    assert Adoption(server, WORKLOADS, store).may_exist(base(2, {JOB: "digits", PART: "base"}))  # type: ignore[arg-type]
    await until(lambda: server.patched)
    assert server.patched == [{JOB: "digits", PART: "base", **OWNED}]
    assert len(store) == 1


@pytest.mark.parametrize("server", [Server(None), Server(base(2, {}), rejects=True)], ids=["gone", "refused"])
async def test_what_is_known_of_a_workload_is_forgotten_if_it_is_gone_or_refuses_labels(server: Server) -> None:
    store = cached()
    assert Adoption(server, WORKLOADS, store).may_exist(base(2, {JOB: "digits", PART: "base"}))  # type: ignore[arg-type]
    await until(lambda: not len(store))


@pytest.mark.parametrize(
    ("labels", "patched", "says"),
    [
        ({JOB: "digits", PART: "base", HASH: "h0"}, [], ""),
        ({HASH: "h0"}, [{JOB: "digits", PART: "base"}], ""),
        ({JOB: "other", PART: "base"}, [{JOB: "digits", PART: "base"}], ""),
        ({}, [], "cannot be given them back"),
    ],
    ids=["complete", "removed", "another job's", "refused"],
)
async def test_own_workload_that_is_in_the_way_of_a_create_gets_its_labels_back(
    labels: dict[str, str], patched: list[dict[str, str]], says: str
) -> None:
    """No watch reports it, and each create would conflict with it."""
    server = Server(base(2, labels), rejects=bool(says))
    known: list[Any] = []
    writer = Writer(server, lambda _, body: known.append(body), None, None)  # type: ignore[arg-type]
    metadata = {"name": "digits", "labels": {JOB: "digits", PART: "base", HASH: "h1"}}
    action = CreateObject(kind=Kind.WORKLOAD, body={"metadata": metadata}, reason="test")
    result = await writer._create(make_job(), WORKLOADS, action)
    assert server.patched == patched
    assert says in result.rejection
    assert bool(result.rejection) is bool(says), "so that it is tried again later, not at once"
    assert len(known) == (0 if says else 1)
