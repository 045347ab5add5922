"""Secrets with credentials for etcds: those of others are read by name, those of runs are created with their user."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any, Protocol

from elasticjob_api import ElasticJob
from elasticjob_runtime.etcd import Unavailable

from elasticjob_operator import names
from elasticjob_operator.credentials import CredentialsUnusable, EtcdCredentials
from elasticjob_operator.kube.api_resources import SECRETS
from elasticjob_operator.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, RejectedError
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import CreateRunUser

PASSWORD_BYTES = 32
"""Random bytes in a password of a run. etcd's bcrypt uses at most 72 characters of it; these are 43."""


class EtcdUsers(Protocol):
    """Users in the etcd of a job. Methods raise StoreError."""

    async def is_complete(self, job: NamespacedName, user: str) -> bool: ...

    async def create(self, job: NamespacedName, user: str, password: str, run_id: str) -> None: ...

    async def remove(self, job: NamespacedName, user: str) -> None: ...


class EtcdSecrets:
    """`shared`: the Secret for the shared etcd, which must have a user. `users`: in that etcd."""

    def __init__(self, api: KubeClient, shared: NamespacedName | None, users: EtcdUsers) -> None:
        self._client = api
        self._shared = shared
        self._users = users

    async def read(self, secret: NamespacedName) -> EtcdCredentials:
        """Raises CredentialsUnusable, or Unavailable if the API server does not respond."""
        source = f"Secret {'/'.join(secret)}"
        try:
            found = await self._client.request("GET", SECRETS.path(*secret))
        except NotFoundError as error:
            raise CredentialsUnusable(f"{source} does not exist: create it") from error
        except RejectedError as error:
            raise CredentialsUnusable(
                f"the operator may not read {source}: give it a name from the chart's rendezvous.jobSecretNames, or "
                "grant `get` on it to the operator's service account"
            ) from error
        except (ApiError, ConnectionError) as error:
            raise Unavailable(f"{source} cannot be read: {error}") from error
        return EtcdCredentials.parse(source, found.get("data") or {}, needs_user=secret == self._shared)

    async def create_run_user(self, job: ElasticJob, action: CreateRunUser) -> bool:
        """False: user and Secret exist. Whenever this is interrupted, the user is not complete: then both are created
        again, as the password that was lost is known to no one. Raises StoreError, ApiError, ConnectionError."""
        key = (job.namespace, job.name)
        if await self._users.is_complete(key, action.user) and await self._exists(job, action):
            return False
        credentials = await self.read(action.credentials)
        await self._users.remove(key, action.user)
        if action.earlier_user:
            await self._users.remove(key, action.earlier_user)
        path = SECRETS.path(job.namespace)
        with contextlib.suppress(NotFoundError):
            await self._client.request("DELETE", f"{path}/{action.body['metadata']['name']}")
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        body = {**action.body, "stringData": credentials.for_worker_pods(action.user, password)}
        await self._client.request("POST", path, query={"fieldManager": names.FIELD_MANAGER}, body=body)
        await self._users.create(key, action.user, password, action.run_id)
        return True

    async def _exists(self, job: ElasticJob, action: CreateRunUser) -> bool:
        """By a dry-run create: the operator may not read Secrets of jobs."""
        body: dict[str, Any] = {**action.body, "stringData": {}}
        try:
            await self._client.request("POST", SECRETS.path(job.namespace), query={"dryRun": "All"}, body=body)
        except ConflictError:
            return True
        return False
