"""Removes what runs of deleted jobs have left in an etcd tier: no operator ran when they were deleted.

A run with keys of members keeps everything: its agents have not ended, and may be saving. It is removed later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys
from elasticjob_runtime.etcd import Delete, KeyRange, Operation
from elasticjob_runtime.etcd.protocol import decode, encode

from elasticjob_operator import names
from elasticjob_operator.etcd import responses, users
from elasticjob_operator.policies.etcd_tiers import left_over

PAGE = 1000
"""Keys in one answer of etcd."""
ROOT = KeyRange.prefix(f"{DEFAULT_PREFIX}/")
"""The keys of all runs."""


class Client(Protocol):
    async def call(self, path: str, request: dict[str, Any]) -> dict[str, Any]: ...

    async def txn(self, operations: Sequence[Operation]) -> object: ...


async def remove_leftovers(
    client: Client, uids: Callable[[], Awaitable[Collection[str]]], may_write: Callable[[], bool]
) -> list[str]:
    """The run IDs that are removed. uids: of all jobs now. Raises StoreError."""
    runs = [run async for run in _runs(client)]
    removed = []
    # The jobs are listed after the keys: a job that is created in between has none among them.
    for run in left_over(runs, await uids()) if runs else ():
        if not may_write():
            break
        keys = Keys(DEFAULT_PREFIX, run)
        if not await _page(client, KeyRange.prefix(keys.members), limit=1):
            # Keys last, as in RunWatches: while there are any, the run is found.
            await users.remove(client.call, names.run_user(run))
            await client.txn([Delete(KeyRange.prefix(keys.root))])
            removed.append(run)
    return removed


async def _runs(client: Client) -> AsyncIterator[str]:
    """The IDs of all runs with keys. What a page does not show of its last run is skipped."""
    start, last = ROOT.key, ""
    while page := await _page(client, KeyRange(start, ROOT.end), limit=PAGE):
        for key in page:
            run, slash, _ = key.removeprefix(ROOT.key).partition("/")
            start = KeyRange.prefix(f"{ROOT.key}{run}/").end if slash else f"{key}\0"
            if slash and run != last:
                last = run
                yield run


async def _page(client: Client, keys: KeyRange, limit: int) -> list[str]:
    request = {"key": encode(keys.key), "range_end": encode(keys.end), "limit": limit, "keys_only": True}
    answer = await client.call("/v3/kv/range", request)
    try:
        return [decode(kv["key"]) for kv in answer.get("kvs") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise responses.malformed(error) from error
