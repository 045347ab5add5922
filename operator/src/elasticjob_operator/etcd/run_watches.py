"""All jobs' sessions, by job, and the hubs they share, by etcd."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from elasticjob_runtime.etcd import Unavailable

from elasticjob_operator.etcd.client import Etcd, Shared, Store
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.run_watch import RunWatch
from elasticjob_operator.etcd.shared_watch import SharedWatch
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import ClearRun, EvictMember, PublishSpec, Target
from elasticjob_operator.state import RendezvousView
from elasticjob_operator.tasks import Supervisor


class RunWatches:
    """`changed(key)` is called when a job's view differs. `open_store`: raises ValueError where the endpoint is no
    address. `may_write` is asked before every write. `supervisor`: of what goes on in the background here."""

    def __init__(
        self,
        changed: Callable[[NamespacedName], None],
        open_store: Callable[[str, TimeBudget], Store] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._changed = changed
        self._may_write = may_write
        self._open_store = open_store or self._open_etcd
        self._sessions: dict[NamespacedName, RunWatch] = {}
        self._hubs: dict[str, SharedWatch] = {}
        self._supervisor = supervisor or Supervisor()
        self._shared = Shared()

    def view(self, key: NamespacedName) -> RendezvousView:
        """As of now. Equal views may differ in when the etcd last answered."""
        session = self._sessions.get(key)
        if session is None:
            return RendezvousView()
        return dataclasses.replace(session.view, answered_at=self._hubs[session.target.endpoint].answered_at)

    async def follow(self, key: NamespacedName, target: Target | None) -> None:
        """Makes the job's session what `target` says."""
        session = self._sessions.get(key)
        if session is not None:
            if target is not None and (target.endpoint, target.run_id) == (
                session.target.endpoint,
                session.target.run_id,
            ):
                if target.ready_store_pod and target.ready_store_pod != session.ready_store_pod:
                    self._hubs[target.endpoint].nudge(replaced=bool(session.ready_store_pod))
                    session.ready_store_pod = target.ready_store_pod
                session.target = target
                return
            del self._sessions[key]
            await self._leave(session)
        if target is not None:
            session = self._sessions[key] = RunWatch(target, lambda: self._changed(key))
            if target.endpoint not in self._hubs:
                self._hubs[target.endpoint] = SharedWatch(target.endpoint, self._open_store, self._supervisor)
            self._hubs[target.endpoint].add(session)

    async def execute(self, key: NamespacedName, action: PublishSpec | EvictMember | ClearRun) -> None:
        """Raises StoreError. Nothing happens where the job has no session."""
        session = self._sessions.get(key)
        if session is None:
            return
        if not self._may_write():
            raise Unavailable("not written, because this operator does not lead any more")
        hub = self._hubs[session.target.endpoint]
        match action:
            case PublishSpec():
                await hub.write(session, session.publish(action.spec))
            case EvictMember():
                await hub.write(session, session.evict(action.member))
            case ClearRun():
                await hub.write(session, session.clear())

    async def close(self) -> None:
        self._sessions.clear()
        hubs, self._hubs = list(self._hubs.values()), {}
        await asyncio.gather(*(hub.close() for hub in hubs))

    async def _leave(self, session: RunWatch) -> None:
        hub = self._hubs[session.target.endpoint]
        hub.remove(session)
        if not len(hub):
            del self._hubs[hub.endpoint]
            await hub.close()

    def _open_etcd(self, endpoint: str, budget: TimeBudget) -> Store:
        return Etcd(endpoint, self._shared, budget)
