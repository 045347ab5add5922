"""Follows the etcd tiers: whether each answers, and how full it is. Turns on authentication in a new one.

Every operator does so, also on standby: it costs each tier a few calls. One of them removes what deleted jobs left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from elasticjob_runtime.etcd import Denied, StoreError

from elasticjob_operator import metrics
from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import responses, users
from elasticjob_operator.etcd.client import AsyncEtcdClient, SharedResources
from elasticjob_operator.etcd.leftovers import remove_leftovers
from elasticjob_operator.etcd.login import Login
from elasticjob_operator.etcd.shared_watch import ROOT
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.policies.etcd_tiers import problem_of
from elasticjob_operator.settings import EtcdTier, Settings
from elasticjob_operator.state import TierView

log = logging.getLogger(__name__)

ASK_SECONDS, RETRY_SECONDS = 10.0, 2.0
"""Between two looks at a tier that answers, and at one that does not, s."""
PREPARE_SECONDS = 3600.0
"""Between two looks at the Secret of a tier, s."""
_CLOSED = "authentication is not enabled"


class Tiers:
    """`prepare(tier)` creates the tier's Secret, or renews what is in it, and `read_secret` reads it; both raise
    StoreError. `runs`: by tier, the runs that use it; it changes. `cleans()`: whether this operator is the one that
    removes what runs of deleted jobs left. `uids()`: of all jobs now; raises StoreError. `views`: what is known now, by
    tier."""

    def __init__(
        self,
        settings: Settings,
        prepare: Callable[[EtcdTier], Awaitable[None]],
        read_secret: Callable[[NamespacedName], Awaitable[EtcdCredentials]],
        runs: Mapping[str, int],
        cleans: Callable[[], bool],
        uids: Callable[[], Awaitable[Collection[str]]],
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self._settings = settings
        self._prepare = prepare
        self._read_secret = read_secret
        self._runs = runs
        self._cleans = cleans
        self._uids = uids
        self._clock = clock
        self._shared = SharedResources()
        self._seen = {tier.name: TierView() for tier in settings.etcd_tiers.tiers}

    @property
    def views(self) -> Mapping[str, TierView]:
        return {name: self._with_runs(name, view) for name, view in self._seen.items()}

    def _with_runs(self, name: str, view: TierView) -> TierView:
        return dataclasses.replace(view, runs=self._runs.get(name, 0))

    async def follow(self, tier: EtcdTier) -> None:
        """Never returns."""
        metrics.TIER_RUNS.labels(tier.name).set_function(lambda: self._runs.get(tier.name, 0))
        while True:
            try:
                await self._prepare(tier)
                await self._ask_until_prepared_again(tier)
            except StoreError as error:
                if str(error) != self._seen[tier.name].error:
                    log.warning("etcd tier %s: %s", tier.name, responses.for_log(error))
                self._see(tier.name, TierView(asked=True, error=str(error)))
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask_until_prepared_again(self, tier: EtcdTier) -> None:
        """With one connection and one login. Raises StoreError."""
        secret = self._settings.secret_of(tier)
        login = Login(lambda: self._read_secret(secret))
        client = AsyncEtcdClient(tier.endpoint, self._shared, login=login, run_users=True)
        try:
            cleaned = False
            for _ in range(int(PREPARE_SECONDS / ASK_SECONDS)):
                self._see(tier.name, await self._ask(tier, client))
                cleaned = cleaned or await self._remove_leftovers(tier, client)
                await asyncio.sleep(ASK_SECONDS)
        finally:
            client.close()

    async def _ask(self, tier: EtcdTier, client: AsyncEtcdClient) -> TierView:
        try:
            await client.revision(ROOT)
        except Denied as error:
            if _CLOSED not in str(error):
                raise
            await self._enable_users(tier)
            await client.revision(ROOT)
        status = await client.call("/v3/maintenance/status", {})
        leases = await client.call("/v3/lease/leases", {})
        try:
            used = int(status.get("dbSizeInUse") or 0)
        except ValueError as error:
            raise responses.malformed(error) from error
        return TierView(asked=True, bytes=used, leases=len(leases.get("leases") or ()))

    async def _remove_leftovers(self, tier: EtcdTier, client: AsyncEtcdClient) -> bool:
        """False: not now. A tier takes runs all the same."""
        if not self._cleans():
            return False
        try:
            removed = await remove_leftovers(client, self._uids, self._cleans)
        except StoreError as error:
            log.warning("etcd tier %s: what deleted jobs left is not removed: %s", tier.name, responses.for_log(error))
            return False
        for run in removed:
            log.info("etcd tier %s: removed user and keys of run %s, whose job is deleted", tier.name, run)
        return True

    async def _enable_users(self, tier: EtcdTier) -> None:
        """Raises StoreError."""
        credentials = await self._read_secret(self._settings.secret_of(tier))
        context = credentials.context()
        client = AsyncEtcdClient(tier.endpoint, self._shared, tls=lambda: context)
        try:
            await users.enable(client.call, credentials.password)
        finally:
            client.close()
        log.info("etcd tier %s: turned on authentication", tier.name)

    def _see(self, name: str, view: TierView) -> None:
        """Since when it takes no runs, this operator knows as long as it runs."""
        if problem_of(self._with_runs(name, view), self._settings.etcd_tiers):
            view = dataclasses.replace(view, since=self._seen[name].since or self._clock())
        self._seen[name] = view
        metrics.TIER_UP.labels(name).set(not view.error)
        metrics.TIER_BYTES.labels(name).set(view.bytes)
        metrics.TIER_LEASES.labels(name).set(view.leases)
