"""Which of two states is newer, for every pair of kinds."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint import claims
from elasticjob_runtime.training.checkpoint.claims import Found, Listing, Writer
from elasticjob_runtime.training.checkpoint.order import NOTHING, State, why_older
from hypothesis import given
from hypothesis import strategies as st


def state(step: int, round_number: int = 2, *, job: str = "this", claim: int = 3, chosen: bool = False) -> State:
    return State(step=step, job=job, fence=Fence(1, 0, round_number), claim=claim, chosen=chosen)


@pytest.mark.parametrize(
    ("memory", "file", "reason"),
    [
        pytest.param(state(8), NOTHING, None, id="no file"),
        pytest.param(state(8), state(8), None, id="the same state"),
        pytest.param(state(8), state(9), "step 9 is newer", id="a later step of the same group"),
        pytest.param(state(9), state(8), None, id="an earlier step of the same group"),
        pytest.param(state(9), state(8, claim=4), None, id="saved after memory's process began, by its own group"),
        pytest.param(
            state(9), state(5, 3), "a later worker group has saved step 5", id="a later group, that went back"
        ),
        pytest.param(state(5, 3), state(9), None, id="memory of a later group, that went back"),
        pytest.param(state(5), state(9, 7, job="other"), None, id="of another job, from which this one continued"),
        pytest.param(
            state(9), state(5, 1, job="other", claim=4), "another job has saved step 5 since", id="another job since"
        ),
        pytest.param(state(5), state(9, 0, job="", claim=0), None, id="saved without an agent, before"),
        pytest.param(
            state(9), state(5, 0, job="", claim=4), "another job has saved step 5 since", id="without an agent, since"
        ),
        pytest.param(
            state(9), state(5, 1, claim=4, chosen=True), "a person has chosen step 5 since", id="chosen since"
        ),
        pytest.param(state(9), state(5, chosen=True), None, id="chosen before, and continued from"),
    ],
)
def test_memory_counts_unless_something_newer_is_on_storage(memory: State, file: State, reason: str | None) -> None:
    assert why_older(memory, file) == reason


def test_states_on_several_machines_are_in_one_order() -> None:
    ascending = [NOTHING, state(3, 9, job="other"), state(90, 1, job="other"), state(80, 1), state(20), state(21)]
    assert sorted(set(ascending), key=lambda each: each.precedence("this")) == ascending


class History:
    """Two jobs that share a directory, one group at a time. What is newer is known here: it was made later."""

    def __init__(self) -> None:
        self.listing = Listing(claims.UNCLAIMED, (), ())
        self.memory: dict[str, State] = {}
        """Of each job's agents."""
        self.made: dict[State | Found, int] = {}
        self.rounds = dict.fromkeys("ab", 0)
        self.begin("a")

    def newest_file(self) -> tuple[State, int]:
        found = next(iter(claims.valid(self.listing)), None)
        return (claims.state_of(self.listing, found), self.made[found]) if found is not None else (NOTHING, 0)

    def begin(self, job: str) -> None:
        """A new group loads what it can find."""
        self.rounds[job] += 1
        self.job, self.writer = job, Writer(owner=job, fence=Fence(1, 0, self.rounds[job]))
        file, file_made = self.newest_file()
        self.claim = file.claim
        memory = self.memory.get(job)
        chosen, made = file, file_made
        if memory is not None and why_older(memory, file) is None:
            chosen, made = memory, self.made[memory]
        assert made >= max(file_made, self.made[memory] if memory is not None else 0)
        self.step = max(chosen.step, 0)

    def keep(self) -> None:
        """A step, and a snapshot in memory."""
        self.step += 1
        state = State(step=self.step, job=self.job, fence=self.writer.fence, claim=self.claim)
        self.memory[self.job] = state
        self.made[state] = len(self.made) + 1

    def save(self) -> None:
        """A step, and a checkpoint, unless another job has claimed the directory since."""
        if claims.rejection(self.listing.claim, self.writer):
            return
        if not claims.is_current(self.listing.claim, self.writer):
            self.listing = dataclasses.replace(self.listing, claim=claims.next_claim(self.listing, self.writer))
        self.step += 1
        found = Found(self.listing.claim.number, self.step)
        kept = [each for each in self.listing.checkpoints if each != found]
        self.listing = dataclasses.replace(self.listing, checkpoints=(*kept, found))
        self.made[found] = len(self.made) + 1

    def choose(self, position: int) -> None:
        """A person makes an old checkpoint the newest."""
        if not self.listing.checkpoints:
            return
        wanted = self.listing.checkpoints[position % len(self.listing.checkpoints)]
        number = claims.next_number(self.listing)
        kept, savers = tuple(each.name for each in claims.valid(self.listing)), claims.savers(self.listing)
        claim = dataclasses.replace(self.listing.claim, number=number, kept=kept, savers=savers, chosen=(number,))
        found = Found(number, wanted.step)
        others = tuple(each for each in self.listing.checkpoints if each != wanted)
        self.listing = dataclasses.replace(self.listing, claim=claim, checkpoints=(*others, found))
        self.made[found] = len(self.made) + 1
        self.begin(self.job)

    def lose(self, position: int) -> None:
        """Memory, or a file."""
        files = self.listing.checkpoints
        if position >= len(files):
            self.memory.pop(self.job, None)
        else:
            self.listing = dataclasses.replace(self.listing, checkpoints=files[:position] + files[position + 1 :])
        self.begin(self.job)


@given(
    st.lists(st.tuples(st.sampled_from(["begin a", "begin b", "keep", "save", "choose", "lose"]), st.integers(0, 3)))
)
def test_no_history_of_groups_claims_saves_and_losses_goes_back_while_something_newer_survives(
    events: list[tuple[str, int]],
) -> None:
    history = History()
    for event, position in events:
        if event.startswith("begin"):
            history.begin(event[-1])
        elif event in ("choose", "lose"):
            getattr(history, event)(position)
        else:
            getattr(history, event)()
    history.begin(history.job)
