"""The thread of a member's session with the store."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.etcd.interface import StoreError
from elasticjob_runtime.membership.actions import Register, Subscribe
from elasticjob_runtime.membership.view import Role

from hack.embedded_etcd.memory import MemoryStore
from hack.support import eventually
from tests.unit.runtime.membership.builders import make_member
from tests.unit.runtime.rendezvous.sessions import KEYS, FlakyStore, Session, value_in

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_thread_executes_actions_delivers_changes_and_leaves(store: FlakyStore) -> None:
    session = Session(store)
    session.rendezvous.submit(Register(reason="r"))
    session.rendezvous.submit(Subscribe(role=Role.PLANNER, reason="r"))
    eventually(lambda: len(session.done) == 2, 10.0)
    store.put(KEYS.member("b"), make_member("b").value.to_json())
    eventually(lambda: "b" in session.views[-1].members, 10.0)
    own = store.get(KEYS.member("a"))
    assert own is not None
    session.rendezvous.close()
    assert store.revoked == [own.lease], "the lease was not revoked"


def test_the_last_of_many_progress_reports_is_written(store: FlakyStore) -> None:
    session = Session(store)
    for step in range(1, 200):
        session.rendezvous.publish_progress(ProgressValue(step=step, round=1))

    eventually(lambda: value_in(store, KEYS.progress, ProgressValue).step == 199, 10.0)
    session.rendezvous.close()


def test_an_internal_error_neither_ends_the_thread_nor_leaves_an_action_pending(store: FlakyStore) -> None:
    session = Session(store)
    session.rendezvous.submit("no action at all")  # type: ignore[arg-type]
    eventually(lambda: session.done, 10.0)
    assert isinstance(session.done[0][1], StoreError)
    session.rendezvous.submit(Register(reason="r"))
    eventually(lambda: len(session.done) == 2, 10.0)
    assert session.done[1][1] is None
    session.rendezvous.close()


def test_nothing_is_called_back_after_close() -> None:
    held, release = threading.Event(), threading.Event()

    class Stuck(MemoryStore):
        def lease(self, *arguments: Any) -> Any:
            held.set()
            release.wait(10.0)
            return super().lease(*arguments)

    session = Session(Stuck())
    session.rendezvous.submit(Register(reason="r"))
    assert held.wait(10.0)
    session.rendezvous.close(timeout=0.01)
    release.set()
    session.rendezvous._thread.join(10.0)
    assert (session.views, session.done) == ([], [])
