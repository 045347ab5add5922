"""How many requests a plan costs an API server that rejects, hangs or responds, and how that affects other jobs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from elasticjob_api import ElasticJob
from elasticjob_operator.kube.client import ApiError, ConflictError, NotFoundError, RejectedError, _no_answer
from elasticjob_operator.kube.writer import CREATES_PER_JOB, DRY_RUNS_PER_NAMESPACE, REMOVALS_PER_JOB, Writer
from elasticjob_operator.planning import (
    Action,
    CreateCertificates,
    CreateObject,
    CreatePod,
    DeletePod,
    DryRunCreate,
    PatchObject,
)
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import TEMPLATE
from tests.unit.operator.waiting import until

QUOTA = RejectedError(403, "Forbidden", "exceeded quota: pods, requested: pods=1, used: pods=10, limited: pods=10")
POLICY = "pods \"w-0\" is forbidden: ValidatingAdmissionPolicy 'deny' with binding 'deny' denied request: not here"
WEBHOOK = ApiError(
    500, "InternalError", 'Internal error occurred: failed calling webhook "w.example": context deadline exceeded'
)


class Server:
    """Responds to creates as `create(number)` returns; requests wait while they are `held`."""

    def __init__(self, create: Callable[[int], Exception | None] = lambda _: None) -> None:
        self._create = create
        self.requests: list[tuple[str, str]] = []
        self.under_way = 0
        self.peaks: list[int] = []
        self.gates: dict[str, asyncio.Event] = {}
        """By a part of the path."""
        self._creates = itertools.count(1)

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.requests.append((method, path))
        self.under_way += 1
        self.peaks.append(self.under_way)
        try:
            await asyncio.sleep(0)
            for part, gate in self.gates.items():
                if part in path:
                    await gate.wait()
            error = self._create(next(self._creates)) if method == "POST" else None
            if error is not None:
                raise error
        finally:
            self.under_way -= 1
        return {"metadata": {"name": "x", "namespace": "ml", "uid": "z", "resourceVersion": "5"}}

    def count(self, method: str = "POST") -> int:
        return sum(request[0] == method for request in self.requests)


def job(name: str = "digits", namespace: str = "ml") -> ElasticJob:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    return ElasticJob.parse({"metadata": metadata, "spec": {"workers": {"replicas": 1, "template": TEMPLATE}}})


def creates(count: int) -> list[Action]:
    like: dict[str, Any] = {"metadata": {"labels": {}}, "spec": {}}
    return [
        CreatePod(job="digits", like=like, index=number, name=f"w-{number}", reason="wanted") for number in range(count)
    ]


async def make_certificates(dns_names: Sequence[str], peers: Sequence[str]) -> dict[str, str]:
    return {"server.crt": ",".join(dns_names), "peer-server.crt": ",".join(peers)}


def writer(server: Server) -> Writer:
    return Writer(server, lambda *_: None, make_certificates, None)  # type: ignore[arg-type]


async def test_an_exhausted_quota_costs_few_requests_and_then_one_per_reconciliation() -> None:
    server = Server(lambda number: QUOTA if number > 10 else None)
    writes = writer(server)
    applied = await writes.apply(job(), creates(2000))
    assert applied.rejection == str(QUOTA)
    assert len(applied.done) == 10
    assert server.count() <= 2 * 10 + 2
    before = server.count()
    await writes.apply(job(), creates(1990), rejected=True)
    assert server.count() == before + 1


async def test_successful_creates_double_up_to_the_limit() -> None:
    server = Server()
    applied = await writer(server).apply(job(), creates(500))
    assert len(applied.done) == 500
    assert server.count() == 500
    assert max(server.peaks) == CREATES_PER_JOB
    assert server.peaks[0] == 1
    assert server.peaks.index(CREATES_PER_JOB) < 4 * CREATES_PER_JOB, "within a few answers"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (WEBHOOK, "failed calling webhook"),
        (
            _no_answer("POST", "/pods", TimeoutError()),
            "no answer within 35 s: an admission webhook may hang",
        ),
    ],
)
async def test_a_failing_webhook_is_reported_and_called_once(error: Exception, words: str) -> None:
    server = Server(lambda _: error)
    applied = await writer(server).apply(job(), creates(100))
    assert words in applied.rejection
    assert applied.failure is None
    assert server.count() == 1
    ask = DryRunCreate(template_hash="h", body={"metadata": {"name": "w-0"}}, reason="new")
    applied = await writer(server).apply(job(), [ask])
    assert applied.admission is not None
    assert (words in applied.admission.rejection, applied.admission.invalid, applied.unanswered) == (True, False, True)


@pytest.mark.parametrize(
    ("error", "invalid"),
    [
        (RejectedError(422, "Invalid", 'Pod "w-0" is invalid: spec.containers[0].image: Required value'), True),
        (RejectedError(400, "BadRequest", 'strict decoding error: unknown field "spec.x"'), True),
        (RejectedError(422, "Invalid", POLICY), False),
        (
            RejectedError(400, "BadRequest", 'admission webhook "w.example" denied the request: no pods on Fridays'),
            False,
        ),
        (QUOTA, False),
    ],
)
async def test_only_what_is_wrong_in_the_pod_itself_makes_its_template_invalid(
    error: Exception, *, invalid: bool
) -> None:
    ask = DryRunCreate(template_hash="h", body={"metadata": {"name": "w-0"}}, reason="new")
    applied = await writer(Server(lambda _: error)).apply(job(), [ask])
    assert applied.admission is not None
    assert (applied.admission.rejection, applied.admission.invalid) == (str(error), invalid)


async def test_an_unreachable_server_is_tried_once() -> None:
    server = Server(lambda _: ConnectionError("refused"))
    applied = await writer(server).apply(job(), [*creates(100), DeletePod(name="w-200", uid="q", reason="too many")])
    assert isinstance(applied.failure, ConnectionError)
    assert applied.rejection == ""
    assert [type(item) for item in applied.done] == [DeletePod], "successful actions are reported anyway"
    assert server.count() == 1


async def test_a_delete_never_waits_behind_another_jobs_creates() -> None:
    server = Server()
    server.gates["/namespaces/big/"] = asyncio.Event()
    writes = writer(server)
    big = [asyncio.create_task(writes.apply(job(f"big-{number}", "big"), creates(2000))) for number in range(100)]
    await until(lambda: server.count() >= 64)
    await writes.apply(job("small"), [DeletePod(name="small-worker-0", uid="q", reason="failed")])
    assert server.count("DELETE") == 1
    for task in big:
        task.cancel()
    await asyncio.gather(*big, return_exceptions=True)


async def test_hanging_webhooks_hold_no_slots_of_other_jobs() -> None:
    """Any number of jobs whose last create was rejected or got no response."""
    server = Server()
    server.gates["/namespaces/broken/"] = asyncio.Event()
    writes = writer(server)
    hang = [
        asyncio.create_task(writes.apply(job(f"h-{number}", "broken"), creates(50), rejected=True))
        for number in range(200)
    ]
    await until(lambda: server.under_way == DRY_RUNS_PER_NAMESPACE)
    applied = await writes.apply(job("good"), creates(100))
    assert len(applied.done) == 100
    ask = DryRunCreate(template_hash="h", body={"metadata": {"name": "w-0"}}, reason="new")
    assert (await writes.apply(job("new", "other"), [ask])).admission is not None
    assert server.under_way == DRY_RUNS_PER_NAMESPACE
    for task in hang:
        task.cancel()
    await asyncio.gather(*hang, return_exceptions=True)


async def test_a_conflict_about_anything_but_the_name_is_retried() -> None:
    """Two creates at once meet the same quota object: 409, and there is no such pod."""

    class Quota(Server):
        async def request(self, method: str, *_: Any, **__: Any) -> dict[str, Any]:
            raise (
                ConflictError(409, "Conflict", "resourcequotas")
                if method == "POST"
                else NotFoundError(404, "NotFound", "")
            )

    assert (await writer(Quota()).apply(job(), creates(1))).missed


CERTIFICATES = CreateCertificates(body={"metadata": {"name": "c"}}, dns_names=("etcd.ml.svc",), reason="wanted")
ETCD = CreateObject(kind=Kind.STATEFUL_SET, body={"metadata": {"name": "etcd"}}, reason="wanted")


def last_of_paths(server: Server) -> list[str]:
    return [path.rpartition("/")[2] for _, path in server.requests]


async def test_certificates_are_created_before_what_mounts_them() -> None:
    server = Server()
    applied = await writer(server).apply(job(), [*creates(1), ETCD, CERTIFICATES])
    assert last_of_paths(server)[0] == "secrets"
    assert sorted(last_of_paths(server)[1:]) == ["pods", "statefulsets"]
    assert applied.created == {"Secret", "Pod", "StatefulSet"}


@pytest.mark.parametrize("first", [None, ConflictError(409, "AlreadyExists", "c")])
async def test_certificates_are_requested_once_while_their_etcd_cannot_be_created(first: Exception | None) -> None:
    server = Server(lambda number: first if number == 1 else None)
    writes = writer(server)
    for _ in range(5):
        await writes.apply(job(), [CERTIFICATES])
    assert last_of_paths(server) == ["secrets"]


async def test_certificates_that_exist_are_used() -> None:
    """An operator created them and was killed before it created the StatefulSet."""
    server = Server(lambda number: ConflictError(409, "AlreadyExists", "it exists") if number == 1 else None)
    applied = await writer(server).apply(job(), [*creates(1), ETCD, CERTIFICATES])
    assert applied.created == {"Secret", "Pod", "StatefulSet"}
    assert not applied.rejection


@pytest.mark.parametrize("error", [RejectedError(403, "Forbidden", "secrets is forbidden"), WEBHOOK])
async def test_without_certificates_nothing_that_mounts_them_is_created(error: ApiError) -> None:
    server = Server(lambda _: error)
    leaving = DeletePod(name="w-9", uid="u", reason="surplus")
    applied = await writer(server).apply(job(), [*creates(1), ETCD, leaving, CERTIFICATES])
    assert (applied.rejection, applied.rejected_kinds) == (str(error), frozenset({"Secret"}))
    assert server.count() == 1
    assert server.count("DELETE") == 1, "deletes do not wait for certificates"


@pytest.mark.parametrize(("uid", "created"), [("digits", 1), ("another", 0), ("", 0)])
async def test_no_workload_is_created_for_a_job_that_has_just_been_deleted(uid: str, created: int) -> None:
    """It would be admitted, and hold quota until the garbage collector deletes it."""
    server = Server()
    answer = server.request

    async def request(method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == "GET" and not uid:
            raise NotFoundError(404, "NotFound", "not found")
        body = await answer(method, path, **more)
        return {"metadata": {**body["metadata"], "uid": uid}}

    server.request = request  # type: ignore[method-assign]
    workload = CreateObject(kind=Kind.WORKLOAD, body={"metadata": {"name": "digits"}}, reason="the job waits")
    done = await writer(server).apply(job(), [workload])
    assert (server.count(), len(done.done), done.rejection) == (created, created, "")


@pytest.mark.parametrize(
    ("metadata", "error", "said", "created"),
    [
        ({"ownerReferences": []}, RejectedError(403, "Forbidden", POLICY), "Workload mine cannot become", set()),
        ({"ownerReferences": []}, RejectedError(422, "Invalid", POLICY), "Workload mine cannot become", set()),
        ({"ownerReferences": []}, RejectedError(422, "Invalid", "metadata.uid: field is immutable"), "", set()),
        ({"ownerReferences": []}, ConflictError(409, "Conflict", "changed"), "", set()),
        ({"ownerReferences": []}, None, "", {"Workload"}),
        ({}, RejectedError(403, "Forbidden", POLICY), "", set()),
        ({}, None, "", set()),
    ],
)
async def test_workload_that_may_not_become_the_jobs_own_is_told_as_a_rejected_create(
    metadata: dict[str, Any], error: Exception | None, said: str, created: set[str]
) -> None:
    class Refusing(Server):
        async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
            if error is not None:
                raise error
            return await super().request(method, path)

    patch = PatchObject(kind=Kind.WORKLOAD, name="mine", uid="u", patch={"metadata": metadata}, reason="test")
    result = await writer(Refusing()).apply(job(), [patch])
    assert said in result.rejection
    assert bool(said) == bool(result.rejection) == bool(result.rejected_kinds)
    assert result.created == created


async def test_thousands_of_deletes_hold_up_nothing_else() -> None:
    server = Server()
    deletes: list[Action] = [DeletePod(name=f"w-{number}", uid="z", reason="suspended") for number in range(3000)]
    before = len(asyncio.all_tasks())
    applying = asyncio.create_task(writer(server).apply(job(), deletes))
    for _ in range(20):
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) - before < 2 * REMOVALS_PER_JOB
    assert len((await applying).done) == server.count("DELETE") == 3000
    assert max(server.peaks) == REMOVALS_PER_JOB
