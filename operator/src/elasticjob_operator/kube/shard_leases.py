"""The Leases (coordination.k8s.io) of the shards that this replica leads. What to do about them is decided in
`policies.shards`; the terms are client-go's.

The holder renews a Lease every `retry_period`. When it has not succeeded for `renew_deadline`, it stops acting on the
shard, before another replica can acquire it. Durations are measured with the local clock; timestamps of other machines
are never compared with it. Every write about a job checks `may_write` first, so that a process that was frozen writes
nothing after it thaws.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from elasticjob_operator import metrics
from elasticjob_operator.kube.api_resources import LEASES
from elasticjob_operator.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.policies.shards import (
    RELEASED_SECONDS,
    SHARDS_ANNOTATION,
    WANTED_ANNOTATION,
    Decision,
    ShardLease,
    decide,
    lease_name,
    observe,
    shard_of,
    shard_of_lease,
)

log = logging.getLogger(__name__)

Json = dict[str, Any]

ATTEMPT_SECONDS = 2.0
"""An attempt that has no response by then is given up, and the next one uses another connection."""
RELEASE_ATTEMPTS = 2
"""Without an answer. A conflict is one: whoever asks for a Lease writes into it, and many may at the same time."""
STALE_PERIODS = 15
"""A replica that could not read the Leases for so many retry periods is not ready."""
DRAIN_SECONDS = 10.0
"""How long reconciliations under way may take until a Lease that another replica asks for is released, s."""
INT32 = 2**31
"""More than the API server accepts in a Lease."""
SOONEST = 0.02
"""Between two reads after something was acquired, s."""

_Errors = (ApiError, ConnectionError, TimeoutError)
_job: ContextVar[NamespacedName | None] = ContextVar("job", default=None)


@contextlib.contextmanager
def writing_about(key: NamespacedName) -> Iterator[None]:
    """What is written in here, and in tasks started in here, is about that job."""
    token = _job.set(key)
    try:
        yield
    finally:
        _job.reset(token)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTerms:
    """All in seconds, in client-go's proportions (15, 10 and 2). A leader stops acting `duration - renew_deadline`
    before its Lease can be acquired."""

    duration: float
    """An unchanged Lease may be acquired after this time."""

    @property
    def renew_deadline(self) -> float:
        """How long a leader acts after a renewal."""
        return self.duration * 2 / 3

    @property
    def retry_period(self) -> float:
        """Between two renewals, or two reads."""
        return self.duration * 2 / 15

    @property
    def attempt(self) -> float:
        """How long one request may take: several fit into the renew deadline."""
        return min(ATTEMPT_SECONDS, self.renew_deadline / 3)


@dataclasses.dataclass(slots=True)
class _Held:
    """A Lease that this replica holds."""

    lease: Json
    """As last written."""
    valid_until: float
    acquired_at: float
    acting: bool = False
    draining: asyncio.Task[None] | None = None


class ShardLeases:
    """`run` until cancelled, then `release`. `changed(shard, leads)` is called when this replica starts or stops to
    lead. `busy(shard)`: whether a reconciliation of one of its jobs is under way."""

    def __init__(
        self,
        api: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        terms: LeaseTerms,
        count: int = 1,
        changed: Callable[[int, bool], None] = lambda _shard, _leads: None,
        busy: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`api`: its writes must not check `may_write`."""
        self._client = api
        self._namespace, self._name, self.identity = namespace, name, identity
        self._terms, self.count = terms, count
        self._changed, self._busy = changed, busy
        self._held: dict[int, _Held] = {}
        self._bodies: dict[int, Json] = {}
        """As last read, by shard."""
        self._seen: dict[int, ShardLease] | None = None
        self._read_at = clock()
        self._logged = ""

    @property
    def observed_recently(self) -> bool:
        """It has read the Leases recently."""
        return clock() - self._read_at < STALE_PERIODS * self._terms.retry_period

    @property
    def led(self) -> frozenset[int]:
        """The shards that this replica leads now, also those that it is about to release."""
        now = clock()
        return frozenset(shard for shard, held in list(self._held.items()) if held.acting and now < held.valid_until)

    @property
    def status(self) -> str:
        """What was last decided, for people."""
        return self._logged

    def shard_of(self, key: NamespacedName) -> int:
        return shard_of(key, self.count)

    def leads(self, key: NamespacedName) -> bool:
        """Whether to reconcile that job."""
        held = self._held.get(self.shard_of(key))
        return held is not None and held.acting and held.draining is None and clock() < held.valid_until

    def may_write(self) -> bool:
        """No other replica can lead the job that is written about. Where that is no job: this one leads a shard."""
        key = _job.get()
        if key is None:
            return bool(self.led)
        held = self._held.get(self.shard_of(key))
        return held is not None and held.acting and clock() < held.valid_until

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_all())
            group.create_task(self._follow())

    async def release(self) -> None:
        """Releases all Leases, so that the next leader need not wait for them to expire. Nothing may be written after
        this."""
        held, self._held = {shard: held for shard, held in self._held.items() if clock() < held.valid_until}, {}
        for one in held.values():
            if one.draining is not None:
                one.draining.cancel()
        await asyncio.gather(*(self._release(shard, one) for shard, one in held.items()))

    async def _follow(self) -> None:
        """Reads all Leases and does what is decided."""
        while True:
            started = clock()
            decision = None
            try:
                decision = await self._look()
            except _Errors as error:
                self._warn("read the Leases of the shards", error)
            look_at = started + self._terms.retry_period * random.uniform(0.9, 1.1)  # noqa: S311 spreads load
            if decision is not None:
                look_at = min(look_at, clock() + SOONEST if decision.acquire else decision.look_at + SOONEST)
            await asyncio.sleep(max(SOONEST, look_at - clock()))

    async def _look(self) -> Decision | None:
        """None: it could not be carried out, as where the API server rejects the write of a Lease. Raises ApiError,
        ConnectionError or TimeoutError."""
        started = clock()
        listed = await self._request("GET", LEASES.path(self._namespace))
        found = {shard_of_lease(self._name, item["metadata"]["name"]): item for item in listed.get("items") or []}
        self._bodies = {shard: item for shard, item in found.items() if shard is not None}
        now = self._read_at = clock()
        self._seen = observe(
            self._bodies, self._seen, me=self.identity, terms=self._terms.duration, count=self.count, now=now
        )
        self._drop_expired()
        decision = decide(
            self._seen,
            me=self.identity,
            count=self.count,
            held=self._held,
            acting=[shard for shard, held in self._held.items() if held.acting],
            now=now,
            turn=2 * self._terms.retry_period,
        )
        if decision.reason != self._logged:
            self._logged = decision.reason
            log.info("Shards: %s %s", self.identity, decision.reason)
        metrics.SHARDS_DIVIDED.set(not decision.may_act)
        if decision.may_act:
            self._act(held_since=started)
        for shard in decision.release:
            self._start_release(shard)
        answered = await asyncio.gather(*(self._acquire(shard) for shard in decision.acquire))
        if decision.ask_for is not None:
            await self._ask_for(decision.ask_for)
        return decision if all(answered) else None

    def _act(self, held_since: float) -> None:
        for shard, held in list(self._held.items()):
            if not held.acting and held.acquired_at <= held_since and held.draining is None:
                held.acting = True
                log.info("Became leader of shard %d of %d: %s", shard, self.count, self.identity)
                self._changed(shard, True)

    async def _acquire(self, shard: int) -> bool:
        """False: there was no answer, or an error that another attempt at once would not change."""
        started, body = clock(), self._bodies.get(shard)
        try:
            if body is None:
                lease = await self._create(shard)
            else:
                # Of an earlier process of this name, too: this one may have another number of shards.
                former = {**body, "spec": {**(body.get("spec") or {}), "holderIdentity": ""}}
                lease = await self._update(shard, former, holder=self.identity, duration=self._terms.duration)
        except ConflictError:
            return True  # another replica was faster
        except _Errors as error:
            self._warn(f"acquire the Lease of shard {shard}", error)
            return False
        self._held[shard] = _Held(lease, started + self._terms.renew_deadline, clock())
        return True

    async def _ask_for(self, shard: int) -> None:
        body = self._bodies[shard]
        metadata = body["metadata"]
        annotations = {**(metadata.get("annotations") or {}), WANTED_ANNOTATION: self.identity}
        body = {**body, "metadata": {**metadata, "annotations": annotations}}
        with contextlib.suppress(*_Errors):  # it was renewed in between: asked for again after the next read
            await self._request("PUT", self._path(shard), body=body)

    async def _renew_all(self) -> None:
        started = clock()
        while True:
            period = self._terms.retry_period * random.uniform(0.9, 1.1)  # noqa: S311 spreads load
            await asyncio.sleep(max(0.0, started + period - clock()))
            started = clock()
            self._drop_expired()
            await asyncio.gather(*(self._renew(shard, held) for shard, held in list(self._held.items())))
            self._drop_expired()

    async def _renew(self, shard: int, held: _Held) -> None:
        """Only in time: a renewal that succeeds later would surprise those who have seen the Lease expire."""
        started = clock()
        limit = held.valid_until - started
        try:
            lease = await self._update(
                shard, held.lease, holder=self.identity, duration=self._terms.duration, limit=limit
            )
        except (ConflictError, NotFoundError):
            if not await self._still_holds(shard, held):
                self._lose(shard, held, "another replica, or someone else, has changed its Lease")
        except _Errors as error:
            self._warn(f"renew the Lease of shard {shard}", error)
        else:
            if clock() < held.valid_until:
                held.lease, held.valid_until = lease, started + self._terms.renew_deadline

    async def _still_holds(self, shard: int, held: _Held) -> bool:
        """After a conflict: perhaps with one who asks for it, or ourselves, when the response to a renewal was lost."""
        try:
            held.lease = await self._request("GET", self._path(shard))
        except NotFoundError:
            return False
        except _Errors:
            return clock() < held.valid_until
        return bool((held.lease.get("spec") or {}).get("holderIdentity") == self.identity)

    def _drop_expired(self) -> None:
        for shard, held in list(self._held.items()):
            if clock() >= held.valid_until:
                self._lose(shard, held, "its Lease was not renewed in time")

    def _lose(self, shard: int, held: _Held, why: str) -> None:
        if self._held.get(shard) is not held:
            return
        del self._held[shard]
        if held.draining is not None:
            held.draining.cancel()
        log.error("No longer the leader of shard %d of %d: %s", shard, self.count, why)
        self._on_stopped(shard, held)

    def _on_stopped(self, shard: int, held: _Held) -> None:
        if held.acting:
            held.acting = False
            self._changed(shard, False)

    def _start_release(self, shard: int) -> None:
        held = self._held.get(shard)
        if held is not None and held.draining is None:
            held.draining = asyncio.create_task(self._drain(shard, held), name=f"release of shard {shard}")

    async def _drain(self, shard: int, held: _Held) -> None:
        """Ends what is under way, and releases the Lease, which is renewed meanwhile."""
        deadline = clock() + DRAIN_SECONDS
        while held.acting and self._busy(shard) and clock() < deadline:  # noqa: ASYNC110  the queue has no event for it
            await asyncio.sleep(SOONEST)
        cut = held.acting and self._busy(shard)
        self._on_stopped(shard, held)
        if cut:  # a request may be on its way, as when a Lease expires
            await asyncio.sleep(self._terms.duration - self._terms.renew_deadline)
        if self._held.get(shard) is held:
            del self._held[shard]
            await self._release(shard, held)

    async def _release(self, shard: int, held: _Held) -> None:
        errors = 0
        while errors < RELEASE_ATTEMPTS:
            try:
                await self._update(shard, held.lease, holder="", duration=RELEASED_SECONDS)
            except (ConflictError, NotFoundError):  # a last renewal has arrived, or others have asked for it
                if clock() >= held.valid_until or not await self._still_holds(shard, held):
                    return
            except _Errors as error:
                errors += 1
                self._warn(f"release the Lease of shard {shard}", error)
            else:
                log.info("Released the Lease of shard %d", shard)
                return

    async def _create(self, shard: int) -> Json:
        body = {
            "apiVersion": LEASES.group_version,
            "kind": LEASES.kind,
            **self._changed_lease({"metadata": {"name": lease_name(self._name, shard)}}, self.identity),
        }
        return await self._request("POST", LEASES.path(self._namespace), body=body)

    async def _update(
        self, shard: int, lease: Json, *, holder: str, duration: float, limit: float = ATTEMPT_SECONDS
    ) -> Json:
        body = {**lease, **self._changed_lease(lease, holder, duration)}
        return await self._request("PUT", self._path(shard), body=body, limit=limit)

    async def _request(
        self, method: str, path: str, *, body: Json | None = None, limit: float = ATTEMPT_SECONDS
    ) -> Json:
        """Raises ApiError, ConnectionError or TimeoutError."""
        limit = max(0.01, min(limit, self._terms.attempt))
        try:
            async with asyncio.timeout(limit):
                return await self._client.request(method, path, body=body)
        except TimeoutError as error:
            raise TimeoutError(f"no response within {limit:.1f} s") from error

    def _changed_lease(self, lease: Json, holder: str, duration: float | None = None) -> Json:
        """metadata and spec."""
        before, now, metadata = lease.get("spec") or {}, _now(), lease["metadata"]
        changes = before.get("holderIdentity") != holder
        annotations = {**(metadata.get("annotations") or {}), SHARDS_ANNOTATION: str(self.count)}
        if changes and holder:
            annotations.pop(WANTED_ANNOTATION, None)
        return {
            "metadata": {**metadata, "annotations": annotations},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._terms.duration if duration is None else duration)),
                "renewTime": now,
                "acquireTime": now if changes else before.get("acquireTime", now),
                "leaseTransitions": (int(before.get("leaseTransitions") or 0) + (changes and bool(holder))) % INT32,
            },
        }

    def _path(self, shard: int) -> str:
        return LEASES.path(self._namespace, lease_name(self._name, shard))

    def _warn(self, what: str, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        log.warning("Cannot %s (%s/%s): %s", what, self._namespace, lease_name(self._name, 0), text)


def clock() -> float:
    """Advances while this process, or its machine, sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> str:
    """metav1.MicroTime"""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
