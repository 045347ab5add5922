"""The run watch of each job, and the shared watch of each etcd."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from elasticjob_runtime.etcd import StoreError, Unavailable

from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import users
from elasticjob_operator.etcd.client import AsyncEtcdClient, AsyncStore, SharedResources
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.login import Login
from elasticjob_operator.etcd.run_watch import RunWatch
from elasticjob_operator.etcd.shared_watch import SharedWatch
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import ClearRun, EvictMember, PublishLocations, PublishSpec, RendezvousAction, Target
from elasticjob_operator.state import RendezvousView
from elasticjob_operator.tasks import Supervisor

_Etcd = tuple[str, bool, NamespacedName | None]
"""Endpoint, whether the operator connects with its certificate, and the Secret with other credentials."""
ReadSecret = Callable[[NamespacedName], Awaitable[EtcdCredentials]]
"""Raises StoreError."""


class RunWatches:
    """`changed(key)` is called when a job's view differs, `progressed(key)` where nothing but progress was reported;
    default: `changed`. `open_store` raises ValueError where the endpoint is not an
    address. `may_write` is checked before every write. `supervisor` runs the shared watches. `tls` is used for targets
    with TLS and no others; it raises StoreError while there is none. `read_secret` is used for targets with a Secret.
    """

    def __init__(
        self,
        changed: Callable[[NamespacedName], None],
        open_store: Callable[[str, TimeBudget], AsyncStore] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        supervisor: Supervisor | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        read_secret: ReadSecret | None = None,
        progressed: Callable[[NamespacedName], None] | None = None,
    ) -> None:
        self._changed = changed
        self._progressed = progressed or changed
        self._may_write = may_write
        self._open_store = open_store
        self._tls = tls
        self._read_secret = read_secret
        self._runs: dict[NamespacedName, RunWatch] = {}
        self._shared_watches: dict[_Etcd, SharedWatch] = {}
        self._supervisor = supervisor or Supervisor()
        self._shared = SharedResources()

    def view(self, key: NamespacedName) -> RendezvousView:
        """The current view. Equal views may differ in when the etcd last responded."""
        run = self._runs.get(key)
        if run is None:
            return RendezvousView()
        return dataclasses.replace(run.view, answered_at=self._watch_of(run.target).answered_at)

    async def follow(self, key: NamespacedName, target: Target | None) -> None:
        """Watches `target` for the job; None: nothing."""
        run = self._runs.get(key)
        if run is not None:
            if target is not None and (_etcd_of(target), target.run_id) == (_etcd_of(run.target), run.target.run_id):
                if target.ready_store_pod and target.ready_store_pod != run.ready_store_pod:
                    self._watch_of(target).reconnect(replaced=bool(run.ready_store_pod))
                    run.ready_store_pod = target.ready_store_pod
                run.target = target
                return
            del self._runs[key]
            await self._release(run)
        if target is not None:
            run = self._runs[key] = RunWatch(target, lambda: self._changed(key), lambda: self._progressed(key))
            if _etcd_of(target) not in self._shared_watches:
                self._shared_watches[_etcd_of(target)] = SharedWatch(
                    target.endpoint, self._open_store or self._opener(target), self._supervisor
                )
            self._watch_of(target).add(run)

    def set_aside(self, key: NamespacedName, uid: str) -> None:
        """Keeps what is watched for a deleted job, under `set_aside_key(key, uid)`: its successor has `key`."""
        if key in self._runs:
            self._runs[set_aside_key(key, uid)] = self._runs.pop(key)

    async def execute(self, key: NamespacedName, action: RendezvousAction) -> None:
        """Raises StoreError. Does nothing where the job has no target."""
        run = self._runs.get(key)
        if run is None:
            return
        self._check_may_write()
        watch = self._watch_of(run.target)
        match action:
            case PublishSpec():
                await watch.write(run, run.publish(action.spec))
            case PublishLocations():
                await watch.write(run, run.locate(action.locations))
            case EvictMember():
                await watch.write(run, run.evict(action.member))
            case ClearRun():
                # Keys last: while there are any, the next operator removes what this one did not.
                await self._remove_user(run, watch)
                await watch.write(run, run.clear())

    async def call(self, key: NamespacedName, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """A call about users and roles to the etcd of a job. Raises StoreError."""
        run = self._runs.get(key)
        if run is None:
            raise Unavailable("not connected to the etcd of this job")
        self._check_may_write()
        return await self._watch_of(run.target).call(path, request)

    async def close(self) -> None:
        self._runs.clear()
        watches, self._shared_watches = list(self._shared_watches.values()), {}
        await asyncio.gather(*(watch.close() for watch in watches))

    def _check_may_write(self) -> None:
        if not self._may_write():
            raise Unavailable("not written: this operator is no longer the leader")

    async def _remove_user(self, run: RunWatch, watch: SharedWatch) -> None:
        if not run.target.user:
            return
        try:
            await users.remove(watch.call, run.target.user)
        except StoreError as error:
            watch.on_failed_write(run, error)
            raise

    async def _release(self, run: RunWatch) -> None:
        watch = self._watch_of(run.target)
        watch.remove(run)
        if not len(watch):
            del self._shared_watches[_etcd_of(run.target)]
            await watch.close()

    def _watch_of(self, target: Target) -> SharedWatch:
        return self._shared_watches[_etcd_of(target)]

    def _opener(self, target: Target) -> Callable[[str, TimeBudget], AsyncStore]:
        tls, secret, read = self._tls if target.tls else None, target.secret, self._read_secret

        def open_etcd(endpoint: str, budget: TimeBudget) -> AsyncStore:
            login = Login(lambda: read(secret)) if secret is not None and read is not None else None
            return AsyncEtcdClient(endpoint, self._shared, budget, tls, login, run_users=bool(target.user))

        return open_etcd


def set_aside_key(key: NamespacedName, uid: str) -> NamespacedName:
    """No job has such a name."""
    return key[0], f"{key[1]}/{uid}"


def _etcd_of(target: Target) -> _Etcd:
    """A job that names an endpoint must not get a connection that has our certificate or another Secret's credentials:
    that of another job's etcd, of the shared etcd, or of a job in another namespace."""
    return target.endpoint, target.tls, target.secret
