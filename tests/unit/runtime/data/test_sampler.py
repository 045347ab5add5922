"""The elastic sampler: no resize in the middle of an epoch loses, repeats or reorders data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from elasticjob_runtime.data import ElasticDistributedSampler
from hypothesis import given
from hypothesis import strategies as st

resizes = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=12)
"""World sizes, and how many steps each takes before the next resize."""


def world(
    size: int, dataset: range, state: dict[str, int] | None = None, **options: bool
) -> list[ElasticDistributedSampler]:
    """The samplers of all ranks, fresh as after a restart."""
    samplers = [ElasticDistributedSampler(dataset, size, rank, **options) for rank in range(size)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    return samplers


def same_state(samplers: list[ElasticDistributedSampler]) -> dict[str, int]:
    (state,) = {tuple(sampler.state_dict().items()) for sampler in samplers}
    return dict(state)


class TestFixedGlobalBatch:
    @given(
        size=st.integers(0, 300),
        global_batch=st.integers(1, 40),
        worlds=resizes,
        seed=st.integers(0, 5),
        shuffle=st.booleans(),
    )
    def test_each_sample_is_seen_exactly_once_over_any_resizes(
        self, size: int, global_batch: int, worlds: list[tuple[int, int]], seed: int, shuffle: bool
    ) -> None:
        dataset = range(size)
        state = {**ElasticDistributedSampler(dataset, 1, 0).state_dict(), "seed": seed}
        seen: list[int] = []
        batches: list[set[int]] = []
        for world_size, steps in [*worlds, (3, size + 1)]:
            samplers = world(world_size, dataset, state, shuffle=shuffle)
            for _, shares in zip(
                range(steps), zip(*(sampler.batches(global_batch) for sampler in samplers), strict=True), strict=False
            ):
                counts = [len(share) for share in shares]
                assert max(counts) - min(counts) <= 1
                batches.append({index for share in shares for index in share})
                seen += [index for share in shares for index in share]
                for sampler in samplers:
                    sampler.advance()
            state = same_state(samplers)
        assert sorted(seen) == list(dataset)
        alone = world(1, dataset, {**state, "consumed": 0}, shuffle=shuffle)[0]
        assert batches == [set(batch) for batch in alone.batches(global_batch)], (
            "the batches do not depend on the world"
        )

    def test_a_batch_that_was_not_trained_on_is_repeated(self) -> None:
        """Killed between the batch and the end of the optimizer step: the state does not count it."""
        sampler = ElasticDistributedSampler(range(100), 1, 0)
        batches = sampler.batches(10)
        first = next(batches)
        sampler.advance(10)
        lost = next(batches)
        resumed = world(1, range(100), sampler.state_dict())[0]
        assert next(resumed.batches(10)) == lost != first

    def test_the_last_partial_batch_reaches_all_ranks_even_if_empty(self) -> None:
        shares = [list(sampler.batches(4)) for sampler in world(3, range(9))]
        assert [[len(share) for share in rank] for rank in shares] == [[2, 2, 1], [1, 1, 0], [1, 1, 0]]


lives = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6), st.integers(0, 6)), max_size=12)
"""Lives of a worker group: its size, how many steps it takes, and after how many of them it saves, if it gets there."""


class TestBatchSampler:
    """For a DataLoader of the script's own: no rank may be without a batch."""

    @given(
        size=st.integers(0, 300),
        global_batch=st.integers(1, 40),
        history=lives,
        shuffle=st.booleans(),
        drop_last=st.booleans(),
    )
    def test_each_sample_counts_exactly_once_over_any_history_of_crashes_and_resizes(
        self, size: int, global_batch: int, history: list[tuple[int, int, int]], shuffle: bool, drop_last: bool
    ) -> None:
        dataset = range(size)
        state = ElasticDistributedSampler(dataset, 1, 0).state_dict()
        survived: list[int] = []
        for world_size, steps, saved_after in [*history, (3, size + 1, size + 1)]:
            samplers = world(world_size, dataset, state, shuffle=shuffle, drop_last=drop_last)
            loaders = [sampler.batch_sampler(global_batch) for sampler in samplers]
            (length,) = {len(loader) for loader in loaders}
            every = list(zip(*loaders, strict=True))
            assert len(every) == length
            trained: list[int] = []
            for done, shares in enumerate(every[:steps], 1):
                trained += self._step(samplers, shares, global_batch)
                if done in (saved_after, length):  # the rest of this life is lost
                    state = same_state(samplers)
                    survived += trained
                    trained = []
        counts = Counter(survived)
        assert set(counts.values()) <= {1}
        left_out = size - len(counts)
        assert left_out < global_batch if drop_last else left_out == 0

    def _step(
        self, samplers: list[ElasticDistributedSampler], shares: tuple[list[int], ...], global_batch: int
    ) -> list[int]:
        """All ranks train on their shares. Returns the samples that count."""
        left = len(samplers[0].dataset) - samplers[0].consumed
        weights = [sampler.loss_weight for sampler in samplers]
        count = [share for share, weight in zip(shares, weights, strict=True) if weight]
        assert min(map(len, shares)) >= 1, "DDP needs all ranks"
        assert len(count) == len(shares) or left < len(shares) or global_batch < len(shares)
        sizes = [len(share) for share in count]
        assert max(sizes) - min(sizes) <= 1
        samples = [index for share in count for index in share]
        averaged = sum(weight * sum(share) / len(share) for share, weight in zip(shares, weights, strict=True)) / len(
            shares
        )
        assert averaged == pytest.approx(sum(samples) / len(samples)), "the mean over samples"
        for sampler in samplers:
            sampler.advance()
        assert samplers[0].consumed == len(samplers[0].dataset) - left + len(samples)
        return samples

    def test_a_last_batch_that_is_too_short_for_all_ranks_gets_samples_of_the_one_before(self) -> None:
        shares = [list(sampler.batch_sampler(8)) for sampler in world(4, range(17))]
        assert [[len(share) for share in rank] for rank in shares] == [[2, 2, 1], [2, 1, 1], [2, 1, 1], [2, 1, 1]]

    def test_a_rank_without_a_sample_gets_one_that_does_not_count(self) -> None:
        samplers = world(4, range(3), shuffle=False)
        assert [list(sampler.batch_sampler(8)) for sampler in samplers] == [[[0]], [[1]], [[2]], [[0]]]
        assert [sampler.loss_weight for sampler in samplers] == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0])

    def test_the_next_iteration_begins_where_the_sampler_is(self) -> None:
        sampler = ElasticDistributedSampler(range(20), 1, 0)
        loader = sampler.batch_sampler(8)
        whole = list(loader)
        sampler.advance()
        assert list(loader) == whole[1:]
        sampler.set_epoch(1)
        assert len(loader) == 3


