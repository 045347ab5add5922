"""The handler forms rounds, called as torch's agent calls it.

For what is hard to hit with processes, such as a member that is lost between two calls.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.torchrun import policy, round_store
from elasticjob_runtime.torchrun.handler import EtcdRendezvousHandler
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousInfo,
)

from hack.support import eventually
from tests.integration.runtime_torchrun.conftest import Job
from tests.integration.runtime_torchrun.handler_members import SOON, Make, Member, together, wait_for_restart

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def test_every_round_has_ranks_and_a_store_of_its_own(make: Make) -> None:
    """torchrun reuses the previous round's store with its old keys, and hangs."""
    members = [make((2, 2)) for _ in range(2)]
    stores = set()
    for _ in range(6):  # more rounds than a member has ports
        infos = together(*members)
        assert sorted(info.rank for info in infos) == [0, 1]
        assert {info.world_size for info in infos} == {2}
        where = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}  # type: ignore[union-attr]
        assert len(where) == 1
        assert infos[0].store.add("rounds", 1) == 1, "the store is empty"
        stores |= where
        assert not any(member.num_nodes_waiting() for member in members)
        members[0].meet().add_done_callback(lambda _: None)
        wait_for_restart(members[1])
        members[1].meet().result(SOON)
    assert len(stores) > 1


def test_the_others_learn_of_a_lost_member(make: Make) -> None:
    a, b, c = (make((2, 3), start_grace=60) for _ in range(3))
    together(a, b, c)
    c.vanish()
    wait_for_restart(a, b)
    assert [info.world_size for info in together(a, b)] == [2, 2]
    assert not a.num_nodes_waiting()


@pytest.mark.parametrize("lost", [0, 1], ids=["rank 0", "rank 1"])
def test_a_member_lost_before_torch_exchanges_ranks_ends_no_other_agent(make: Make, lost: int) -> None:
    """torchrun's agents wait five minutes for the ranks, and all exit with an error."""
    members = [make((1, 2), start_grace=60) for _ in range(2)]
    infos = together(*members)
    dead, alive = members if infos[0].rank == lost else members[::-1]
    exchange = alive.assign_ranks()
    dead.vanish()
    assert exchange.result(SOON), "torch's agent continues"
    wait_for_restart(alive)
    assert alive.meet().result(SOON).world_size == 1


def test_torch_exchanges_ranks_through_the_store(make: Make) -> None:
    members = [make((2, 2)) for _ in range(2)]
    together(*members)
    found = [answer.result(SOON) for answer in [member.assign_ranks() for member in members]]
    assert sorted(itertools.chain(*found)) == [b"[0]", b"[1]", b"info-0", b"info-1"]


def test_a_timeout_of_the_store_is_distinguished_from_its_loss() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    with pytest.raises(RuntimeError) as late:
        client.wait(["never"], datetime.timedelta(seconds=0.5))
    assert round_store.is_timeout(late.value)
    del server

    def write_keys() -> None:
        for _ in range(3):  # the first may still fit into the socket's buffer
            client.set("key", "value")

    with pytest.raises(RuntimeError) as lost:
        write_keys()
    assert not round_store.is_timeout(lost.value), "a lost leader is not a timeout: a new round may follow"


def test_a_member_whose_workers_do_not_stop_does_not_hold_up_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "STOP_TIMEOUT", 1.0)
    a, b, slow = (make((2, 3), start_grace=60) for _ in range(3))
    together(a, b, slow)
    met = a.meet()
    wait_for_restart(b, slow)
    assert b.meet().result(SOON).world_size == 2, "b does not wait for the slow member"
    assert met.result(SOON).world_size == 2
    late = slow.meet()
    wait_for_restart(a, b)
    assert [info.world_size for info in together(a, b)] == [3, 3]
    assert late.result(SOON).world_size == 3


def test_only_one_of_two_members_with_the_same_name_trains(make: Make, etcd: str) -> None:
    a = make((1, 1))
    a.meet().result(SOON)
    with contextlib.closing(Member(etcd, a.get_run_id(), (1, 1), prefix="/handler")) as twin:
        meetings = [twin.meet()]
        eventually(lambda: a.num_nodes_waiting() or failed(meetings), SOON, what="one learns of the other")
        if a.num_nodes_waiting():
            meetings.append(a.meet())
        (loser,) = eventually(lambda: failed(meetings), SOON, what="one of them is rejected")
        with pytest.raises(RendezvousConnectionError, match="another agent registered as a"):
            loser.result()
        assert [meeting.result(SOON).world_size for meeting in meetings if meeting is not loser] in ([], [1])


def failed(meetings: Sequence[Future[RendezvousInfo]]) -> list[Future[RendezvousInfo]]:
    return [meeting for meeting in meetings if meeting.done() and meeting.exception() is not None]


def test_torchrun_and_elasticrun_reject_each_others_jobs(etcd: str, jobs: Callable[[str], Job]) -> None:
    """Their agents wait for each other in different ways; together, they would hang."""
    theirs, ours = jobs("1:2"), jobs("1:2")
    elasticrun = ("elasticjob_runtime", "--no-python", "sleep", "100")
    with (
        contextlib.closing(Member(etcd, "job", (1, 2), prefix=theirs.prefix)) as torchruns,
        contextlib.closing(Member(etcd, "job", (1, 2), prefix=ours.prefix)) as a,
    ):
        theirs.start("x", command=elasticrun)
        eventually(lambda: theirs.read("plan"), SOON)
        with pytest.raises(RendezvousConnectionError, match="the job with this --rdzv-id is elasticrun's"):
            torchruns.meet().result(SOON)

        a.meet().result(SOON)
        assert ours.start("x", command=elasticrun).exit_code() == ExitCode.CONFIG
        assert not a.num_nodes_waiting()


def test_a_torch_without_libuv_can_use_the_rendezvous(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian builds it. Worker processes cannot use the agent's store, so rank 0 opens one without libuv."""

    def without(*given: Any, **named: Any) -> Any:
        if named.get("use_libuv", True):
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
        return TCPStore(*given, **named)

    monkeypatch.setattr(round_store, "TCPStore", without)
    monkeypatch.delenv("USE_LIBUV", raising=False)
    members = [make((2, 2)) for _ in range(2)]
    infos = together(*members)
    assert not any(member.use_agent_store for member in members)
    assert os.environ["USE_LIBUV"] == "0"
    port = infos[0].bootstrap_store_info.master_port  # type: ignore[union-attr]
    workers = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=False)
    assert workers.port == port


def test_the_backend_is_found_by_its_entry_point(make: Make) -> None:
    a = make((1, 1))
    assert isinstance(a.handler, EtcdRendezvousHandler)
    assert a.get_backend() == "etcd-v3"
    assert a.get_run_id()
    assert a.num_nodes_waiting() == 0
    assert not a.is_closed()
    assert a.handler.shutdown()
