"""Which worker process keeps the others from taking a step, from what an agent sees of those that make no progress.
Pure.

The rules, in this order; the first that names a process wins:

1. It has exited with code 0 while others train.
2. A signal has stopped it.
3. It waits in the kernel for a device (state D), and shows no stack.
4. The first collective that differs between ranks is another one than on most of them. Without a majority, all are
   named.
5. It has not begun the collective in which others wait, according to the flight recorders.
6. It is not in a collective, according to its stack, while others wait in one.
7. All wait in a collective, and what one of them sends is not acknowledged: both ends of that connection are named.

Otherwise nothing is known, which is an answer: naming the wrong one costs people more than naming none. That it makes
no progress does not accuse a process: most of those that hang wait for another one. Nor does another line of code:
ranks may take different ways to the same collective.

A restart helps only if some rank waits in a collective, and all that do not are idle: a rank that evaluates or saves is
waited for in other ways, too, by ranks that look for a file or for a key of a store. The only rank of a job does not
wait for another one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from elasticjob_runtime.contract.collectives import Calls, behind, first_difference, open_call

QUIET_CPU_MS, QUIET_SWITCHES, QUIET_BYTES = 50, 2, 64
"""What a process may use in the three seconds that it is watched for and still count as doing nothing. Sleeping,
waiting for a lock or for a stuck data loader takes nothing, or a look every five seconds; a loop that looks each second
takes three context switches, and evaluating, loading and saving 860 ms, 1,390 switches or more. gloo's thread takes
some of the time, and waking up a thread may write a few bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a process and its children did while they were watched."""

    cpu_ms: int = 0
    switches: int = 0
    """Context switches of its main thread and of theirs: a thread of gloo's wakes up 100 times a second."""
    bytes: int = 0
    """Read and written."""

    @property
    def is_none(self) -> bool:
        return self.cpu_ms <= QUIET_CPU_MS and self.switches <= QUIET_SWITCHES and self.bytes <= QUIET_BYTES

    def __str__(self) -> str:
        return f"{self.cpu_ms} ms of CPU, {self.switches} context switches, {self.bytes} bytes"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Where the main thread of a process is."""

    collective: str = ""
    """The call in which it waits for others, such as `all_reduce`; empty: it is in none."""
    place: str
    """The newest line of the script's own code: `train (train.py:31)`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankEvidence:
    """Of one worker process."""

    exited: bool = False
    """With code 0."""
    state: str = "S"
    """Of its main thread, as in /proc/PID/stat."""
    kernel: str = ""
    """The kernel function in which that waits."""
    device: bool = False
    """Another of its threads, or a child process, waits in the kernel for a device (state D): it may save."""
    activity: Activity = dataclasses.field(default_factory=Activity)
    stack: Stack | None = None
    """None: not known."""
    accelerator: bool = False
    """It uses a GPU. Then its stack does not tell whether it waits for others: kernels wait for them, too."""
    resends: frozenset[tuple[str, str]] = frozenset()
    """(own, peer) addresses of connections whose data is sent again and again."""
    calls: Calls | None = None
    """The collectives that it has begun; None: not known."""

    @property
    def does_nothing(self) -> bool:
        """Nor would it, if it had a core: one that is runnable is kept from it by other processes. One in the kernel
        may save."""
        return self.activity.is_none and self.state not in ("R", "D") and not self.device

    @property
    def waits_in(self) -> str | None:
        """The collective in which it waits; empty: it is in none; None: not known. The flight recorder has none of
        those that are no collectives of a process group, such as the wait for a key of a store."""
        call = open_call(self.calls) if self.calls is not None else None
        if call is not None:
            return call.operation
        if self.stack is None or (self.accelerator and not self.stack.collective):
            return None
        return self.stack.collective


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    ranks: tuple[int, ...] = ()
    """Empty: not known."""
    why: str
    acts: bool = True
    """A restart of these processes helps. False: it must wait, or cannot."""
    certain: bool = True
    """False: it may be an evaluation or a save."""
    stuck: bool = True
    """Some rank does nothing, or waits for others. False: all are busy."""


