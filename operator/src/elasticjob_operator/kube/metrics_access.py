"""Who may read /metrics: a user that the API server lets `get` the path /metrics, by the bearer token of the request.

The token is checked with a TokenReview and the user with a SubjectAccessReview, as kube-rbac-proxy does. Needs the
ClusterRole system:auth-delegator.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from elasticjob_operator.kube.client import ApiError, KubeClient

PATH = "/metrics"
ALLOWED_SECONDS, DENIED_SECONDS = 60.0, 10.0
"""How long an answer counts. A scrape every 30 s asks the API server once a minute."""
REVIEW_SECONDS = 8.0
"""Prometheus gives up after 10 s by default."""
CONCURRENT_REVIEWS = 4
MAX_TOKENS = 256
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_BEARER = "bearer"


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """The answer to one request."""

    status: HTTPStatus
    message: str = ""

    @property
    def allowed(self) -> bool:
        return self.status is HTTPStatus.OK


_NO_TOKEN = Access(HTTPStatus.UNAUTHORIZED, "send a token of a service account: Authorization: Bearer TOKEN")
_INVALID = Access(HTTPStatus.UNAUTHORIZED, "the API server does not accept this token")


class AnswerCache:
    """Answers by token, of which only the hash is kept. The oldest go first. `clock`: monotonic, s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[bytes, tuple[float, Access]] = {}

    def get(self, token: str) -> Access | None:
        expires, access = self._answers.get(_key(token), (0.0, _INVALID))
        return access if self._clock() < expires else None

    def put(self, token: str, access: Access) -> None:
        key = _key(token)
        self._answers.pop(key, None)
        while len(self._answers) >= MAX_TOKENS:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._clock() + (ALLOWED_SECONDS if access.allowed else DENIED_SECONDS), access)


class MetricsAccess:
    """`check` is called for each request."""

    def __init__(self, api: KubeClient) -> None:
        self._client = api
        self._cache = AnswerCache()
        self._reviews = asyncio.Semaphore(CONCURRENT_REVIEWS)

    async def check(self, authorization: str) -> Access:
        """`authorization`: the header. Without an answer of the API server, access is denied."""
        token = token_of(authorization)
        if not token:
            return _NO_TOKEN
        if (known := self._cache.get(token)) is not None:
            return known
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._reviews:
                access = await self._review(token)
        except (ApiError, ConnectionError, TimeoutError) as error:
            reason = str(error) or "no answer"
            return Access(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot ask the API server about this token: {reason}")
        self._cache.put(token, access)
        return access

    async def _review(self, token: str) -> Access:
        said = await self._create(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not said.get("authenticated"):
            return _INVALID
        user = said.get("user") or {}
        found = await self._create(
            _ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", access_review_of(user)
        )
        if found.get("allowed"):
            return Access(HTTPStatus.OK)
        return Access(HTTPStatus.FORBIDDEN, f"{user.get('username')} may not get {PATH}")

    async def _create(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The status of a review."""
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        answer = await self._client.request("POST", path, body=body)
        return answer.get("status") or {}


def token_of(authorization: str) -> str:
    """Empty: there is none.

    >>> token_of("Bearer abc"), token_of("Basic abc"), token_of("")
    ('abc', '', '')
    """
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == _BEARER else ""


def access_review_of(user: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a SubjectAccessReview. `user`: from a TokenReview."""
    return {
        "user": user.get("username", ""),
        "uid": user.get("uid", ""),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": PATH, "verb": "get"},
    }


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
