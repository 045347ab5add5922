"""Creates and deletes the Secrets of jobs, with what must exist for them: certificates, and users in a shared etcd."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from elasticjob_api import ElasticJob
from elasticjob_runtime.etcd import StoreError

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import SECRETS
from elasticjob_operator.kube.apply_result import ApplyResult
from elasticjob_operator.kube.certificates import CertificatesUnavailable
from elasticjob_operator.kube.client import (
    ApiError,
    ConflictError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    NotLeaderError,
    RejectedError,
    RequestTimeoutError,
)
from elasticjob_operator.kube.etcd_secrets import EtcdSecrets
from elasticjob_operator.planning import CreateCertificates, CreateRunUser, DeleteCertificates

log = logging.getLogger(__name__)

KNOWN_SECONDS, MAX_KNOWN = 60.0, 4096
"""How long a Secret with certificates is not created again, s, while its StatefulSet cannot be created; and how many
are remembered."""

MakeCertificates = Callable[[Sequence[str], Sequence[str]], Awaitable[dict[str, str]]]
"""DNS names of a server for clients, and for other members -> the data of a Secret. Raises CertificatesUnavailable."""


class SecretWriter:
    """Each method executes one action. Raises ApiError or ConnectionError for a temporary failure."""

    def __init__(self, api: KubeClient, make_certificates: MakeCertificates, etcd_secrets: EtcdSecrets) -> None:
        self._client = api
        self._make_certificates = make_certificates
        self._etcd_secrets = etcd_secrets
        self._seen: dict[str, float] = {}
        """By path, monotonic times at which Secrets with certificates were known to exist, the latest last."""

    async def create_certificates(self, job: ElasticJob, action: CreateCertificates) -> ApplyResult:
        kinds, path = frozenset({SECRETS.kind}), SECRETS.path(job.namespace, action.body["metadata"]["name"])
        if time.monotonic() - self._seen.get(path, -KNOWN_SECONDS) < KNOWN_SECONDS:
            return ApplyResult(created=kinds)
        try:
            body = {**action.body, "stringData": await self._make_certificates(action.dns_names, action.peer_names)}
            query = {"fieldManager": names.FIELD_MANAGER}
            await self._client.request("POST", SECRETS.path(job.namespace), query=query, body=body)
        except ConflictError:
            self._remember(path)  # created by an operator that was killed before it created the StatefulSet
            return ApplyResult(created=kinds)
        except NamespaceTerminatingError:
            raise
        except (ApiError, CertificatesUnavailable, RequestTimeoutError) as error:
            return ApplyResult(rejection=str(error), rejected_kinds=kinds)
        self._remember(path)
        return ApplyResult(created=kinds, done=(action,))

    def _remember(self, path: str) -> None:
        self._seen.pop(path, None)
        self._seen[path] = time.monotonic()
        while len(self._seen) > MAX_KNOWN:
            del self._seen[next(iter(self._seen))]

    async def create_run_user(self, job: ElasticJob, action: CreateRunUser) -> ApplyResult:
        kinds = frozenset({SECRETS.kind})
        try:
            created = await self._etcd_secrets.create_run_user(job, action)
        except (NamespaceTerminatingError, NotLeaderError):
            raise
        except (ApiError, RequestTimeoutError, StoreError) as error:
            return ApplyResult(rejection=str(error), rejected_kinds=kinds)
        return ApplyResult(created=kinds, done=(action,) if created else ())

    async def delete_certificates(self, job: ElasticJob, action: DeleteCertificates) -> ApplyResult:
        self._seen.pop(SECRETS.path(job.namespace, action.name), None)
        try:
            await self._client.request("DELETE", SECRETS.path(job.namespace, action.name))
        except (NotFoundError, ConflictError):
            return ApplyResult()
        except RejectedError as error:
            # It goes with the job.
            log.warning("Cannot delete Secret %s: %s", action.name, error, extra={"reason": action.reason})
            return ApplyResult()
        return ApplyResult(done=(action,))
