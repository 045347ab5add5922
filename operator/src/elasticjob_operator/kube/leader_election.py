"""Which of several operators acts: a Lease (coordination.k8s.io), held and renewed by one of them.

    hold     renew every `period`; where that fails for `deadline`, stop acting - before anybody else may begin
    follow   look every `period`; a lease that has not changed for its whole duration, by our own clock, is taken

The times of other machines are never compared with ours. Not the client library's election: its leader goes by the wall
clock, counts from the answer instead of the request, does not give the lease back, and one that was frozen goes on
acting for a moment when it thaws. Here every write asks `holds` first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import random
import time
from typing import Any

from elasticjob_operator.kube.client import Api, ApiError, ConflictError, NotFoundError
from elasticjob_operator.kube.kinds import LEASES

log = logging.getLogger(__name__)

Json = dict[str, Any]

STALE_PERIODS = 15
"""A standby that has not managed to look at the lease for so many periods is not ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """All in seconds. A leader stops acting `duration - deadline` before its lease can be taken."""

    duration: float
    """An unchanged lease may be taken after this time."""

    @property
    def deadline(self) -> float:
        """For so long after a renewal a leader acts."""
        return self.duration * 0.7

    @property
    def period(self) -> float:
        """Between two renewals, or two looks."""
        return self.duration * 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """The lease as it was last seen to change."""

    version: str
    holder: str
    duration: float
    since: float
    """By our clock."""


def see(lease: Json, before: Sighting | None, now: float) -> Sighting:
    """`now`: our clock, s. The clock of an unchanged lease goes on."""
    version, spec = str(lease["metadata"]["resourceVersion"]), lease.get("spec") or {}
    if before is not None and before.version == version:
        return before
    duration = float(spec.get("leaseDurationSeconds") or 0)
    return Sighting(version=version, holder=spec.get("holderIdentity") or "", duration=duration, since=now)


def may_take(seen: Sighting, now: float) -> bool:
    """Given back, or not renewed for its whole duration."""
    return not seen.holder or now - seen.since > seen.duration


class Elector:
    """`acquire`, then `keep` for as long as this operator acts, then `release`."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, terms: Terms) -> None:
        """`api`: one whose writes do not ask `holds`."""
        self._api = api
        self._namespace, self._name = namespace, name
        self.identity = identity
        self._terms = terms
        self._seen: Sighting | None = None
        self._lease: Json = {}
        self._valid_until = float("-inf")
        self._looked_at = _clock()

    @property
    def fresh(self) -> bool:
        """It has seen the lease lately."""
        return _clock() - self._looked_at < STALE_PERIODS * self._terms.period

    def holds(self) -> bool:
        """Nobody else can hold the lease now."""
        return _clock() < self._valid_until

    async def acquire(self) -> None:
        """Returns once the lease is ours."""
        told = ""
        while True:
            try:
                async with asyncio.timeout(self._terms.deadline):
                    taken = await self._try_to_take()
                if taken:
                    log.info("leading: %s holds the lease %s/%s", self.identity, self._namespace, self._name)
                    return
                holder = self._seen.holder if self._seen else ""
                if holder != told:
                    log.info("standing by: %s leads", holder)
                    told = holder
            except (ApiError, ConnectionError, TimeoutError) as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error or "no answer")
            await self._pause()

    async def keep(self) -> None:
        """Renews. Returns when the lease is lost, or may be by the time anybody acts again."""
        while True:
            await self._pause()
            try:
                async with asyncio.timeout(max(0.01, self._valid_until - _clock())):
                    await self._renew()
            except ConflictError:
                if not await self._is_still_ours():
                    self._valid_until = float("-inf")
                    log.error("another operator has taken the lease %s/%s", self._namespace, self._name)
                    return
            except (ApiError, ConnectionError, TimeoutError) as error:
                log.warning("cannot renew the lease %s/%s: %s", self._namespace, self._name, error or "no answer")
            if not self.holds():
                log.error("the lease %s/%s was not renewed in time", self._namespace, self._name)
                return

    async def release(self) -> None:
        """Gives the lease back, so that the next one need not wait for it to run out. Nothing may be written after
        this."""
        if not self.holds():
            return
        self._valid_until = float("-inf")
        try:
            async with asyncio.timeout(self._terms.period):
                await self._put(holder="", duration=1)
            log.info("gave back the lease %s/%s", self._namespace, self._name)
        except (ApiError, ConnectionError, TimeoutError) as error:
            log.warning("cannot give back the lease %s/%s: %s", self._namespace, self._name, error or "no answer")

    async def _try_to_take(self) -> bool:
        started = _clock()
        try:
            self._lease = await self._api.request("GET", self._path)
        except NotFoundError:
            self._lease = {"metadata": {"name": self._name, "namespace": self._namespace}}
            return await self._write(started, create=True)
        self._looked_at = _clock()
        self._seen = see(self._lease, self._seen, self._looked_at)
        if self._seen.holder != self.identity and not may_take(self._seen, self._looked_at):
            return False
        return await self._write(started)

    async def _write(self, started: float, *, create: bool = False) -> bool:
        try:
            await (self._create() if create else self._put(holder=self.identity, duration=self._terms.duration))
        except ConflictError:
            return False  # somebody was quicker
        self._looked_at = _clock()
        self._valid_until = started + self._terms.deadline
        return True

    async def _renew(self) -> None:
        started = _clock()
        await self._put(holder=self.identity, duration=self._terms.duration)
        self._looked_at = _clock()
        self._valid_until = started + self._terms.deadline

    async def _is_still_ours(self) -> bool:
        """After a conflict: perhaps with ourselves, when the answer to a renewal was lost."""
        try:
            async with asyncio.timeout(max(0.01, self._valid_until - _clock())):
                self._lease = await self._api.request("GET", self._path)
        except (ApiError, ConnectionError, TimeoutError):
            return self.holds()
        return bool((self._lease.get("spec") or {}).get("holderIdentity") == self.identity)

    async def _create(self) -> None:
        body = {
            "apiVersion": LEASES.group_version,
            "kind": LEASES.kind,
            **self._lease,
            "spec": self._spec(self.identity, self._terms.duration),
        }
        self._lease = await self._api.request("POST", LEASES.path(self._namespace), body=body)

    async def _put(self, *, holder: str, duration: float) -> None:
        spec = self._spec(holder, duration)
        self._lease = await self._api.request("PUT", self._path, body={**self._lease, "spec": spec})

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

    async def _pause(self) -> None:
        await asyncio.sleep(self._terms.period * random.uniform(0.9, 1.1))  # noqa: S311 spreads load


def _clock() -> float:
    """Goes on while this process, or its machine, sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> str:
    """metav1.MicroTime"""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
