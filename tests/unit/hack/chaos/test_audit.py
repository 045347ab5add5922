"""What the audit finds in a ledger: each promise broken, and kept."""

from __future__ import annotations

import dataclasses

import pytest

from hack.chaos import audit
from hack.chaos.ledger import Done, Group, Process, Save, Work

LIMITS = audit.Limits(together=1.0, samples=8)


def group(
    token: str,
    began: float,
    restored: tuple[int, str],
    steps: range,
    saves: tuple[Save, ...] = (),
    every: float = 1.0,
    samples: dict[int, tuple[int, ...]] | None = None,
) -> Group:
    """A group of one, whose first step is done a second after it began."""
    work = tuple(Work(step, (step - 1) // 4, _samples(step, samples)) for step in steps)
    done = tuple(Done(step, began + 1 + every * number) for number, step in enumerate(steps))
    process = Process(member="m", process=1, rank=0, world=1, token=token, work=work)
    return Group(token=token, processes=(process,), began=began, restored=restored, done=done, saves=saves)


def _samples(step: int, samples: dict[int, tuple[int, ...]] | None) -> tuple[int, ...]:
    """Two of the eight samples of an epoch of four steps."""
    first = (step - 1) % 4 * 2
    return (samples or {}).get(step, (first, first + 1))


def saved(step: int, digest: str, at: float) -> Save:
    return Save(step, digest, at - 0.1, at)


FIRST = group("a", 0, (0, ""), range(1, 6), (saved(2, "a2", 3), saved(4, "a4", 5)))
"""Does step 5 at 5 s; its newest checkpoint is of step 4."""


def kinds(*groups: Group) -> list[str]:
    return [finding.kind for finding in audit.audit(groups, LIMITS)]


def test_a_history_that_continues_from_the_newest_commit_has_no_findings() -> None:
    assert kinds(FIRST, group("b", 10, (4, "a4"), range(5, 9))) == []


def test_an_empty_ledger_has_no_findings() -> None:
    assert kinds() == []


def test_a_restore_that_skips_a_committed_step_is_found() -> None:
    assert kinds(FIRST, group("b", 10, (2, "a2"), range(3, 9))) == [audit.MISSING]


def test_a_start_from_scratch_despite_a_committed_step_is_found() -> None:
    assert kinds(FIRST, group("b", 10, (0, ""), range(1, 9))) == [audit.MISSING]


def test_a_commit_after_the_restore_is_not_missing() -> None:
    late = dataclasses.replace(FIRST, saves=(saved(2, "a2", 3), saved(4, "a4", 10.5)))
    assert audit.MISSING not in kinds(late, group("b", 10, (2, "a2"), range(3, 9)))


def test_a_checkpoint_whose_writer_died_before_recording_it_may_be_restored() -> None:
    unsure = dataclasses.replace(FIRST, saves=(saved(2, "a2", 3), Save(4, "a4", 4.9)))
    assert kinds(unsure, group("b", 10, (4, "a4"), range(5, 9))) == []


def test_a_restore_of_what_was_never_saved_is_found() -> None:
    assert audit.UNKNOWN in kinds(FIRST, group("b", 10, (4, "other"), range(5, 9)))


def test_restoring_an_older_groups_work_over_a_newer_ones_is_found() -> None:
    island = group("a", 0, (0, ""), range(1, 21), (saved(4, "a4", 5), saved(20, "a20", 21)))
    newer = group("b", 10, (4, "a4"), range(5, 9), (saved(8, "b8", 14),))
    assert audit.OLDER_OVER_NEWER in kinds(island, newer, group("c", 30, (20, "a20"), range(21, 23)))
    assert audit.OLDER_OVER_NEWER not in kinds(island, newer, group("c", 30, (8, "b8"), range(9, 11)))


def fenced(one: Group, fence: str) -> Group:
    return dataclasses.replace(
        one, processes=tuple(dataclasses.replace(process, fence=fence) for process in one.processes)
    )


def test_a_later_group_planned_by_an_older_etcd_counts_as_older() -> None:
    """As when an island reconnects: it restores what the newer group committed, and its first save is rejected."""
    newer = fenced(group("b", 10, (4, "a4"), range(5, 20), (saved(8, "b8", 14), saved(16, "b16", 22))), "1.2.1")
    stray = dataclasses.replace(
        fenced(group("c", 15, (8, "b8"), range(9, 11), every=0.1), "1.1.2"), refused=("a newer one has taken over",)
    )
    old = fenced(FIRST, "1.1.1")
    assert kinds(old, newer, stray, fenced(group("d", 30, (16, "b16"), range(17, 19)), "1.2.2")) == []
    committing = dataclasses.replace(stray, saves=(saved(10, "c10", 16.5),))
    assert audit.EXTRA_COMMIT in kinds(old, newer, committing)
    after = fenced(group("d", 30, (10, "c10"), range(11, 13)), "1.2.2")
    assert audit.OLDER_OVER_NEWER in kinds(old, newer, committing, after)


def test_rounds_are_compared_as_numbers() -> None:
    assert fenced(FIRST, "1.2.10").order > fenced(FIRST, "1.2.9").order


def test_a_newer_group_that_ended_before_its_first_commit_owns_nothing() -> None:
    going_on = group("a", 0, (0, ""), range(1, 9), (saved(4, "a4", 5), saved(8, "a8", 9)))
    stillborn = group("b", 7, (4, "a4"), range(0))
    assert kinds(going_on, stillborn, group("c", 20, (8, "a8"), range(9, 11))) == []


def test_two_concurrent_groups_are_found_only_beyond_the_grace() -> None:
    newer = group("b", 3, (2, "a2"), range(3, 9))
    (overlap,) = audit.overlaps([FIRST, newer])
    assert (overlap.seconds, overlap.steps) == (1.0, 1)
    assert audit.TWO_GROUPS not in kinds(FIRST, newer)
    longer = dataclasses.replace(FIRST, done=(*FIRST.done, Done(6, 6.0)))
    assert audit.TWO_GROUPS in kinds(longer, newer)


def test_an_older_group_that_commits_while_a_newer_one_trains_is_found_even_within_the_grace() -> None:
    newer = group("b", 2, (0, ""), range(1, 3), (saved(1, "b1", 3.5),), every=0.1)
    older = dataclasses.replace(FIRST, saves=(saved(1, "a1", 3.9),), done=(Done(1, 3.8),))
    assert audit.EXTRA_COMMIT in kinds(older, newer)
    assert audit.EXTRA_COMMIT not in [
        each.kind for each in audit.audit([older, newer], dataclasses.replace(LIMITS, fenced=False))
    ]
    (overlap,) = audit.overlaps([older, newer])
    assert (overlap.commits, overlap.split) == (1, 1)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ({6: (0, 1)}, "2 samples were repeated"),
        ({3: (4,)}, "1 samples are missing"),
    ],
)
def test_samples_trained_twice_or_never_are_found(samples: dict[int, tuple[int, ...]], complaint: str) -> None:
    first = group("a", 0, (0, ""), range(1, 5), (saved(4, "a4", 5),), samples=samples)
    findings = audit.audit([first, group("b", 10, (4, "a4"), range(5, 9), samples=samples)], LIMITS)
    assert any(complaint in finding.text for finding in findings if finding.kind == audit.SAMPLES)


def test_steps_that_were_redone_count_once() -> None:
    """Step 5 was trained by both; only the second time is in the history."""
    groups = [FIRST, group("b", 10, (4, "a4"), range(5, 9))]
    assert audit.chain(groups) == [(groups[0], 4), (groups[1], 8)]
    assert audit.steps_redone(groups, 0) == 1
    assert kinds(*groups) == []


def test_the_longest_pause_is_between_steps_of_any_groups() -> None:
    groups = [FIRST, group("b", 10, (4, "a4"), range(5, 9))]
    assert audit.longest_pause(groups, 4, 20) == 6.0
    assert audit.longest_pause(groups, 12, 20) == 1.0
