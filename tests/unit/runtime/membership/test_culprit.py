"""Which of the ranks that make no progress keeps the others waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elasticjob_runtime.contract.collectives import DEFAULT_GROUP, Call
from elasticjob_runtime.membership.culprit import Activity, Culprit, RankEvidence, Stack, find_culprit, main_stack

TORCH = "/usr/lib/python3.11/site-packages/torch"
SLEEP = """
Current thread 0x00007f (most recent call first):
  File "/app/train.py", line 7 in wait_forever
  File "/app/train.py", line 31 in <module>
"""
BACKWARD = f"""
Thread 0x00007e (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/app/log.py", line 3 in flush

Current thread 0x00007f (most recent call first):
  File "{TORCH}/autograd/graph.py", line 1113 in _engine_run_backward
  File "{TORCH}/autograd/__init__.py", line 395 in backward
  File "{TORCH}/_tensor.py", line 623 in backward
  File "/app/train.py", line 24 in <module>
"""
BARRIER = f"""
Thread 0x00007f (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 6614 in barrier
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 40 in main
"""
LOADER = f"""
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 930 in wait
  File "{TORCH}/utils/data/dataloader.py", line 1275 in _try_get_data
  File "/app/train.py", line 12 in main
"""
SESSION = """
Thread 0x00007f (most recent call first):
  File "/opt/elasticjob_runtime/training/session/forming.py", line 40 in form
  File "/app/train.py", line 12 in main
"""

STACKS = {
    "it sleeps": (SLEEP, Stack(place="wait_forever (train.py:7)")),
    "it is in backward; of another thread's stack nothing counts":
        (BACKWARD, Stack(collective="backward", place="<module> (train.py:24)")),
    "it is in a barrier": (BARRIER, Stack(collective="barrier", place="main (train.py:40)")),
    "it waits for a data loader": (LOADER, Stack(place="main (train.py:12)")),
    "its session waits for others": (SESSION, Stack(collective="form", place="main (train.py:12)")),
    "no stack": ("", None),
    "another text": ("Segmentation fault", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "stack"), STACKS.values(), ids=STACKS)
def test_the_main_thread_is_found_in_the_text_of_faulthandler(text: str, stack: Stack | None) -> None:
    assert main_stack(text) == stack


BUSY = Activity(cpu_ms=2730, switches=1390)
OUTSIDE = RankEvidence(stack=main_stack(SLEEP))
INSIDE = RankEvidence(stack=main_stack(BACKWARD))
IN_BARRIER = RankEvidence(stack=main_stack(BARRIER))
LOADS = RankEvidence(stack=main_stack(LOADER))
EVALUATES = RankEvidence(activity=BUSY)
LOOPS = RankEvidence(stack=main_stack(SLEEP), activity=BUSY)
EXITED, STOPPED = RankEvidence(exited=True), RankEvidence(state="T")
RESENDS = replace(INSIDE, resends=frozenset({("10.0.0.2", "10.0.0.3")}))


def calls(*whats: str, waits: bool = False) -> dict[str, list[Call]]:
    """Of which all are over but the last, if it `waits` there."""
    last = len(whats)
    return {DEFAULT_GROUP: [Call(number, what, number < last or not waits) for number, what in enumerate(whats, 1)]}


WAITS = RankEvidence(calls=calls("all_reduce [[4]]", "all_reduce [[7]]", waits=True))
BEHIND = RankEvidence(calls=calls("all_reduce [[4]]"))
EVALUATES_BEHIND = replace(BEHIND, activity=BUSY)
SLEEPS_BEHIND = replace(BEHIND, stack=OUTSIDE.stack)
OTHER = RankEvidence(calls=calls("all_reduce [[4]]", "all_reduce [[5]]", waits=True))

CASES: dict[str, tuple[dict[int, RankEvidence], tuple[int, ...], bool, bool]] = {
    "S4: rank 1 sleeps, and rank 0, which waits for it, is not blamed": ({0: INSIDE, 1: OUTSIDE}, (1,), True, True),
    "a lock that is never released, seen by its stack":
        ({0: INSIDE, 1: OUTSIDE, 2: INSIDE, 3: INSIDE}, (1,), True, True),
    "a data loader that is stuck": ({0: INSIDE, 1: LOADS}, (1,), True, True),
    "the interpreter is held in C: it does nothing, and its stack is written all the same":
        ({0: IN_BARRIER, 1: OUTSIDE}, (1,), True, True),
    "an evaluation, while others wait in a barrier: nothing is known, and nothing done":
        ({0: IN_BARRIER, 1: EVALUATES}, (), True, False),
    "an endless loop whose stack is known: named, and nothing done": ({0: INSIDE, 1: LOOPS}, (1,), False, False),
    "a process that has no core: named, and nothing done":
        ({0: INSIDE, 1: replace(OUTSIDE, state="R")}, (1,), False, False),
    "all signals blocked: no stack, no name": ({0: INSIDE, 1: RankEvidence()}, (), True, False),
    "it waits for a thread or a child that writes to a device":
        ({0: INSIDE, 1: replace(OUTSIDE, device=True)}, (1,), False, False),
    "one saves in the kernel, another has exited":
        ({0: INSIDE, 1: EXITED, 2: RankEvidence(state="D")}, (1,), False, False),
    "its save is in the kernel, and its stack is known":
        ({0: INSIDE, 1: replace(OUTSIDE, state="D")}, (1,), False, False),
    "stopped by a signal": ({0: INSIDE, 1: STOPPED}, (1,), False, True),
    "in the kernel": ({0: INSIDE, 1: RankEvidence(state="D", kernel="percpu_rwsem_wait")}, (1,), False, False),
    "in the kernel for a moment: it has a stack": ({0: INSIDE, 1: replace(INSIDE, state="D")}, (), True, False),
    "exited early": ({0: INSIDE, 1: EXITED}, (1,), True, True),
    "exited early, and another one sleeps": ({0: OUTSIDE, 1: EXITED}, (1,), False, True),
    "at its end, rank 0 evaluates or saves alone": ({0: EVALUATES, 1: EXITED}, (1,), False, False),
    "all sleep: none waits for another": ({0: OUTSIDE, 1: OUTSIDE}, (0, 1), False, True),
    "the only rank sleeps": ({0: OUTSIDE}, (0,), True, True),
    "the only rank is stopped": ({0: STOPPED}, (0,), False, True),
    "one waits for a key of a store, or a file, of one that evaluates":
        ({0: EVALUATES, 1: OUTSIDE}, (1,), False, False),
    "the same, while another waits in a collective": ({0: EVALUATES, 1: OUTSIDE, 2: INSIDE}, (1,), False, False),
    "all exited: over": ({0: EXITED, 1: EXITED}, (), True, False),
    "packets are lost between two": ({0: INSIDE, 1: RESENDS, 2: INSIDE}, (1,), True, True),
    "packets are lost while one sleeps: the sleeper": ({0: RESENDS, 1: OUTSIDE}, (1,), True, True),
    "all wait in collectives": ({0: INSIDE, 1: IN_BARRIER}, (), True, False),
    "two sleep": ({0: OUTSIDE, 1: OUTSIDE, 2: INSIDE}, (0, 1), True, True),
    "one sleeps, another evaluates on its way to the same collective":
        ({0: OUTSIDE, 1: LOOPS, 2: INSIDE}, (0, 1), False, False),
    "a GPU: a line outside of collectives may wait for a kernel that waits for others":
        ({0: INSIDE, 1: replace(OUTSIDE, accelerator=True)}, (), True, False),
    "all signals blocked, with recorders: no stack is needed":
        ({0: WAITS, 1: BEHIND, 2: WAITS, 3: WAITS}, (1,), True, True),
    "an endless loop, with recorders: named, and nothing done": ({0: WAITS, 1: EVALUATES_BEHIND}, (1,), False, False),
    "an evaluation while others wait, with recorders: the same":
        ({0: WAITS, 1: EVALUATES_BEHIND, 2: WAITS}, (1,), False, False),
    "a GPU, with recorders": ({0: WAITS, 1: replace(BEHIND, accelerator=True)}, (1,), True, True),
    "a data loader is stuck, with recorders": ({0: WAITS, 1: replace(LOADS, calls=BEHIND.calls)}, (1,), True, True),
    "other sizes: the majority is right": ({0: WAITS, 1: OTHER, 2: WAITS, 3: WAITS}, (1,), True, True),
    "other sizes on one of two ranks: both": ({0: WAITS, 1: OTHER}, (0, 1), True, True),
    "other sizes on a rank that does something":
        ({0: WAITS, 1: replace(OTHER, activity=BUSY), 2: WAITS}, (1,), False, True),
    "one has begun its collective without waiting for it, and sleeps; another has not begun it":
        ({0: replace(WAITS, stack=OUTSIDE.stack), 1: SLEEPS_BEHIND}, (1,), True, True),
    "stopped: it gives no recorder": ({0: WAITS, 1: STOPPED, 2: WAITS}, (1,), False, True),
    "in the kernel: its recorder answers": ({0: WAITS, 1: replace(BEHIND, state="D")}, (1,), False, False),
    "exited early: the others have raised or wait": ({0: WAITS, 1: EXITED, 2: WAITS}, (1,), True, True),
    "packets are lost between two, with recorders":
        ({0: WAITS, 1: replace(RESENDS, calls=WAITS.calls), 2: WAITS}, (1,), True, True),
    "only one gives a recorder, and the other's stack is not known": ({0: WAITS, 1: RankEvidence()}, (), True, False),
    "only one gives a recorder, and the other sleeps": ({0: WAITS, 1: OUTSIDE}, (1,), True, True),
}  # fmt: skip


@pytest.mark.parametrize(("evidence", "ranks", "acts", "certain"), CASES.values(), ids=CASES)
def test_the_culprit_is_named_or_none_is(
    evidence: dict[int, RankEvidence], ranks: tuple[int, ...], acts: bool, certain: bool
) -> None:
    """Evaluations and saves are no certain hangs."""
    found = find_culprit(evidence, whole=True)
    assert (found.ranks, found.acts, found.certain) == (ranks, acts, certain)


WORDS = {
    "the culprit and its victims":
        ({0: INSIDE, 1: OUTSIDE}, "rank 1 is in wait_forever (train.py:7), while rank 0 waits in backward"),
    "several of each":
        ({0: OUTSIDE, 1: OUTSIDE, 2: IN_BARRIER, 3: IN_BARRIER},
            "ranks 0, 1 are in wait_forever (train.py:7), while ranks 2, 3 wait in barrier"),
    "victims only":
        ({0: INSIDE, 1: IN_BARRIER}, "all ranks here wait for ranks on other machines in backward and barrier"),
    "a connection":
        ({1: RESENDS}, "what rank 1 sends is not acknowledged, from 10.0.0.2 to 10.0.0.3: look at the network"),
    "recorders without a stack":
        ({0: WAITS, 1: BEHIND, 2: WAITS}, "ranks 0, 2 wait in all_reduce [[7]], which rank 1 has not begun"),
    "recorders, and the stack of the culprit":
        ({0: WAITS, 1: SLEEPS_BEHIND},
            "rank 1 is in wait_forever (train.py:7), while rank 0 waits in all_reduce [[7]]"),
    "a mismatch":
        ({0: WAITS, 1: OTHER, 2: WAITS},
            "collective 2 differs between ranks: rank 1 calls all_reduce [[5]], rank 0 calls all_reduce [[7]]"),
    "an evaluation": ({0: IN_BARRIER, 1: EVALUATES}, "rank 1 is busy, while rank 0 waits in barrier"),
    "an evaluation without the others": ({1: EVALUATES}, "rank 1 is busy"),
    "nothing known": ({0: RankEvidence()}, "it is not known whether this rank waits for others"),
}  # fmt: skip


@pytest.mark.parametrize(("evidence", "why"), WORDS.values(), ids=WORDS)
def test_a_hang_is_described_in_one_sentence(evidence: dict[int, RankEvidence], why: str) -> None:
    assert find_culprit(evidence, whole=False).why == why


QUIET = {
    "nothing": (Activity(), True),
    "a data loader's look every five seconds": (Activity(switches=1), True),
    "what gloo's thread takes": (Activity(cpu_ms=20), True),
    "a thread was woken up": (Activity(bytes=4), True),
    "a loop that sleeps for a second": (Activity(switches=3), False),
    "an evaluation": (BUSY, False),
    "a slow read from a disk": (Activity(bytes=4096), False),
}


@pytest.mark.parametrize(("activity", "quiet"), QUIET.values(), ids=QUIET)
def test_what_still_does_something_is_not_taken_for_hung(activity: Activity, quiet: bool) -> None:
    assert activity.is_none is quiet


def test_a_culprit_without_ranks_is_unknown() -> None:
    unknown = Culprit(why="it is not known which rank the others wait for", certain=False)
    assert find_culprit({}, whole=True) == unknown


STUCK = {
    "one waits for one that is busy": ({0: INSIDE, 1: EVALUATES}, True),
    "one does nothing": ({0: OUTSIDE, 1: EVALUATES}, True),
    "all are busy": ({0: EVALUATES, 1: EVALUATES}, False),
    "the only one that has not exited is busy": ({0: EVALUATES, 1: EXITED}, False),
}


@pytest.mark.parametrize(("evidence", "stuck"), STUCK.values(), ids=STUCK)
def test_ranks_that_are_all_busy_are_not_stuck(evidence: dict[int, RankEvidence], stuck: bool) -> None:
    assert find_culprit(evidence, whole=True).stuck is stuck
