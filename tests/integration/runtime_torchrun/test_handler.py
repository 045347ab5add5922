"""The handler alone, as torch's agent calls it, on a real etcd: each member is a thread of this process, without
workers.

For what is hard to hit with processes: moments between two calls, slow members, ends of every kind.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode, Keys
from elasticjob_runtime.etcd import connect
from elasticjob_runtime.torchrun import policy, round_store
from elasticjob_runtime.torchrun.handler import EtcdRendezvousHandler
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.utils import store as torch_store

from hack.support import eventually
from tests.integration.runtime_torchrun.conftest import RESOLVER, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SOON = 20.0


class Member:
    """A handler, and a thread that calls it as torch's agent does."""

    def __init__(self, endpoint: str, run: str, nodes: tuple[int, int], **conf: Any) -> None:
        parameters = RendezvousParameters(
            "etcd-v3", endpoint, run, *nodes, local_addr="127.0.0.1", **{"lease_ttl": 3, **conf}
        )
        handler = get_rendezvous_handler(parameters)
        assert isinstance(handler, EtcdRendezvousHandler)
        self.handler = handler
        self._endpoint = endpoint
        self._name = os.environ.get("ELASTICJOB_MEMBER_ID", "")
        self._thread = ThreadPoolExecutor(1)
        self.round: RendezvousInfo | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)

    def meet(self) -> Future[RendezvousInfo]:
        """Is in next_rendezvous from now on."""

        def call() -> RendezvousInfo:
            self.round = self.handler.next_rendezvous()
            return self.round

        return self._thread.submit(call)

    def end(self, error: BaseException | None = None) -> Future[bool]:
        """torch's agent ends: shutdown() from a `finally`."""

        def call() -> bool:
            if error is None:
                return self.handler.shutdown()
            done = list[bool]()
            with contextlib.suppress(type(error)):
                try:
                    raise error
                finally:
                    done.append(self.handler.shutdown())
            return done[0]

        return self._thread.submit(call)

    def assign_ranks(self) -> Future[list[Any]]:
        """What torch's agent does with the store: its role and its workers to rank 0, its ranks from there."""

        def call() -> list[Any]:
            assert self.round is not None
            rank, size = self.round.rank, self.round.world_size
            store: Any = self.round.store
            store.set(f"torchelastic/role_info/{rank}", f"info-{rank}")
            if rank == 0:
                infos = store.multi_get([f"torchelastic/role_info/{i}" for i in range(size)])
                store.multi_set(
                    [f"torchelastic/assigned_ranks/{i}" for i in range(size)], [f"[{i}]" for i in range(size)]
                )
                return [*infos, store.get("torchelastic/assigned_ranks/0")]
            return [store.get(f"torchelastic/assigned_ranks/{rank}")]

        return self._thread.submit(call)

    def finish(self) -> Future[None]:
        """All workers have exited with 0: torch's exit barrier."""
        assert self.round is not None
        return self._thread.submit(
            torch_store.barrier, self.round.store, self.round.world_size, round_store.EXIT_BARRIER
        )

    def is_there(self) -> bool:
        """The others know of it."""
        with contextlib.closing(connect(self._endpoint)) as store:
            return store.get(Keys("/handler", self.handler.get_run_id()).member(self._name)) is not None

    def vanish(self) -> None:
        """As a process that is gone: no lease, no port, no store."""
        if self.handler._member is not None:
            self.handler._member.close()
        self.handler._stores = None

    def close(self) -> None:
        self.vanish()
        self._thread.shutdown(wait=True, cancel_futures=True)


Make = Callable[..., Member]


