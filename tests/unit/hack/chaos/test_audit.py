"""What the audit finds in a ledger: each promise broken, and kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    *,
    every: float = 1.0,
    samples: dict[int, tuple[int, ...]] | None = None,
    fence: str = "",
) -> Group:
    """A group of one, whose first step is done a second after it began. A step takes two of the eight samples of an
    epoch of four steps; `samples`: of the steps that take others."""
    usual = {step: ((step - 1) % 4 * 2, (step - 1) % 4 * 2 + 1) for step in steps}
    work = tuple(Work(step, (step - 1) // 4, taken) for step, taken in (usual | (samples or {})).items())
    done = tuple(Done(step, began + 1 + every * number) for number, step in enumerate(steps))
    process = Process(member="m", process=1, rank=0, world=1, token=token, work=work, fence=fence)
    return Group(token=token, processes=(process,), began=began, restored=restored, done=done, saves=saves)


def saved(step: int, digest: str, at: float) -> Save:
    return Save(step, digest, at - 0.1, at)


def kinds(*groups: Group) -> list[str]:
    return [finding.kind for finding in audit.audit(groups, LIMITS)]


SAVES = (saved(2, "a2", 3), saved(4, "a4", 5))
FIRST = group("a", 0, (0, ""), range(1, 6), SAVES)
"""Does step 5 at 5 s; its newest checkpoint is of step 4."""
NEXT = group("b", 10, (4, "a4"), range(5, 9))
FROM_STEP_2 = group("b", 10, (2, "a2"), range(3, 9))
BESIDE = group("b", 3, (2, "a2"), range(3, 9))
ISLAND = group("a", 0, (0, ""), range(1, 21), (saved(4, "a4", 5), saved(20, "a20", 21)))
NEWER = group("b", 10, (4, "a4"), range(5, 9), (saved(8, "b8", 14),))

OF_TWO_ETCDS = (
    group("a", 0, (0, ""), range(1, 6), SAVES, fence="1.1.1"),
    group("b", 10, (4, "a4"), range(5, 20), (saved(8, "b8", 14), saved(16, "b16", 22)), fence="1.2.1"),
)
STRAY = group("c", 15, (8, "b8"), range(9, 11), every=0.1, fence="1.1.2")
"""As when an island reconnects: it restores what the newer group committed, and its first save is rejected."""
COMMITTING = dataclasses.replace(STRAY, saves=(saved(10, "c10", 16.5),))


def fenced(token: str, step: int, digest: str) -> Group:
    """Of the newer etcd; it begins at 30 s."""
    return group(token, 30, (step, digest), range(step + 1, step + 3), fence="1.2.2")


STILLBORN = (
    group("a", 0, (0, ""), range(1, 9), (saved(4, "a4", 5), saved(8, "a8", 9))),
    group("b", 7, (4, "a4"), range(0)),
    group("c", 20, (8, "a8"), range(9, 11)),
)
LATE_COMMIT = dataclasses.replace(FIRST, saves=(SAVES[0], saved(4, "a4", 10.5)))
UNSURE = dataclasses.replace(FIRST, saves=(SAVES[0], Save(4, "a4", 4.9)))
LONGER = dataclasses.replace(FIRST, done=(*FIRST.done, Done(6, 6.0)))
OVER_NEWER = [audit.TWO_GROUPS, audit.EXTRA_COMMIT, audit.OLDER_OVER_NEWER]


@pytest.mark.parametrize(
    ("found", "groups"),
    [
        pytest.param([], [], id="an empty ledger"),
        pytest.param([], [FIRST, NEXT], id="the newest commit is restored, and a step redone"),
        pytest.param([audit.MISSING], [FIRST, FROM_STEP_2], id="a restore skips a committed step"),
        pytest.param([audit.MISSING], [FIRST, group("b", 10, (0, ""), range(1, 9))], id="a start from scratch"),
        pytest.param([], [LATE_COMMIT, FROM_STEP_2], id="the commit follows the restore"),
        pytest.param([], [UNSURE, NEXT], id="the writer died before it recorded the commit"),
        pytest.param(
            [audit.UNKNOWN, audit.SAMPLES], [FIRST, group("b", 10, (4, "x"), range(5, 9))], id="what was never saved"
        ),
        pytest.param(OVER_NEWER, [ISLAND, NEWER, group("c", 30, (20, "a20"), range(21, 23))], id="older over newer"),
        pytest.param(OVER_NEWER[:2], [ISLAND, NEWER, group("c", 30, (8, "b8"), range(9, 11))], id="newer over older"),
        pytest.param([], [*OF_TWO_ETCDS, STRAY, fenced("d", 16, "b16")], id="an older etcd's group commits nothing"),
        pytest.param([audit.EXTRA_COMMIT], [*OF_TWO_ETCDS, COMMITTING], id="an older etcd's group commits"),
        pytest.param(OVER_NEWER[1:], [*OF_TWO_ETCDS, COMMITTING, fenced("d", 10, "c10")], id="and is restored"),
        pytest.param([], STILLBORN, id="a newer group ended before its first commit"),
        pytest.param([], [FIRST, BESIDE], id="two groups at once within the grace"),
        pytest.param([audit.TWO_GROUPS], [LONGER, BESIDE], id="two groups at once beyond the grace"),
    ],
)
def test_the_audit_finds_broken_promises_and_nothing_else(found: list[str], groups: Sequence[Group]) -> None:
    assert kinds(*groups) == found


def test_rounds_are_compared_as_numbers() -> None:
    late, early = (group("a", 0, (0, ""), range(1), fence=fence) for fence in ("1.2.10", "1.2.9"))
    assert late.order > early.order


def test_an_older_group_that_commits_while_a_newer_one_trains_is_found_even_within_the_grace() -> None:
    newer = group("b", 2, (0, ""), range(1, 3), (saved(1, "b1", 3.5),), every=0.1)
    older = dataclasses.replace(FIRST, saves=(saved(1, "a1", 3.9),), done=(Done(1, 3.8),))
    assert audit.EXTRA_COMMIT in kinds(older, newer)
    unfenced = audit.audit([older, newer], dataclasses.replace(LIMITS, fenced=False))
    assert audit.EXTRA_COMMIT not in [item.kind for item in unfenced]
    (overlap,) = audit.overlaps([older, newer])
    assert (overlap.commits, overlap.split) == (1, 1)


@pytest.mark.parametrize(
    ("samples", "complaint"), [({6: (0, 1)}, "2 samples were repeated"), ({3: (4,)}, "1 samples are missing")]
)
def test_samples_trained_twice_or_never_are_found(samples: dict[int, tuple[int, ...]], complaint: str) -> None:
    given = [{step: taken for step, taken in samples.items() if step in steps} for steps in (range(5), range(5, 9))]
    first = group("a", 0, (0, ""), range(1, 5), (saved(4, "a4", 5),), samples=given[0])
    findings = audit.audit([first, group("b", 10, (4, "a4"), range(5, 9), samples=given[1])], LIMITS)
    assert any(complaint in finding.text for finding in findings if finding.kind == audit.SAMPLES)


def test_costs_of_a_change_of_groups_are_told() -> None:
    groups = [FIRST, NEXT]
    assert audit.chain(groups) == [(FIRST, 4), (NEXT, 8)], "step 5 of the first is not in the history"
    assert audit.steps_redone(groups, 0) == 1
    spans = ((4, 20), (12, 20), (0, 4))
    assert [audit.longest_pause(groups, since, until) for since, until in spans] == [6.0, 1.0, 1.0]
    (overlap,) = audit.overlaps([FIRST, BESIDE])
    assert (overlap.seconds, overlap.steps) == (1.0, 1)