def find_culprit(evidence: Mapping[int, RankEvidence], *, whole: bool) -> Culprit:
    """`evidence`: by rank. `whole`: of all ranks, and not only of those of one machine."""
    stuck = any(rank.waits_in or rank.does_nothing for rank in evidence.values() if not rank.exited)
    found = _find(evidence, whole=whole)
    alone = (
        whole and len(evidence) == 1 and all(rank.does_nothing and rank.waits_in == "" for rank in evidence.values())
    )
    return dataclasses.replace(found, acts=found.acts or alone, stuck=stuck or not evidence)


def _find(evidence: Mapping[int, RankEvidence], *, whole: bool) -> Culprit:
    rules = (_exited, _stopped, _in_kernel, _differs, _behind, _outside, _resending)
    for rule in rules:
        if (found := rule(evidence)) is not None:
            return found
    if evidence and all(found.waits_in for found in evidence.values()):
        others = "each other" if whole else "ranks on other machines"
        return Culprit(why=f"all ranks here wait for {others} in {calls_of(evidence)}", certain=False)
    busy = tuple(rank for rank, found in evidence.items() if found.waits_in is None and not found.does_nothing)
    if busy and (calls_of(evidence) or len(evidence) == 1):
        does = "is busy" if len(busy) == 1 else "are busy"
        return Culprit(why=f"{_ranks(busy)} {does}{_while_others_wait(evidence)}", certain=False)
    if not whole and len(evidence) == 1:
        return Culprit(why="it is not known whether this rank waits for others", certain=False)
    return Culprit(why="it is not known which rank the others wait for", certain=False)


def calls_of(evidence: Mapping[int, RankEvidence]) -> str:
    """The collectives in which ranks wait; empty: in none that is known."""
    return " and ".join(sorted({found.waits_in for found in evidence.values() if found.waits_in}))


