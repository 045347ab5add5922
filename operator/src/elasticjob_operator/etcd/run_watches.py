"""The run watch of each job, and the shared watch of each etcd."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from elasticjob_runtime.etcd import Unavailable

from elasticjob_operator.etcd.client import AsyncEtcdClient, AsyncStore, SharedResources
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.run_watch import RunWatch
from elasticjob_operator.etcd.shared_watch import SharedWatch
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import ClearRun, EvictMember, PublishSpec, Target
from elasticjob_operator.state import RendezvousView
from elasticjob_operator.tasks import Supervisor


class RunWatches:
    """`changed(key)` is called when a job's view differs. `open_store` raises ValueError where the endpoint is not an
    address. `may_write` is checked before every write. `supervisor` runs the shared watches."""

    def __init__(
        self,
        changed: Callable[[NamespacedName], None],
        open_store: Callable[[str, TimeBudget], AsyncStore] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._changed = changed
        self._may_write = may_write
        self._open_store = open_store or self._open_etcd
        self._runs: dict[NamespacedName, RunWatch] = {}
        self._shared_watches: dict[str, SharedWatch] = {}
        self._supervisor = supervisor or Supervisor()
        self._shared = SharedResources()

    def view(self, key: NamespacedName) -> RendezvousView:
        """The current view. Equal views may differ in when the etcd last responded."""
        run = self._runs.get(key)
        if run is None:
            return RendezvousView()
        return dataclasses.replace(run.view, answered_at=self._shared_watches[run.target.endpoint].answered_at)

    async def follow(self, key: NamespacedName, target: Target | None) -> None:
        """Watches `target` for the job; None: nothing."""
        run = self._runs.get(key)
        if run is not None:
            if target is not None and (target.endpoint, target.run_id) == (
                run.target.endpoint,
                run.target.run_id,
            ):
                if target.ready_store_pod and target.ready_store_pod != run.ready_store_pod:
                    self._shared_watches[target.endpoint].reconnect(replaced=bool(run.ready_store_pod))
                    run.ready_store_pod = target.ready_store_pod
                run.target = target
                return
            del self._runs[key]
            await self._release(run)
        if target is not None:
            run = self._runs[key] = RunWatch(target, lambda: self._changed(key))
            if target.endpoint not in self._shared_watches:
                self._shared_watches[target.endpoint] = SharedWatch(target.endpoint, self._open_store, self._supervisor)
            self._shared_watches[target.endpoint].add(run)

    async def execute(self, key: NamespacedName, action: PublishSpec | EvictMember | ClearRun) -> None:
        """Raises StoreError. Does nothing where the job has no target."""
        run = self._runs.get(key)
        if run is None:
            return
        if not self._may_write():
            raise Unavailable("not written: this operator is no longer the leader")
        watch = self._shared_watches[run.target.endpoint]
        match action:
            case PublishSpec():
                await watch.write(run, run.publish(action.spec))
            case EvictMember():
                await watch.write(run, run.evict(action.member))
            case ClearRun():
                await watch.write(run, run.clear())

    async def close(self) -> None:
        self._runs.clear()
        watches, self._shared_watches = list(self._shared_watches.values()), {}
        await asyncio.gather(*(watch.close() for watch in watches))

    async def _release(self, run: RunWatch) -> None:
        watch = self._shared_watches[run.target.endpoint]
        watch.remove(run)
        if not len(watch):
            del self._shared_watches[watch.endpoint]
            await watch.close()

    def _open_etcd(self, endpoint: str, budget: TimeBudget) -> AsyncStore:
        return AsyncEtcdClient(endpoint, self._shared, budget)
