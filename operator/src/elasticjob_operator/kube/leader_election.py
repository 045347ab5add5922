"""Leader election through a Lease (coordination.k8s.io), with client-go's terms.

The leader renews the Lease every `retry_period`. When it has not succeeded for `renew_deadline`, it stops acting,
before another operator can take over. A standby reads the Lease every `retry_period` and acquires one that has not
changed for its whole duration.

Durations are measured with the local clock; timestamps of other machines are never compared with it. The client
library's own leader election is not used: it measures with the wall clock and from the response instead of the request,
does not release the Lease, and lets a process that was frozen act for a moment after it thaws. Here every write checks
`is_leader` first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import random
import time
from typing import Any

from elasticjob_operator.kube.api_resources import LEASES
from elasticjob_operator.kube.client import ApiError, ConflictError, KubeClient, NotFoundError

log = logging.getLogger(__name__)

Json = dict[str, Any]

ATTEMPT_SECONDS = 2.0
"""An attempt that has no response by then is given up, and the next one uses another connection."""
RELEASE_ATTEMPTS = 2
STALE_PERIODS = 15
"""A standby that could not read the Lease for so many retry periods is not ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElectionConfig:
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
        """Between two renewals, or two reads of a standby."""
        return self.duration * 2 / 15

    @property
    def attempt(self) -> float:
        """How long one request may take: several fit into the renew deadline."""
        return min(ATTEMPT_SECONDS, self.renew_deadline / 3)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ObservedLease:
    """The Lease as last seen to change."""

    version: str
    holder: str
    duration: float
    since: float
    """By the local clock."""


def observe_lease(lease: Json, before: ObservedLease | None, now: float) -> ObservedLease:
    """`now`: local clock, s. The same observation while the Lease is unchanged."""
    version, spec = str(lease["metadata"]["resourceVersion"]), lease.get("spec") or {}
    if before is not None and before.version == version:
        return before
    duration = float(spec.get("leaseDurationSeconds") or 0)
    return ObservedLease(version=version, holder=spec.get("holderIdentity") or "", duration=duration, since=now)


def may_acquire(seen: ObservedLease, now: float) -> bool:
    """Released, or not renewed for its whole duration."""
    return not seen.holder or now - seen.since > seen.duration