class TestDataLoaderStyle:
    """Iteration with a batch per rank, as torch's DataLoader does it."""

    @given(size=st.integers(1, 300), batch=st.integers(1, 9), worlds=resizes, drop_last=st.booleans())
    def test_only_the_last_turn_of_an_epoch_is_padded_or_dropped(
        self, size: int, batch: int, worlds: list[tuple[int, int]], drop_last: bool
    ) -> None:
        dataset = range(size)
        state = ElasticDistributedSampler(dataset, 1, 0).state_dict()
        seen: list[int] = []
        for world_size, steps in [*worlds, (3, size + 1)]:
            samplers = world(world_size, dataset, state, drop_last=drop_last)
            (length,) = {len(sampler) for sampler in samplers}
            shares = [list(sampler) for sampler in samplers]
            assert {len(share) for share in shares} == {length}, "DDP hangs where ranks take different numbers of steps"
            for start in range(0, min(length, steps * batch), batch):
                seen += [index for share in shares for index in share[start : start + batch]]
                for sampler in samplers:
                    sampler.advance(batch * world_size)
            state = same_state(samplers)
            left = size - state["consumed"]
            if left == 0 or (drop_last and left < world_size):
                break
        counts = Counter(seen)
        if drop_last:
            assert set(counts.values()) <= {1}
            assert size - len(counts) < world_size
        else:
            assert set(counts) == set(dataset)
            assert counts.total() - size < world_size

    def test_without_advance_it_behaves_like_a_distributed_sampler(self) -> None:
        sampler = ElasticDistributedSampler(range(10), 2, 1)
        assert list(sampler) == list(sampler)
        assert len(list(sampler)) == len(sampler) == 5


