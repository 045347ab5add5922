"""Users and roles of runs in a shared etcd: one user and one role of the same name for each run.

A user is created before it gets its role: one that has its role was created completely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys
from elasticjob_runtime.etcd import Denied, KeyRange, StoreError
from elasticjob_runtime.etcd.protocol import encode

from elasticjob_operator.names import NamespacedName

Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Path and request of a call to etcd -> its response. Raises StoreError."""

CREATIONS = 2
"""Concurrent creations of users: etcd spends 75 ms of CPU on each password, and the heartbeats of all jobs wait."""
_ROOT = "root"
"""Name of the user and of the role without which etcd enables no authentication."""
_EXISTS, _NOT_FOUND = "already exists", "not found"


class RunUsers:
    """`call`: like `Call`, to the etcd of a job. Methods raise StoreError."""

    def __init__(self, call: Callable[[NamespacedName, str, dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        self._call = call
        self._creations = asyncio.Semaphore(CREATIONS)

    async def is_complete(self, job: NamespacedName, user: str) -> bool:
        return await is_complete(self._of(job), user)

    async def create(self, job: NamespacedName, user: str, password: str, run_id: str) -> None:
        async with self._creations:
            await create(self._of(job), user, password, KeyRange.prefix(Keys(DEFAULT_PREFIX, run_id).root))

    async def remove(self, job: NamespacedName, user: str) -> None:
        await remove(self._of(job), user)

    def _of(self, job: NamespacedName) -> Call:
        async def call(path: str, request: dict[str, Any]) -> dict[str, Any]:
            try:
                return await self._call(job, path, request)
            except Denied as error:
                raise Denied(f"{error}: to create users, the operator's user needs the role root") from error

        return call


async def is_complete(call: Call, user: str) -> bool:
    try:
        found = await call("/v3/auth/user/get", {"name": user})
    except StoreError as error:
        if _NOT_FOUND in str(error):
            return False
        raise
    return user in (found.get("roles") or [])


async def create(call: Call, user: str, password: str, keys: KeyRange) -> None:
    """A user who may read and write `keys` and nothing else. It must not exist; its role may."""
    permission = {"permType": "READWRITE", "key": encode(keys.key), "range_end": encode(keys.end)}
    await _unless(_EXISTS, call("/v3/auth/role/add", {"name": user}))
    await call("/v3/auth/role/grant", {"name": user, "perm": permission})
    await call("/v3/auth/user/add", {"name": user, "password": password})
    await call("/v3/auth/user/grant", {"user": user, "role": user})


async def enable(call: Call, password: str) -> None:
    """Turns authentication on in an etcd that has none yet, with a user root and no other: until now, anyone could
    create some. May be repeated whenever it was interrupted."""
    for user in (await call("/v3/auth/user/list", {})).get("users") or []:
        await call("/v3/auth/user/delete", {"name": user})
    await call("/v3/auth/user/add", {"name": _ROOT, "password": password})
    await _unless(_EXISTS, call("/v3/auth/role/add", {"name": _ROOT}))
    await call("/v3/auth/user/grant", {"user": _ROOT, "role": _ROOT})
    await call("/v3/auth/enable", {})


async def remove(call: Call, user: str) -> None:
    """The user and its role, where they exist."""
    await _unless(_NOT_FOUND, call("/v3/auth/user/delete", {"name": user}))
    await _unless(_NOT_FOUND, call("/v3/auth/role/delete", {"role": user}))


async def _unless(words: str, calling: Awaitable[dict[str, Any]]) -> None:
    """An error with these words means that there is nothing to do."""
    try:
        await calling
    except StoreError as error:
        if words not in str(error):
            raise
