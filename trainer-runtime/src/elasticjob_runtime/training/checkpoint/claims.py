"""Which worker group may save checkpoints in a directory: the newest that ever did. Used by `directory` only.

    .claim-000000000007.json     the seventh group to save here: which one it is, and which checkpoints it found

A group that was disconnected, frozen or replaced without noticing must not add checkpoints to its successor's. So a
group claims the directory before its first save, under the fencing token from its agent (ELASTICJOB_FENCE). Claims are
numbered; link(2) gives each number to one group only, without a lock that a dead writer could hold. A writer whose
claim is not the newest is rejected.

Rejecting is best effort; `valid` is what guarantees the result. A checkpoint's name has the number of its claim, so a
late rename cannot replace a newer group's file, and a claim lists the checkpoints it found, so that those which an
older group adds later do not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.checkpoint import files
from elasticjob_runtime.training.checkpoint.order import State

_CLAIM = re.compile(r"\.claim-(\d{12,})\.json")
_CHECKPOINT = re.compile(r"step-(\d{12,})(?:-(\d+))?\.ckpt")
_REMEMBERED = 64
"""Earlier owners that a claim lists: more than share a directory in practice."""
COMMAND = "elasticjob_runtime.training.checkpoint"
"""`python3 -m COMMAND DIRECTORY` shows a directory to a person, and changes what counts there."""
_TRIES = 50
_PAUSE = 0.05
"""s before listing a directory again that changed in the meantime."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Found:
    """The name of a checkpoint in a directory. Ordered by claim first: a later claim's is newer, whatever its step."""

    number: int
    """Number of the claim under which it was saved; 0: saved without one."""
    step: int

    @property
    def name(self) -> str:
        return f"step-{self.step:012d}-{self.number}.ckpt" if self.number else f"step-{self.step:012d}.ckpt"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A worker group that saves checkpoints."""

    owner: str
    """The job, or the run if no operator numbers its runs; empty without an agent (plain python, torchrun)."""
    fence: Fence
    choice: int = 0
    """See `order.State`."""
    chosen: str = ""
    """Who saved the checkpoint that a person has chosen, if this is the claim of that choice. In words."""

    @property
    def saved_by(self) -> str:
        return self.chosen or (f"{self.owner}, run {self.fence.run}" if self.owner else "")


ANONYMOUS = Writer(owner="", fence=Fence(0, 0, 0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    number: int
    writer: Writer
    earlier: tuple[str, ...] = ()
    """Previous owners, which may not claim the directory again."""
    kept: tuple[str, ...] | None = ()
    """Names of the checkpoints that counted when this claim began; None: unknown, all count."""
    writers: tuple[tuple[int, Writer], ...] = ()
    """Earlier claims under which these were saved, as (number, who)."""
    follows: tuple[int, ...] = ()
    """Numbers of claims that this one does not fence: a person made it, and what their groups still save counts."""
    claimed_at: float = 0.0
    """Unix time, s."""


UNCLAIMED = Claim(number=0, writer=ANONYMOUS)


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """The contents of a directory."""

    claim: Claim
    """The newest; UNCLAIMED if there is none."""
    checkpoints: tuple[Found, ...]
    claims: tuple[int, ...]


class RejectedError(Exception):
    """Another group has claimed the directory. The message, a sentence, says which."""


def writer_of(environment: Mapping[str, str], choice: int = 0) -> Writer:
    """Raises ValueError if ELASTICJOB_FENCE is not a fencing token."""
    text = environment.get(Env.FENCE, "")
    if not text:
        return dataclasses.replace(ANONYMOUS, choice=choice)
    fence = Fence.parse(text)
    job = environment.get(Env.JOB_UID, "") if environment.get(Env.RUN) else ""
    return Writer(owner=job or f"{environment.get('TORCHELASTIC_RUN_ID', '')}@{fence.run}", fence=fence, choice=choice)


def valid(listing: Listing) -> list[Found]:
    """The checkpoints that count, newest first: those of the newest group, then those it found."""
    claim = listing.claim
    kept = claim.kept
    counted = [
        found
        for found in listing.checkpoints
        if found.number >= claim.number or found.number in claim.follows or kept is None or found.name in kept
    ]
    return sorted(counted, reverse=True)


def rejection(claim: Claim, writer: Writer) -> str:
    """Why `writer` may not save if `claim` is the newest; empty if it may, or may make a new claim."""
    theirs = claim.writer
    if claim.number == 0 or writer.owner == "":
        return ""
    if theirs.owner == writer.owner:
        if writer.fence >= theirs.fence:
            return ""
        return (
            f"this group is round {writer.fence.round} (fencing token {writer.fence}), and a newer one, round "
            f"{theirs.fence.round} "
            f"({theirs.fence}), has taken over. It was replaced while it was disconnected or frozen"
        )
    if writer.owner in claim.earlier:
        who = f"run {theirs.owner}" if theirs.owner else "a process without an agent"
        return (
            f"{who} has saved there since, and the newest claim wins. To return the directory to this run, end that "
            f"claim: python3 -m {COMMAND} DIRECTORY --release"
        )
    return ""


def state_of(listing: Listing, found: Found) -> State:
    writer = saver_of(listing, found)
    return State(step=found.step, job=writer.owner, fence=writer.fence, claim=found.number, choice=writer.choice)


def saver_of(listing: Listing, found: Found) -> Writer:
    return dict(_writers(listing.claim)).get(found.number, ANONYMOUS)


def writers(listing: Listing) -> tuple[tuple[int, Writer], ...]:
    """For the next claim."""
    counting = {found.number for found in valid(listing)} | {listing.claim.number, *listing.claim.follows}
    return tuple((number, writer) for number, writer in _writers(listing.claim) if number in counting)


def newest_choice(listing: Listing) -> int:
    """See `order.State`."""
    return max(writer.choice for _, writer in _writers(listing.claim))


def _writers(claim: Claim) -> tuple[tuple[int, Writer], ...]:
    """Who has saved under which number, as far as it is known."""
    return (*claim.writers, (claim.number, claim.writer))


def is_current(claim: Claim, writer: Writer) -> bool:
    """Whether `writer` has the newest claim, or needs none because there are no claims. If a person has chosen a
    checkpoint, each group makes a claim of its own: it goes on, and what it saves is newer."""
    return claim.writer == writer and (claim.number > 0 or not writer.owner)


def claim_directory(folder: pathlib.Path, writer: Writer) -> Claim:
    """Returns the claim under which `writer` saves, and makes it if necessary. Raises RejectedError, OSError."""
    for _ in range(_TRIES):
        listing = list_directory(folder)
        if reason := rejection(listing.claim, writer):
            raise RejectedError(reason)
        if is_current(listing.claim, writer):
            return listing.claim
        claim = dataclasses.replace(next_claim(listing, writer), claimed_at=time.time())
        if write_claim(folder, claim) and list_directory(folder).claim.number == claim.number:
            _forget(folder, [number for number in listing.claims if number < listing.claim.number])
            return claim
    raise RejectedError("others keep claiming it: do two jobs save there?")


def check(folder: pathlib.Path, claim: Claim) -> Claim:
    """Under which to commit what was written under `claim`: another one if a person has chosen a checkpoint meanwhile,
    or released the directory. Raises RejectedError if another group has claimed it, OSError."""
    newest = list_directory(folder).claim
    if newest.number <= claim.number:
        return claim
    if newest.writer.owner not in (claim.writer.owner, ""):
        reason = rejection(newest, claim.writer)
        raise RejectedError(reason or f"run {newest.writer.owner} has claimed it in the meantime")
    return claim_directory(folder, claim.writer)


def list_directory(folder: pathlib.Path) -> Listing:
    """Raises OSError."""
    for _ in range(_TRIES):
        names = os.listdir(folder)
        checkpoints = tuple(
            Found(int(match[2] or 0), int(match[1])) for match in map(_CHECKPOINT.fullmatch, names) if match
        )
        numbers = tuple(sorted(int(match[1]) for match in map(_CLAIM.fullmatch, names) if match))
        try:
            claim = _read(folder, numbers[-1]) if numbers else UNCLAIMED
        except FileNotFoundError:
            time.sleep(_PAUSE)  # replaced by a newer one
        else:
            return Listing(claim, tuple(one for one in checkpoints if one.name in names), numbers)
    raise OSError(errno.EBUSY, "its .claim-* files keep changing")


def next_claim(listing: Listing, writer: Writer) -> Claim:
    """The claim that `writer` makes after that of `listing`."""
    before = listing.claim
    over = before.writer.owner if before.writer.owner != writer.owner else ""
    earlier = [owner for owner in (*before.earlier, over) if owner and owner != writer.owner]
    return Claim(
        # Higher than that of any checkpoint, too: a person may have removed the claims, and what is saved next must
        # still be newer than what is there.
        number=1 + max((before.number, *(found.number for found in listing.checkpoints))),
        writer=writer,
        earlier=tuple(dict.fromkeys(earlier))[-_REMEMBERED:],
        kept=tuple(one.name for one in valid(listing)),
        writers=writers(listing),
    )


def _path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f".claim-{number:012d}.json"


def write_claim(folder: pathlib.Path, claim: Claim) -> bool:
    """Returns False if another group has that number. Raises OSError."""
    return files.create(_path(folder, claim.number), _encode(claim))


def _encode(claim: Claim) -> bytes:
    """Twice the same line with a checksum: a claim with one damaged byte is still a claim."""
    document = {
        "owner": claim.writer.owner,
        "fence": str(claim.writer.fence),
        "earlier": claim.earlier,
        "kept": claim.kept,
        "choice": claim.writer.choice,
        "chosen": claim.writer.chosen,
        "writers": [
            [number, writer.owner, str(writer.fence), writer.choice, writer.chosen] for number, writer in claim.writers
        ],
        "follows": claim.follows,
        "claimed_at": claim.claimed_at,
    }
    return 2 * (json.dumps({**document, "sha256": _digest(document)}) + "\n").encode()


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(folder: pathlib.Path, number: int) -> Claim:
    """Raises FileNotFoundError, OSError. A claim that is empty, or of which both lines are damaged, is an anonymous
    one, under which all checkpoints count."""
    data = _path(folder, number).read_bytes()
    half = len(data) // 2
    for line in (data[:half], data[half:]):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return _decode(number, json.loads(line))
    return Claim(number=number, writer=ANONYMOUS, kept=None)


def _decode(number: int, document: dict[str, Any]) -> Claim:
    if document.pop("sha256") != _digest(document):
        raise ValueError("the checksum does not match")
    return Claim(
        number=number,
        writer=_writer(document["owner"], document["fence"], document.get("choice", 0), document.get("chosen", "")),
        earlier=tuple(document["earlier"]),
        kept=tuple(document["kept"]),
        writers=tuple((int(number), _writer(*writer)) for number, *writer in document["writers"]),
        follows=tuple(int(number) for number in document.get("follows", ())),
        claimed_at=float(document["claimed_at"]),
    )


def _writer(owner: str, fence: str, choice: int = 0, chosen: str = "") -> Writer:
    return Writer(owner=owner, fence=Fence.parse(fence), choice=choice, chosen=chosen)


def _forget(folder: pathlib.Path, numbers: Sequence[int]) -> None:
    """Removes old claims. The caller keeps the one before the newest for concurrent readers."""
    for number in numbers:
        with contextlib.suppress(OSError):
            _path(folder, number).unlink()