def _exited(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    gone = tuple(rank for rank, found in evidence.items() if found.exited)
    if not gone or len(gone) == len(evidence):
        return None
    why = f"{_ranks(gone)} exited with code 0 while the others train"
    return Culprit(ranks=gone, why=why, acts=_helps(evidence, ()), certain=_none_is_busy(evidence))


def _stopped(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    stopped = tuple(rank for rank, found in evidence.items() if found.state in ("T", "t"))
    return Culprit(ranks=stopped, why=f"a signal has stopped {_ranks(stopped)}", acts=False) if stopped else None


def _in_kernel(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    for rank, found in evidence.items():
        if found.state == "D" and found.stack is None:
            why = f"rank {rank} waits in the kernel for a device or a file system ({found.kernel or 'state D'})"
            return Culprit(ranks=(rank,), why=why, acts=False, certain=False)
    return None


def _differs(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    found = first_difference(_recorders(evidence), waiting=True)
    if found is None:
        return None
    return Culprit(ranks=found.ranks, why=found.why, acts=_helps(evidence, found.ranks))


def _behind(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    """Their stacks may be missing: whoever does something, or blocks all signals, gets no question for them."""
    found = behind(_recorders(evidence))
    if found is None:
        return None
    places = [stack.place for rank in found.ranks if (stack := evidence[rank].stack) is not None]
    waits = f"{_ranks(found.waiting)} {_verb(found.waiting, 'waits', 'wait')} in {found.call}"
    if places:
        why = f"{_ranks(found.ranks)} {_verb(found.ranks, 'is', 'are')} in {places[0]}, while {waits}"
    else:
        why = f"{waits}, which {_ranks(found.ranks)} {_verb(found.ranks, 'has', 'have')} not begun"
    certain = _do_nothing(evidence, found.ranks)
    return Culprit(ranks=found.ranks, why=why, acts=_helps(evidence, found.ranks), certain=certain)


def _recorders(evidence: Mapping[int, RankEvidence]) -> dict[int, Calls]:
    return {rank: found.calls for rank, found in evidence.items() if found.calls is not None}


def _helps(evidence: Mapping[int, RankEvidence], named: tuple[int, ...]) -> bool:
    """Whether a restart does, if `named` keep the others waiting."""
    waits = any(rank.waits_in for rank in evidence.values())
    return waits and _none_is_busy(evidence) and _do_nothing(evidence, named)


def _none_is_busy(evidence: Mapping[int, RankEvidence]) -> bool:
    """All that are not in a collective do nothing."""
    return all(rank.exited or rank.waits_in or rank.does_nothing for rank in evidence.values())


def _do_nothing(evidence: Mapping[int, RankEvidence], ranks: tuple[int, ...]) -> bool:
    return all(evidence[rank].does_nothing for rank in ranks)


def _outside(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    """Those that do something may be about to come: they are named, and nothing is done."""
    outside = {rank: found for rank, found in evidence.items() if found.waits_in == ""}
    if not outside:
        return None
    first = next(iter(outside.values()))
    assert first.stack is not None
    why = f"{_ranks(tuple(outside))} {_verb(tuple(outside), 'is', 'are')} in {first.stack.place}"
    why += _while_others_wait(evidence)
    named = tuple(outside)
    return Culprit(ranks=named, why=why, acts=_helps(evidence, named), certain=_none_is_busy(evidence))


def _while_others_wait(evidence: Mapping[int, RankEvidence]) -> str:
    inside = {rank: found.waits_in for rank, found in evidence.items() if found.waits_in}
    if not inside:
        return ""
    waits = _verb(tuple(inside), "waits", "wait")
    return f", while {_ranks(tuple(inside))} {waits} in {next(iter(inside.values()))}"


def _resending(evidence: Mapping[int, RankEvidence]) -> Culprit | None:
    if not all(found.waits_in for found in evidence.values()):
        return None
    pairs = sorted({pair for found in evidence.values() for pair in found.resends})
    near = tuple(rank for rank, found in evidence.items() if found.resends)
    if not near:
        return None
    sent = f"what {_ranks(near)} {_verb(near, 'sends', 'send')} is not acknowledged"
    names = ", ".join(f"{own} to {peer}" for own, peer in pairs)
    return Culprit(ranks=near, why=f"{sent}, from {names}: look at the network")


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _verb(ranks: tuple[int, ...], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current t|T)hread .*$", re.MULTILINE)
_COLLECTIVE = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/elasticjob_runtime/training/session/")
"""Parts of the paths of code in which the main thread waits for other ranks."""
_LOGGER = "/c10d_logger.py"
"""Wraps torch's collectives."""
_BACKWARD = "_engine_run_backward"
"""torch's function that runs backward, in which DistributedDataParallel waits for the other ranks."""


def main_stack(text: str) -> Stack | None:
    """Where the main thread is, according to what faulthandler writes, which has that thread last and its newest frame
    first. None: it has written nothing."""
    blocks = _THREAD.split(text)
    frames = list(_FRAME.finditer(blocks[-1]))
    if len(blocks) < 2 or not frames:
        return None
    waits = ""
    for frame in frames:
        if frame["function"] == _BACKWARD:
            waits = "backward"
            break
        if any(part in frame["file"] for part in _COLLECTIVE):
            waits = waits if frame["file"].endswith(_LOGGER) else frame["function"]
        elif waits or "/torch/" not in frame["file"]:
            break
    return Stack(collective=waits, place=_place(_own(frames)))


def _own(frames: list[re.Match[str]]) -> re.Match[str]:
    """The newest frame of neither torch nor Python's own library."""
    for frame in frames:
        if not any(
            part in frame["file"]
            for part in ("/site-packages/", "/lib/python3", "<frozen", "/torch/", "/elasticjob_runtime/")
        ):
            return frame
    return frames[0]


def _place(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({frame['file'].rpartition('/')[2]}:{frame['line']})"