@pytest.fixture
def make(etcd: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Members of one run, named a, b, c ... in the order of their making."""
    monkeypatch.setenv(*next(iter(RESOLVER.items())))
    run, members, names = secrets.token_hex(4), list[Member](), iter("abcdefgh")

    def member(nodes: tuple[int, int], **conf: Any) -> Member:
        monkeypatch.setenv("ELASTICJOB_MEMBER_ID", next(names))
        members.append(Member(etcd, run, nodes, prefix="/handler", **conf))
        return members[-1]

    yield member
    for one in members:
        one.close()


def together(*members: Member) -> list[RendezvousInfo]:
    """All call next_rendezvous, and return from it."""
    return [met.result(SOON) for met in [member.meet() for member in members]]


def wants_restart(*members: Member) -> None:
    for member in members:
        eventually(lambda m=member: m.num_nodes_waiting() > 0, SOON)  # type: ignore[misc]


def failed() -> ChildFailedError:
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file="<N/A>")
    return ChildFailedError("train.py", {0: failure})


def test_ranks_and_a_store_of_its_own_for_every_round(make: Make) -> None:
    """torchrun restarts into the store of the round before, with its keys, and hangs."""
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
        wants_restart(members[1])
        members[1].meet().result(SOON)
    assert len(stores) > 1


def test_the_set_is_complete_so_nobody_waits_for_a_last_call(make: Make) -> None:
    infos = together(*(make((2, 2), start_grace=3600, last_call_timeout=3600) for _ in range(2)))
    assert len(infos) == 2


def test_a_member_that_is_lost_is_reported_to_the_others(make: Make) -> None:
    a, b, c = (make((2, 3)) for _ in range(3))
    together(a, b, c)
    c.vanish()
    wants_restart(a, b)
    assert [info.world_size for info in together(a, b)] == [2, 2]
    assert not a.num_nodes_waiting()


def test_a_newcomer_is_taken_in_and_a_spare_is_not(make: Make) -> None:
    a = make((1, 2))
    a.meet().result(SOON)
    newcomer = make((1, 2)).meet()
    wants_restart(a)
    assert a.meet().result(SOON).world_size == 2
    assert newcomer.result(SOON).world_size == 2

    spare = make((1, 2), join_timeout=1).meet()
    assert not wait([spare], 2.5).done, "spares wait as long as it takes"
    assert not a.num_nodes_waiting()


def test_a_member_lost_while_the_others_meet_costs_a_new_plan_and_nothing_else(make: Make) -> None:
    a, b, c = (make((2, 3)) for _ in range(3))
    together(a, b, c)
    a_meets = a.meet()  # its workers failed; b and c are told, and c dies before it comes
    wants_restart(b, c)
    b_meets = b.meet()
    assert not wait([a_meets, b_meets], 0.5).done
    c.vanish()
    assert {a_meets.result(SOON).world_size, b_meets.result(SOON).world_size} == {2}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_member_lost_between_meeting_and_torchs_exchange_of_ranks_ends_nobody(make: Make, lost: int) -> None:
    """torch's agents wait five minutes for its ranks, and all exit with an error."""
    members = [make((1, 2)), make((1, 2), start_grace=60)]
    infos = together(*members)
    dead, alive = members if infos[0].rank == lost else members[::-1]
    exchange = alive.assign_ranks()
    dead.vanish()
    assert exchange.result(SOON), "torch's agent goes on"
    wants_restart(alive)
    assert alive.meet().result(SOON).world_size == 1


def test_torchs_exchange_of_ranks(make: Make) -> None:
    members = [make((2, 2)) for _ in range(2)]
    together(*members)
    found = [answer.result(SOON) for answer in [member.assign_ranks() for member in members]]
    assert sorted(itertools.chain(*found)) == [b"[0]", b"[1]", b"info-0", b"info-1"]


def test_a_wait_for_a_key_that_does_not_come_ends_when_it_said() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    with pytest.raises(RuntimeError) as late:
        client.wait(["never"], datetime.timedelta(seconds=0.5))
    assert round_store.is_timeout(late.value)
    del server

    def talk() -> None:
        for _ in range(3):  # the first may still find room in the socket
            client.set("key", "value")

    with pytest.raises(RuntimeError) as lost:
        talk()
    assert not round_store.is_timeout(lost.value), "a lost leader is waited for: a new round may come"


def test_a_member_whose_workers_do_not_stop_holds_up_nobody(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "COME_BACK", 1.0)
    a, b, slow = (make((2, 3)) for _ in range(3))
    together(a, b, slow)
    met = a.meet()
    wants_restart(b, slow)
    assert b.meet().result(SOON).world_size == 2, "without the slow one"
    assert met.result(SOON).world_size == 2
    late = slow.meet()
    wants_restart(a, b)
    assert [info.world_size for info in together(a, b)] == [3, 3]
    assert late.result(SOON).world_size == 3


def test_success_ends_the_job_for_all_spares_too(make: Make) -> None:
    """torchrun: RendezvousClosedError for who is not done first, AttributeError for spares."""
    members = [make((2, 2)) for _ in range(2)]
    together(*members)
    third = make((2, 2))
    spare = third.meet()
    eventually(third.is_there, SOON)
    assert [done.result(SOON) for done in [member.finish() for member in members]] == [None, None]
    assert all(end.result(SOON) for end in [member.end() for member in members])
    assert members[0].is_closed()
    with pytest.raises(SystemExit) as exit_:
        spare.result(SOON)
    assert exit_.value.code == 0


def test_a_run_id_can_be_used_again(make: Make) -> None:
    """torchrun: RendezvousClosedError."""
    for _ in range(2):
        members = [make((2, 2)) for _ in range(2)]
        together(*members)
        for done in [member.finish() for member in members]:
            done.result(SOON)
        assert all(end.result(SOON) for end in [member.end() for member in members])


def test_one_that_is_done_first_waits_for_the_others(make: Make) -> None:
    """torchrun gives up after five minutes, and closes the rendezvous under the others."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert not wait([done], 1.0).done
    assert not b.num_nodes_waiting()
    b.finish().result(SOON)
    done.result(SOON)


def test_one_that_is_done_leaves_the_others_to_it_when_they_have_to_start_again(make: Make) -> None:
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert b.meet().result(SOON).world_size == 1
    done.result(SOON)
    assert a.end().result(SOON)
    assert not b.num_nodes_waiting(), "that the first one is gone is no news"
    assert not b.is_closed()


def test_a_failure_for_good_is_the_jobs(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end(failed()).result(SOON)
    wants_restart(b)
    with pytest.raises(RendezvousClosedError, match=r"rank 0 on a failed: .*no restarts left"):
        b.meet().result(SOON)


def test_a_torch_that_shuts_down_before_it_says_that_workers_failed(make: Make) -> None:
    """torch 2.6 does, once from its agent and once from its launcher: that is no success."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end().result(SOON)
    assert not a.is_closed()
    assert a.end(failed()).result(SOON)
    wants_restart(b)
    with pytest.raises(RendezvousClosedError, match="no restarts left"):
        b.meet().result(SOON)


@pytest.mark.parametrize("error", [RendezvousTimeoutError("x"), RuntimeError("x"), KeyboardInterrupt()])
def test_an_agents_own_trouble_closes_nothing(make: Make, error: BaseException) -> None:
    """torchrun: SIGTERM or an error of one agent closes the rendezvous for all."""
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    a.end(error).result(SOON)
    wants_restart(b)
    assert b.meet().result(SOON).world_size == 1


def test_workers_that_fail_of_a_lost_member_do_not_fail_the_job(make: Make) -> None:
    a, b, c = (make((1, 3), start_grace=60) for _ in range(3))
    together(a, b, c)
    c.vanish()
    assert b.end(failed()).result(SOON), "out of restarts, for c's sake"
    wants_restart(a)
    eventually(lambda: a.meet().result(SOON).world_size == 1, SOON)
    assert not a.is_closed()


def test_set_closed_ends_the_job(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    a.set_closed()
    wants_restart(b)
    assert b.is_closed()


def test_too_few_members_until_join_timeout(make: Make) -> None:
    a = make((2, 2), join_timeout=1)
    with pytest.raises(
        RendezvousTimeoutError,
        match=r"no training after 1 s \(join_timeout\): waiting for members: 1 present, at least 2",
    ):
        a.meet().result(SOON)


def test_of_two_members_of_one_name_only_one_trains(make: Make, etcd: str) -> None:
    a = make((1, 1))
    a.meet().result(SOON)
    with contextlib.closing(Member(etcd, a.get_run_id(), (1, 1), prefix="/handler")) as twin:
        met = twin.meet()
        eventually(lambda: a.num_nodes_waiting() or met.done(), SOON)
        if met.done() and met.exception() is None:
            eventually(a.num_nodes_waiting, SOON, what="the other hears that it is out")
        loser = a.meet() if a.num_nodes_waiting() else met
        with pytest.raises(RendezvousConnectionError, match="another agent registered as a"):
            loser.result(SOON)
        assert loser is met or met.result(SOON).world_size == 1


def test_torchrun_and_elasticrun_refuse_each_other(etcd: str, jobs: Callable[[str], Job]) -> None:
    """They wait for each other in different ways: together, both would hang."""
    theirs, ours = jobs("1:2"), jobs("1:2")
    elasticrun = ("elasticjob_runtime", "--no-python", "sleep", "100")
    with (
        contextlib.closing(Member(etcd, "job", (1, 2), prefix=theirs.prefix)) as stranger,
        contextlib.closing(Member(etcd, "job", (1, 2), prefix=ours.prefix)) as a,
    ):
        theirs.start("x", command=elasticrun)
        eventually(lambda: theirs.read("plan"), SOON)
        with pytest.raises(RendezvousConnectionError, match="the job with this --rdzv-id is elasticrun's"):
            stranger.meet().result(SOON)

        a.meet().result(SOON)
        assert ours.start("x", command=elasticrun).exit_code() == ExitCode.CONFIG
        assert not a.num_nodes_waiting()


def test_a_torch_without_libuv(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's: its workers could not use the agent's store, so rank 0's opens one, without libuv."""

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