class TestEpochs:
    def test_each_epoch_and_each_seed_has_its_own_order(self) -> None:
        sampler = ElasticDistributedSampler(range(100), 1, 0)
        first = list(sampler)
        sampler.set_epoch(1)
        assert list(sampler) != first
        assert list(ElasticDistributedSampler(range(100), 1, 0, seed=1)) != first

    def test_the_usual_epoch_loop_continues_in_the_middle_of_an_epoch(self) -> None:
        """`for epoch in range(sampler.epoch, n): sampler.set_epoch(epoch)`: the first call after a resume changes
        nothing."""
        sampler = ElasticDistributedSampler(range(100), 1, 0)
        sampler.set_epoch(3)
        sampler.advance(40)
        rest = list(sampler)
        resumed = world(1, range(100), sampler.state_dict())[0]
        resumed.set_epoch(3)
        assert list(resumed) == rest
        resumed.set_epoch(4)
        assert resumed.consumed == 0

    def test_advance_stops_at_the_end_of_the_epoch(self) -> None:
        sampler = ElasticDistributedSampler(range(100), 1, 0)
        sampler.advance(96)
        sampler.advance(64)
        assert sampler.consumed == 100
        assert list(sampler) == []
        assert list(sampler.batches(8)) == []

    def test_start_index_skips_consumed_samples(self) -> None:
        whole = list(ElasticDistributedSampler(range(100), 1, 0))
        assert list(ElasticDistributedSampler(range(100), 1, 0, 30)) == whole[30:]

    def test_without_shuffle_ranks_take_turns(self) -> None:
        assert list(ElasticDistributedSampler(range(6), 2, 1, shuffle=False)) == [1, 3, 5]


def sampler_of(size: int, *arguments: int) -> ElasticDistributedSampler:
    return ElasticDistributedSampler(range(size), *arguments)


OTHER = sampler_of(10, 1, 0).state_dict()
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a rank after the last": (lambda: sampler_of(10, 2, 2), "rank 2 is out of range"),
    "a negative rank": (lambda: sampler_of(10, 2, -1), "rank -1 is out of range"),
    "no ranks": (lambda: sampler_of(10, 0, 0), "rank 0 is out of range"),
    "a start before the data set": (lambda: sampler_of(10, 1, 0, -1), "start_index"),
    "a start after the data set": (lambda: sampler_of(10, 1, 0, 11), "start_index"),
    "the state of another data set": (lambda: sampler_of(11, 1, 0).load_state_dict(OTHER), "10 samples, but .* 11"),
    "a batch without samples": (lambda: sampler_of(10, 1, 0).batches(0), "global_batch_size"),
    "a batch of unknown size": (lambda: sampler_of(10, 1, 0).advance(), "call `batches` or `batch_sampler` before"),
    "a negative advance": (lambda: sampler_of(10, 1, 0).advance(-1), "samples must be 0 or more"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_an_error(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


SCRIPT = (
    "import sys; from elasticjob_runtime.data import ElasticDistributedSampler as S; s = S(range(10));"
    "print(s.rank, s.num_replicas, 'torch' in sys.modules)"
)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"RANK": "2", "WORLD_SIZE": "5"}, "2 5 False"), ({}, "0 1 False")],
    ids=["under a launcher", "plain python"],
)
def test_rank_and_world_come_from_the_environment_without_importing_torch(
    variables: dict[str, str], expected: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment | variables, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.strip() == expected
