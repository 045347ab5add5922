"""All jobs' sessions, by job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from elasticjob_runtime.etcd import EtcdClient, Store

from elasticjob_operator.planning import ClearRun, EvictMember, PublishSpec, Target
from elasticjob_operator.rendezvous.session import Session
from elasticjob_operator.world import RendezvousView

THREADS = 32
"""Calls at once, over all jobs. A call takes half a millisecond, or its timeout where etcd is away."""

CALL_SECONDS = 3.0
PROBE_SECONDS = 20.0
"""How soon a watch finds out that its silence is that of a dead server, s."""

Key = tuple[str, str]


def open_etcd(endpoint: str) -> Store:
    """Raises ValueError where `endpoint` is no address."""
    return EtcdClient(endpoint, timeout=CALL_SECONDS, probe_interval=PROBE_SECONDS)


class Sessions:
    """`changed(key)` is called when a job's view differs."""

    def __init__(self, changed: Callable[[Key], None], open_store: Callable[[str], Store] = open_etcd) -> None:
        self._changed = changed
        self._open_store = open_store
        self._sessions: dict[Key, Session] = {}
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="etcd-call")

    def view(self, key: Key) -> RendezvousView:
        session = self._sessions.get(key)
        return session.view if session else RendezvousView()

    async def follow(self, key: Key, target: Target | None) -> None:
        """Makes the job's session what `target` says."""
        session = self._sessions.get(key)
        if session is not None:
            if target is not None and (target.endpoint, target.run_id) == (session.target.endpoint, session.target.run_id):
                if target.awake != session.target.awake:
                    session.nudge(target)
                return
            del self._sessions[key]
            await session.close()
        if target is not None:
            self._sessions[key] = Session(target, self._open_store, self._executor, lambda: self._changed(key))

    async def execute(self, key: Key, action: PublishSpec | EvictMember | ClearRun) -> None:
        """Raises StoreError. Nothing happens where the job has no session."""
        session = self._sessions.get(key)
        if session is None:
            return
        match action:
            case PublishSpec():
                await session.publish(action.spec)
            case EvictMember():
                await session.evict(action.member)
            case ClearRun():
                await session.clear()

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.close() for session in sessions))
        self._executor.shutdown(wait=False, cancel_futures=True)
