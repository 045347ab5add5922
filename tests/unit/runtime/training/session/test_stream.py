"""Streams: every sample exactly once whatever the world sizes, and a clear error for streams that cannot be read so."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.data import stream_reader
from elasticjob_runtime.data.stream_reader import Open
from elasticjob_runtime.data.streams import SourceState, digest
from elasticjob_runtime.training.session.feed import Cursor, LoaderOptions, Share, StreamOrder
from elasticjob_runtime.training.session.interruption import OverError
from elasticjob_runtime.training.session.source_states import SourceStates
from elasticjob_runtime.training.session.stream import StreamFeed, check_dataset, stream_order
from elasticjob_runtime.training.session.world import SessionError

pytestmark = pytest.mark.timeout(60)


class World:
    """Ranks that are threads of this process."""

    def __init__(self, size: int, breaks: Callable[[], bool] = lambda: False) -> None:
        self.size = size
        self._breaks = breaks
        self._barrier = threading.Barrier(size, timeout=30)
        self._values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        with self._over():
            self._barrier.wait()
            found = list(self._values)
            self._barrier.wait()
        if self._breaks():  # on some ranks only
            self._barrier.abort()
            raise OverError
        return found

    @contextlib.contextmanager
    def _over(self) -> Iterator[None]:
        try:
            yield
        except threading.BrokenBarrierError:
            raise OverError from None

    def leave(self) -> None:
        self._barrier.abort()


class Ranks:
    def __init__(self) -> None:
        self.world = 0
        self.inside: tuple[World, int] = World(1), 0

    def enter(self, world: World, rank: int) -> None:
        self.world += 1
        self.inside = world, rank

    def largest(self, numbers: Sequence[int]) -> list[int]:
        world, rank = self.inside
        return [max(column) for column in zip(*world.exchange(rank, list(numbers)), strict=True)]

    def gather(self, value: Any) -> list[Any]:
        world, rank = self.inside
        return world.exchange(rank, value)


class Process:
    def __init__(self, open_stream: Open, order: StreamOrder, **options: Any) -> None:
        self.ranks, self.sources = Ranks(), SourceStates()
        given = {"epoch": 0, "batch_size": 6, "drop_last": False, "collate_fn": list, "options": LoaderOptions()}
        arguments: dict[str, Any] = {**given, **options, "sources": self.sources, "ranks": self.ranks}
        self.feed = StreamFeed(open_stream, order, **arguments)

    def next(self, cursor: Cursor) -> tuple[Any, Share] | OverError | SessionError | None:
        world, rank = self.ranks.inside
        try:
            return self.feed.next(cursor, rank, world.size)
        except (OverError, SessionError) as error:
            return error
        except BaseException:
            world.leave()
            raise


def batch(processes: Sequence[Process], cursor: Cursor) -> list[Any]:
    """In plain threads. A process of a loader that is forked in one of a ThreadPoolExecutor ends with exit code 1,
    because it joins all threads of the pool, itself among them; torch's handler of SIGCHLD, which tests before this one
    may have set, then raises an error in whatever the main thread does."""
    outcomes: list[concurrent.futures.Future[Any]] = [concurrent.futures.Future() for _ in processes]

    def take(process: Process, outcome: concurrent.futures.Future[Any]) -> None:
        try:
            outcome.set_result(process.next(cursor))
        except BaseException as error:  # noqa: BLE001 for the main thread
            outcome.set_exception(error)

    threads = [threading.Thread(target=take, args=pair) for pair in zip(processes, outcomes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcome.result() for outcome in outcomes]


def enter(processes: Sequence[Process], breaks: Callable[[], bool] = lambda: False) -> None:
    world = World(len(processes), breaks)
    for rank, process in enumerate(processes):
        process.ranks.enter(world, rank)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's, of loaders that are given up
@pytest.mark.parametrize(
    ("seed", "num_workers"), [(0, 0), (1, 0), (2, 0), (3, 0), pytest.param(1, 2, marks=pytest.mark.nightly)]
)
def test_every_sample_is_committed_once_through_50_changes_of_size(seed: int, num_workers: int) -> None:
    """Processes are lost and join, steps and exchanges are interrupted; sources are opened again and skip."""
    choose = random.Random(seed)
    streams, size, declared, drop_last = choose.randint(4, 9), choose.randint(3, 7), seed % 2 == 0, seed == 3
    lengths = [choose.randint(90, 140) for _ in range(streams)]
    order = StreamOrder(streams=streams, lengths=tuple(lengths) if declared else None)

    def process() -> Process:
        options = LoaderOptions(num_workers=num_workers if choose.random() < 0.2 else 0)
        return Process(
            lambda stream, epoch: iter([(epoch, stream, item) for item in range(lengths[stream])]), order,
            epoch=3, batch_size=size, drop_last=drop_last, options=options,
        )  # fmt: skip

    cursor, taken, changes = Cursor(epoch=3), [], 0
    processes = [process()]
    while cursor.epoch == 3:
        changes += 1
        choose.shuffle(processes)
        for lost in processes[choose.randint(1, len(processes)) :]:
            lost.feed.close()
            processes.remove(lost)
        processes += [process() for _ in range(choose.randint(0, 6 if len(processes) < 6 else 0))]
        enter(processes, lambda: choose.random() < 0.02)
        for _ in range(choose.randint(1, 2)):
            found = batch(processes, cursor)
            if any(isinstance(one, OverError) for one in found):
                break
            assert not any(isinstance(one, SessionError) for one in found), found
            shares = [share for _, share in found]
            assert len({share.next for share in shares}) == 1
            assert {share.batch for share in shares} == {sum(share.samples for share in shares)}
            assert all(len(items) == max(1, share.samples) for items, share in found)
            if choose.random() < 0.2:
                break  # the step is interrupted
            taken += [item for items, share in found for item in items[: share.samples]]
            cursor = shares[0].next
            if cursor.epoch != 3:
                break
    assert changes >= 50
    assert cursor == Cursor(epoch=4)
    rounds = [(item, stream) for item in range(140) for stream in range(streams)]
    if declared:
        expected = [(3, stream, item) for item, stream in rounds if item < lengths[stream]]
    else:
        end = next(number for number, (item, stream) in enumerate(rounds) if item == lengths[stream])
        expected = [(3, stream, item) for item, stream in rounds[: end // size * size if drop_last else end]]
    assert sorted(taken) == sorted(expected)
    for one in processes:
        one.feed.close()


def numbers(stream: int, _epoch: int) -> Iterator[int]:
    return iter(range(stream * 1000, stream * 1000 + 50))


def train(process: Process, steps: int = 1000, cursor: Cursor = Cursor()) -> tuple[list[int], Cursor]:  # noqa: B008
    enter([process])
    taken: list[int] = []
    for _ in range(steps):
        (found,) = batch([process], cursor)
        if isinstance(found, SessionError):
            raise found
        taken, cursor = taken + found[0], found[1].next
        if cursor.epoch:
            break
    return taken, cursor


FOUR = StreamOrder(streams=4, lengths=None)


def test_streams_that_stay_are_not_opened_again_and_the_others_skip_what_was_trained_on() -> None:
    opened: list[int] = []

    def open_stream(stream: int, epoch: int) -> Iterator[int]:
        opened.append(stream)
        return numbers(stream, epoch)

    one, other = Process(open_stream, FOUR), Process(open_stream, FOUR)
    enter([one, other])
    found = batch([one, other], Cursor())
    assert sorted(opened) == [0, 1, 2, 3]
    enter([one])
    taken, _ = train(one, 1, found[0][1].next)
    assert sorted(opened[4:]) == [1, 3]
    assert taken == [2001, 3001, 2, 1002, 2002, 3002]


class Stateful:
    """A source with a state, which `kept` makes useless."""

    def __init__(self, stream: int, read: list[int], *, forgets: bool = False) -> None:
        self._stream, self._read, self._forgets, self._at = stream, read, forgets, 0

    def __iter__(self) -> Iterator[int]:
        while self._at < 50:
            self._at += 1
            self._read.append(self._at)
            yield self._stream * 1000 + self._at

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"] + (3 if self._forgets else 0)


@pytest.mark.parametrize("forgets", [False, True])
def test_the_state_of_a_source_makes_skipping_fast_and_is_never_trusted(
    forgets: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_reader, "STATE_INTERVAL", 0.0)
    read: list[int] = []
    first = Process(lambda stream, _: Stateful(stream, read, forgets=forgets), FOUR)
    taken, cursor = train(first, 20)
    second = Process(lambda stream, _: Stateful(stream, read, forgets=forgets), FOUR)
    second.sources.load_state_dict(first.sources.state_dict())
    read.clear()
    rest, _ = train(second, cursor=cursor)
    assert sorted(taken + rest) == sorted(stream * 1000 + at + 1 for stream in range(4) for at in range(50))
    assert (min(read) == 1) is forgets
    assert ("the state of its source does not restore it" in caplog.text) is forgets


def shuffled(_stream: int, _epoch: int) -> Iterator[int]:
    return iter(random.sample(range(1000), 50))


def shorter(stream: int, epoch: int) -> list[int]:
    return list(numbers(stream, epoch))[: 50 if stream else 3]


@pytest.mark.parametrize(
    ("open_again", "message"),
    [
        (shuffled, "stream 0 of epoch 0 is not deterministic: its first 8 items"),
        (shorter, "stream 0 of epoch 0 has ended after 3 items, of which 8 were trained on"),
    ],
)
def test_a_stream_that_is_not_deterministic_is_named_when_it_is_opened_again(open_again: Open, message: str) -> None:
    _, cursor = train(Process(numbers, FOUR), 5)
    with pytest.raises(SessionError, match=message):
        train(Process(open_again, FOUR), cursor=cursor)


def test_more_streams_than_shards_are_an_error_on_all_ranks() -> None:
    processes = [Process(lambda stream, epoch: numbers(stream, epoch) if stream < 3 else iter(()), FOUR) for _ in "ab"]
    enter(processes)
    found = batch(processes, Cursor())
    assert [str(error) for error in found] == [
        "stream 3 of epoch 0 has no items: streams=4 is more than there are shards"
    ] * 2


def test_an_epoch_that_drop_last_leaves_without_a_batch_is_an_error_on_all_ranks() -> None:
    processes = [Process(lambda *_: iter(range(5)), FOUR, batch_size=24, drop_last=True) for _ in "ab"]
    enter(processes)
    message = "with drop_last, epoch 0 of 20 samples has no batch of 24: give session.stream() a smaller batch_size"
    assert [str(error) for error in batch(processes, Cursor())] == [message] * 2
    before = Cursor(consumed=12, digests=(functools.reduce(digest, range(3), 0),) * 4)
    assert batch(processes, before) == [None] * 2, "it began with smaller batches"


def test_a_stream_that_ends_before_its_length_is_named() -> None:
    process = Process(numbers, StreamOrder(streams=4, lengths=(50, 50, 51, 50)))
    with pytest.raises(SessionError, match=r"stream 2 of epoch 0 has ended after 50 items, but its length .* is 51"):
        train(process)


def test_ranks_with_other_arguments_are_an_error_on_all() -> None:
    processes = [Process(numbers, FOUR), Process(numbers, StreamOrder(streams=5, lengths=None))]
    enter(processes)
    for error in batch(processes, Cursor()):
        assert "session.stream() has other arguments on rank 1 than on rank 0" in str(error)


def test_a_rank_without_streams_gets_a_batch_that_does_not_count() -> None:
    processes = [Process(numbers, StreamOrder(streams=1, lengths=None)) for _ in "ab"]
    enter(processes)
    (_, _), (items, share) = batch(processes, Cursor())
    assert (items, share.samples, share.weight(2)) == ([0], 0, 0.0)


def in_loader() -> int:
    info = torch.utils.data.get_worker_info()
    return -1 if info is None else info.id


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sources_in_processes_of_a_loader_do_not_see_them() -> None:
    """Those of Hugging Face and WebDataset would give a part of their items only."""
    begun = torch.zeros(2).share_memory_()
    options = LoaderOptions(num_workers=2, worker_init_fn=lambda number: begun.__setitem__(in_loader(), number + 1))
    process = Process(lambda *_: iter([in_loader()] * 3), FOUR, options=options)
    with contextlib.closing(process.feed):
        taken, _ = train(process)
    assert taken == [-1] * 12
    assert begun.tolist() == [1, 2], "the script's own function does"


def test_the_states_of_sources_are_forgotten_when_later_ones_replace_them() -> None:
    states = SourceStates()
    for count in (10, 20, 30, 40):
        states.add(0, [SourceState(count, 1, {"at": count})], committed=30)
    assert [state.count for state in states.of(0)] == [20, 30, 40]
    states.begin_epoch(1)
    assert states.of(0) == []


def test_what_cannot_be_divided_among_ranks_is_refused_by_name() -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    streaming = type("StreamingDataset", (Endless,), {"__module__": "streaming.base.dataset", "__len__": lambda _: 3})
    with pytest.raises(TypeError, match=r"Endless has none: use session\.stream\(\)"):
        check_dataset(Endless())
    with pytest.raises(TypeError, match="StreamingDataset of mosaicml-streaming divides itself among the ranks"):
        check_dataset(streaming())
    with pytest.raises(SessionError, match="StreamingDataset of mosaicml-streaming divides itself"):
        train(Process(lambda *_: streaming(), FOUR))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"open_stream": [1]}, r"takes a function open\(stream, epoch\)"),
        ({"streams": 0}, "streams and batch_size are 1 or more: 0, 8"),
        ({"lengths": [3, 3]}, "lengths are of 4 streams"),
        ({"lengths": 1, "drop_last": True}, "streams of 4 items have no batch of 8"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"open_stream": numbers, "streams": 4, "lengths": None, "batch_size": 8, "drop_last": False}
    with pytest.raises((TypeError, ValueError), match=message):
        stream_order(**{**given, **arguments})