class LeaderElector:
    """`acquire`, then `renew` for as long as this operator acts, then `release`."""

    def __init__(self, api: KubeClient, namespace: str, name: str, identity: str, config: LeaderElectionConfig) -> None:
        """`client`: its writes must not check `is_leader`."""
        self._client = api
        self._namespace, self._name = namespace, name
        self.identity = identity
        self._config = config
        self._observed: ObservedLease | None = None
        self._lease: Json = {}
        self._valid_until = float("-inf")
        self._observed_at = _clock()

    @property
    def observed_recently(self) -> bool:
        """It has read the Lease recently."""
        return _clock() - self._observed_at < STALE_PERIODS * self._config.retry_period

    def is_leader(self) -> bool:
        """No other operator can hold the Lease now."""
        return _clock() < self._valid_until

    async def acquire(self) -> None:
        """Returns once this operator holds the Lease."""
        logged = ""
        while True:
            started = _clock()
            try:
                if await self._try_acquire():
                    log.info("Became leader: %s acquired the Lease %s/%s", self.identity, self._namespace, self._name)
                    return
                holder = self._observed.holder if self._observed else ""
                if holder != logged:
                    log.info("Standing by: the leader is %s", holder)
                    logged = holder
            except (ApiError, ConnectionError, TimeoutError) as error:
                self._warn("acquire", error)
            await self._pause(started)

    async def renew(self) -> None:
        """Renews the Lease. Returns when it is lost, or was not renewed in time."""
        started = _clock()
        while True:
            await self._pause(started)
            started = _clock()
            try:
                await self._renew_once()
            except ConflictError:
                if not await self._still_holds():
                    self._valid_until = float("-inf")
                    log.error("Another operator has acquired the Lease %s/%s", self._namespace, self._name)
                    return
            except (ApiError, ConnectionError, TimeoutError) as error:
                self._warn("renew", error)
            if not self.is_leader():
                log.error("The Lease %s/%s was not renewed in time", self._namespace, self._name)
                return

    async def release(self) -> None:
        """Releases the Lease, so that the next leader need not wait for it to expire. Nothing may be written after
        this."""
        if not self.is_leader():
            return
        self._valid_until = float("-inf")
        for _ in range(RELEASE_ATTEMPTS):
            try:
                await self._update(holder="", duration=1)
            except ConflictError as error:  # a renewal that was cancelled has arrived
                self._warn("release", error)
                if not await self._still_holds():
                    return
            except (ApiError, ConnectionError, TimeoutError) as error:
                self._warn("release", error)
            else:
                log.info("Released the Lease %s/%s", self._namespace, self._name)
                return

    async def _try_acquire(self) -> bool:
        started = _clock()
        try:
            self._lease = await self._request("GET", self._path)
        except NotFoundError:
            self._lease = {"metadata": {"name": self._name, "namespace": self._namespace}}
            return await self._claim(started, create=True)
        self._observed_at = _clock()
        self._observed = observe_lease(self._lease, self._observed, self._observed_at)
        if self._observed.holder != self.identity and not may_acquire(self._observed, self._observed_at):
            return False
        return await self._claim(started)

    async def _claim(self, started: float, *, create: bool = False) -> bool:
        try:
            await (self._create() if create else self._update(holder=self.identity, duration=self._config.duration))
        except ConflictError:
            return False  # another operator was faster
        self._observed_at = _clock()
        self._valid_until = started + self._config.renew_deadline
        return True

    async def _renew_once(self) -> None:
        started = _clock()
        await self._update(holder=self.identity, duration=self._config.duration)
        self._observed_at = _clock()
        self._valid_until = started + self._config.renew_deadline

    async def _still_holds(self) -> bool:
        """After a conflict: perhaps with ourselves, when the response to a renewal was lost."""
        try:
            self._lease = await self._request("GET", self._path)
        except (ApiError, ConnectionError, TimeoutError):
            return self.is_leader()
        return bool((self._lease.get("spec") or {}).get("holderIdentity") == self.identity)

    async def _create(self) -> None:
        body = {
            "apiVersion": LEASES.group_version,
            "kind": LEASES.kind,
            **self._lease,
            "spec": self._spec(self.identity, self._config.duration),
        }
        self._lease = await self._request("POST", LEASES.path(self._namespace), body=body)

    async def _update(self, *, holder: str, duration: float) -> None:
        spec = self._spec(holder, duration)
        self._lease = await self._request("PUT", self._path, body={**self._lease, "spec": spec})

    async def _request(self, method: str, path: str, *, body: Json | None = None) -> Json:
        """Raises ApiError, ConnectionError or TimeoutError."""
        limit = self._config.attempt
        if self.is_leader():
            limit = min(limit, max(0.01, self._valid_until - _clock()))
        try:
            async with asyncio.timeout(limit):
                return await self._client.request(method, path, body=body)
        except TimeoutError as error:
            raise TimeoutError(f"no response within {limit:.1f} s") from error

    def _spec(self, holder: str, duration: float) -> Json:
        before, now = self._lease.get("spec") or {}, _now()
        changes = before.get("holderIdentity") != holder
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(duration)),
            "renewTime": now,
            "acquireTime": now if changes else before.get("acquireTime", now),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (1 if changes and holder else 0),
        }

    @property
    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)

    def _warn(self, what: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        log.warning("Cannot %s the Lease %s/%s: %s", what, self._namespace, self._name, text)

    async def _pause(self, started: float) -> None:
        """Until the next attempt is due: after a slow one, that is at once."""
        period = self._config.retry_period * random.uniform(0.9, 1.1)  # noqa: S311 spreads load
        await asyncio.sleep(max(0.0, started + period - _clock()))


def _clock() -> float:
    """Advances while this process, or its machine, sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> str:
    """metav1.MicroTime"""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
