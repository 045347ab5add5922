"""Which state of a training is newest, for every pair of kinds, and in random histories."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint import claims
from elasticjob_runtime.training.checkpoint.claims import Found, Listing, Writer
from elasticjob_runtime.training.checkpoint.order import NOTHING, Choice, Held, Kind, State, choose
from hypothesis import given
from hypothesis import strategies as st


def file(step: int, round_number: int = 2, *, job: str = "this", claim: int = 3, choice: int = 0) -> State:
    return State(step=step, job=job, fence=Fence(1, 0, round_number), claim=claim, choice=choice)


def memory(step: int, round_number: int = 2, *, claim: int = 3, choice: int = 0) -> State:
    return dataclasses.replace(file(step, round_number, claim=claim, choice=choice), kind=Kind.MEMORY)


def live(step: int, round_number: int = 2) -> State:
    return dataclasses.replace(file(step, round_number), kind=Kind.LIVE)


def choice_of(*states: State, shared: bool = True) -> Choice:
    """Of one rank's states in one directory, or of one state of each rank."""
    held = [Held(rank=0 if shared else rank, state=state) for rank, state in enumerate(states)]
    return choose(held, "this", shared=shared, ranks=1 if shared else len(states))


IN_ONE_DIRECTORY = {
    "nothing": (NOTHING, NOTHING, "there is no state to load"),
    "a file": (file(8), NOTHING, "continuing from step 8, from storage"),
    "memory without a file": (memory(8), NOTHING, "continuing from step 8, from memory"),
    "a file and a file of the same group": (file(9), file(8), "continuing from step 9, from storage"),
    "a file and one that was saved later, at an earlier step": (
        file(5, 3, claim=4), file(9),
        "continuing from step 5, from storage (not step 9 on storage: step 5 was saved later)",
    ),
    "a file and one of another job, saved later": (
        file(5, job="other", claim=4), file(9),
        "continuing from step 5, from storage (not step 9 on storage: another job has saved step 5 since)",
    ),
    "a file that a person has chosen, and a file": (
        file(5, claim=4, choice=7), file(9),
        "continuing from step 5, from storage (not step 9 on storage: step 5 was saved later)",
    ),
    "what a running group saves after a choice of which it does not know": (
        file(10, claim=5), file(5, claim=4, choice=7), "continuing from step 10, from storage",
    ),
    "memory and a file of the same step": (memory(8), file(8), "continuing from step 8, from memory"),
    "memory and a later file of the same group": (
        file(9), memory(8), "continuing from step 9, from storage (not step 8 in memory: step 9 is newer)",
    ),
    "memory and an earlier file of the same group": (memory(9), file(8), "continuing from step 9, from memory"),
    "memory and a file that its own group saved after it began": (
        memory(9), file(8, claim=4), "continuing from step 9, from memory",
    ),
    "memory and a file of a later group, that went back": (
        file(5, 3), memory(9),
        "continuing from step 5, from storage (not step 9 in memory: a later worker group has saved step 5)",
    ),
    "memory of a later group that went back, and a file": (
        memory(5, 3), file(9),
        "continuing from step 5, from memory (not step 9 on storage: a later worker group has saved step 5)",
    ),
    "memory and the file of another job from which it continued": (
        memory(5), file(9, 7, job="other"),
        "continuing from step 5, from memory (not step 9 on storage: another job has saved step 5 since)",
    ),
    "memory and a file of another job, saved since": (
        file(5, 1, job="other", claim=4), memory(9),
        "continuing from step 5, from storage (not step 9 in memory: another job has saved step 5 since)",
    ),
    "memory and a file without an agent, saved before": (
        memory(5), file(9, 0, job="", claim=0),
        "continuing from step 5, from memory (not step 9 on storage: another job has saved step 5 since)",
    ),
    "memory and a file without an agent, saved since": (
        file(5, 0, job="", claim=4), memory(9),
        "continuing from step 5, from storage (not step 9 in memory: another job has saved step 5 since)",
    ),
    "memory and a file that a person has chosen since": (
        file(5, 1, claim=4, choice=7), memory(9),
        "continuing from step 5, from storage (not step 9 in memory: a person has chosen step 5 since)",
    ),
    "memory that continued from what a person has chosen": (
        memory(6, claim=4, choice=7), file(5, claim=4, choice=7), "continuing from step 6, from memory",
    ),
    "memory and memory of a later step": (memory(9), memory(8), "continuing from step 9, from memory"),
    "memory and memory of a later group": (
        memory(5, 3), memory(9),
        "continuing from step 5, from memory (not step 9 in memory: a later worker group has saved step 5)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("newer", "older", "why"), IN_ONE_DIRECTORY.values(), ids=IN_ONE_DIRECTORY.keys())
def test_the_newest_state_in_one_directory_and_its_memory(newer: State, older: State, why: str) -> None:
    for states in ((newer, older), (older, newer)):
        choice = choice_of(*states)
        assert (choice.state, choice.why) == (newer, why)


ON_SEVERAL_MACHINES = {
    "none": ([NOTHING, NOTHING], (), "there is no state to load"),
    "the same file, which all see": ([file(5), file(5)], (0, 1), "continuing from step 5, from storage"),
    "the same step on disks of their own": (
        [file(5, claim=1), file(5, claim=9)], (0, 1), "continuing from step 5, from storage",
    ),
    "a file on one disk": (
        [NOTHING, file(5), NOTHING], (1,),
        "continuing from step 5, from storage; rank 1 sends it to those that lack it: 0, 2",
    ),
    "the highest step": (
        [file(4), file(5), file(5)], (1, 2),
        "continuing from step 5, from storage; rank 1 sends it to those that lack it: 0",
    ),
    "a later group, even at an earlier step": (
        [file(9, 1), file(5, 2)], (1,),
        "continuing from step 5, from storage; rank 1 sends it to those that lack it: 0 "
        "(not step 9 on storage: a later worker group has saved step 5)",
    ),
    "this job's, whatever another one has left": (
        [file(9, 7, job="other", claim=9), file(5)], (1,),
        "continuing from step 5, from storage; rank 1 sends it to those that lack it: 0 "
        "(not step 9 on storage: step 5 is of this job)",
    ),
    "this job's, whatever a person has chosen of another one": (
        [file(9, 7, job="other", claim=9, choice=7), file(5)], (1,),
        "continuing from step 5, from storage; rank 1 sends it to those that lack it: 0 "
        "(not step 9 on storage: step 5 is of this job)",
    ),
    "one and the same of two that other jobs have left": (
        [file(9, job="one"), file(9, job="other")], (1,),
        "continuing from step 9, from storage; rank 1 sends it to those that lack it: 0",
    ),
    "without agents, the highest step": (
        [State(step=3), State(step=9)], (1,),
        "continuing from step 9, from storage; rank 1 sends it to those that lack it: 0",
    ),
    "what a person has chosen on one machine": (
        [file(5, 1, claim=4, choice=7), file(9, 3), memory(9, 3)], (0,),
        "continuing from step 5, from storage; rank 0 sends it to those that lack it: 1, 2 "
        "(not step 9 on storage: a person has chosen step 5 since; "
        "not step 9 in memory: a person has chosen step 5 since)",
    ),
    "what came from it since": (
        [file(5, 1, claim=4, choice=7), file(6, 4, claim=1, choice=7)], (1,),
        "continuing from step 6, from storage; rank 1 sends it to those that lack it: 0",
    ),
    "memory of one, and the same step on the disk of another": (
        [file(8), memory(8)], (0, 1), "continuing from step 8, from memory",
    ),
    "memory of one, newer than the disk of another": (
        [file(8), memory(9, claim=0)], (1,),
        "continuing from step 9, from memory; rank 1 sends it to those that lack it: 0",
    ),
    "a rank that trains, before a file of a later group": (
        [file(9, 3), live(5)], (1,),
        "continuing from step 5 of the running training; rank 1 sends it to those that lack it: 0 "
        "(not step 9 on storage: step 5 is of a running training)",
    ),
    "a rank that trains, before memory of a higher step": (
        [memory(9, 3), live(5)], (1,),
        "continuing from step 5 of the running training; rank 1 sends it to those that lack it: 0 "
        "(not step 9 in memory: step 5 is of a running training)",
    ),
    "ranks that train, in the latest world": (
        [live(25, 9), live(15, 10), live(15, 10)], (1, 2),
        "continuing from step 15 of the running training; rank 1 sends it to those that lack it: 0 "
        "(not step 25 of a running training: a later worker group has saved step 15)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("states", "ranks", "why"), ON_SEVERAL_MACHINES.values(), ids=ON_SEVERAL_MACHINES.keys())
def test_the_newest_state_of_several_machines(states: Sequence[State], ranks: tuple[int, ...], why: str) -> None:
    choice = choice_of(*states, shared=False)
    assert (choice.ranks, choice.why) == (ranks, why)


OLD, NEW = 2, 3


def shard(rank: int, step: int, number: int, of: int = 2, *, round_number: int = NEW, copied: bool = False) -> Held:
    return Held(rank=rank, state=memory(step, round_number), shard=number, of=of, copied=copied)


SHARDS = {
    "all shards of the newest step": (
        [shard(0, 8, 0), shard(1, 8, 1), shard(0, 4, 0), shard(1, 4, 1)], NOTHING, "step 8, from memory",
    ),
    "shards of ranks of which one has also loaded what a person has chosen elsewhere": (
        [dataclasses.replace(shard(0, 8, 0), state=memory(8, NEW, choice=7)), shard(1, 8, 1)], file(5),
        "step 8, from memory",
    ),
    "the newest step that all have": (
        [shard(0, 8, 0), shard(0, 4, 0), shard(1, 4, 1)], NOTHING,
        "step 4, from memory (step 8 in memory lacks shard 1 of 2)",
    ),
    "a lost member's shard from its neighbour": (
        [shard(0, 8, 0), shard(0, 8, 1, copied=True)], NOTHING,
        "step 8, from memory; shard 1 of 2 from the copy of a neighbour",
    ),
    "shards of another number of ranks": (
        [shard(0, 8, 0, 3), shard(1, 8, 1, 3), shard(0, 8, 2, 3, copied=True)], NOTHING,
        "step 8, from memory; shard 2 of 3 from the copy of a neighbour",
    ),
    "a later group before a higher step": (
        [shard(0, 9, 0, round_number=OLD), shard(1, 9, 1, round_number=OLD), shard(0, 4, 0), shard(1, 4, 1)], NOTHING,
        "step 4, from memory (not step 9 in memory: a later worker group has saved step 4)",
    ),
    "an earlier group, if the later one is not complete": (
        [shard(0, 9, 0, round_number=OLD), shard(1, 9, 1, round_number=OLD), shard(0, 10, 0)], NOTHING,
        "step 9, from memory (step 10 in memory lacks shard 1 of 2)",
    ),
    "memory before a checkpoint of the same step": (
        [shard(0, 8, 0, round_number=OLD), shard(1, 8, 1, round_number=OLD)], file(8, OLD), "step 8, from memory",
    ),
    "a newer checkpoint before memory": (
        [shard(0, 8, 0, round_number=OLD), shard(1, 8, 1, round_number=OLD)], file(9, OLD),
        "step 9, from storage (not step 8 in memory: step 9 is newer)",
    ),
    "storage, if shards are lost": (
        [shard(0, 8, 0, 4), shard(1, 8, 1, 4)], file(5, OLD),
        "step 5, from storage (step 8 in memory lacks shards 2, 3 of 4)",
    ),
    "storage, if another job has saved there since": (
        [shard(0, 8, 0), shard(1, 8, 1)], file(7, OLD, job="other", claim=4),
        "step 7, from storage (not step 8 in memory: another job has saved step 7 since)",
    ),
    "storage, if memory is empty": ([], file(5), "step 5, from storage"),
}  # fmt: skip


@pytest.mark.parametrize(("held", "stored", "why"), SHARDS.values(), ids=SHARDS.keys())
def test_the_newest_step_with_all_its_shards_is_chosen(held: Sequence[Held], stored: State, why: str) -> None:
    choice = choose([*held, Held(rank=0, state=stored)], "this", shared=True)
    assert choice.why == f"continuing from {why}"
    assert sorted(choice.sources) == list(range(choice.held[0].of))


def test_nothing_is_chosen_if_shards_are_lost_and_there_is_no_storage() -> None:
    choice = choose([shard(0, 8, 0)], "this", shared=True)
    assert (choice.state, choice.why) == (NOTHING, "there is no state to load (step 8 in memory lacks shard 1 of 2)")


def test_a_shard_comes_from_where_it_was_made_if_possible() -> None:
    choice = choose([shard(0, 8, 1, copied=True), shard(0, 8, 0), shard(1, 8, 1)], "this", shared=True)
    assert {number: source.rank for number, source in choice.sources.items()} == {0: 0, 1: 1}


def test_all_ranks_choose_the_same_in_whatever_order_they_see_it() -> None:
    held = [shard(rank, 8, number, copied=rank != number) for rank in range(3) for number in range(2)]
    assert choose(held, "this", shared=True) == choose(held[::-1], "this", shared=True)


@dataclasses.dataclass
class Machine:
    """A directory on a disk of its own, and the memory of its agent."""

    listing: Listing = Listing(claims.UNCLAIMED, (), ())  # noqa: RUF009 frozen
    memory: dict[str, State] = dataclasses.field(default_factory=dict)
    """Of each job."""

    def held(self, job: str, rank: int) -> list[Held]:
        files = [claims.state_of(self.listing, found) for found in claims.valid(self.listing)]
        kept = [self.memory[job]] if job in self.memory else []
        return [Held(rank=rank, state=state) for state in (*files, *kept)]


class History:
    """Groups of two jobs in one directory, one at a time, or of one job on two machines with disks of their own. What
    is newer is known here: it was made later."""

    def __init__(self, machines: int) -> None:
        self.machines = [Machine() for _ in range(machines)]
        self.made: dict[tuple[int, State], int] = {}
        """(machine, state) -> when."""
        self.rounds = dict.fromkeys("ab", 0)
        self.now = 0
        self.begin("a")

    def begin(self, job: str) -> None:
        """A new group loads the newest that any rank has; each compares what is on its own machine first."""
        self.rounds[job] += 1
        best = [choose(item.held(job, rank), job, shared=True) for rank, item in enumerate(self.machines)]
        choice = choose([Held(rank=rank, state=item.state) for rank, item in enumerate(best)], job, shared=False)
        survives = [
            self.made[rank, item.state]
            for rank, machine in enumerate(self.machines)
            for item in machine.held(job, rank)
        ]
        if survives:
            rank = next(item.rank for item in choice.held if item.state == choice.state)
            assert self.made[rank, choice.state] >= max(survives), choice.why
        self.job, self.step = job, max(choice.state.step, 0)
        self.writer = Writer(owner=job, fence=Fence(1, 0, self.rounds[job]), choice=choice.state.choice)
        self.claims = [
            choose(
                [item for item in machine.held(job, 0) if item.state.kind is Kind.STORAGE], job, shared=True
            ).state.claim
            for machine in self.machines
        ]

    def keep(self, rank: int) -> None:
        """A step, and a snapshot in memory."""
        self.step += 1
        state = State(
            step=self.step, kind=Kind.MEMORY, job=self.job, fence=self.writer.fence, claim=self.claims[rank],
            choice=self.writer.choice,
        )  # fmt: skip
        self.machines[rank].memory[self.job] = state
        self._make(rank, state)

    def save(self, rank: int) -> None:
        """A step, and a checkpoint, unless another job has claimed the directory since."""
        machine = self.machines[rank]
        if claims.rejection(machine.listing.claim, self.writer):
            return
        if not claims.is_current(machine.listing.claim, self.writer):
            claim = claims.next_claim(machine.listing, self.writer)
            machine.listing = dataclasses.replace(machine.listing, claim=claim)
        self.step += 1
        self._put(rank, Found(machine.listing.claim.number, self.step))

    def choose(self, rank: int, position: int) -> None:
        """A person makes an old checkpoint the newest, and the training begins again."""
        listing = self.machines[rank].listing
        if not listing.checkpoints:
            return
        wanted = listing.checkpoints[position % len(listing.checkpoints)]
        self.now += 1
        writer = dataclasses.replace(listing.claim.writer, choice=self.now)
        others = tuple(checkpoint for checkpoint in listing.checkpoints if checkpoint != wanted)
        claim = dataclasses.replace(claims.next_claim(listing, writer), earlier=listing.claim.earlier)
        self.machines[rank].listing = dataclasses.replace(listing, claim=claim, checkpoints=others)
        self._put(rank, Found(claim.number, wanted.step))
        self.begin(listing.claim.writer.owner or self.job)

    def put_back(self, rank: int, position: int) -> None:
        """A person puts a file back that was removed, without choosing it."""
        listing = self.machines[rank].listing
        found = Found(max(0, listing.claim.number - 1 - position), 90 + position)
        if found.number < listing.claim.number and found.name not in (listing.claim.kept or ()):
            self.machines[rank].listing = dataclasses.replace(listing, checkpoints=(*listing.checkpoints, found))
        self.begin(self.job)

    def lose(self, rank: int, position: int) -> None:
        """Memory, or a file."""
        machine = self.machines[rank]
        files = machine.listing.checkpoints
        if position >= len(files):
            machine.memory.pop(self.job, None)
        else:
            left = files[:position] + files[position + 1 :]
            machine.listing = dataclasses.replace(machine.listing, checkpoints=left)
        self.begin(self.job)

    def _put(self, rank: int, found: Found) -> None:
        listing = self.machines[rank].listing
        others = tuple(checkpoint for checkpoint in listing.checkpoints if checkpoint != found)
        self.machines[rank].listing = dataclasses.replace(listing, checkpoints=(*others, found))
        self._make(rank, claims.state_of(self.machines[rank].listing, found))

    def _make(self, rank: int, state: State) -> None:
        self.made[rank, state] = len(self.made) + 1


EVENTS = ["begin a", "begin b", "keep", "save", "choose", "lose", "put back"]


@pytest.mark.parametrize("machines", [1, 2])
@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 1)), max_size=40))
def test_no_history_goes_back_while_something_newer_survives(machines: int, events: list[tuple[str, int, int]]) -> None:
    history = History(machines)
    for event, position, rank in events:
        if event.startswith("begin"):
            history.begin(event[-1] if machines == 1 else "a")
        elif event in ("keep", "save"):
            getattr(history, event)(rank % machines)
        else:
            getattr(history, event.replace(" ", "_"))(rank % machines, position)
    history.begin(history.job)
