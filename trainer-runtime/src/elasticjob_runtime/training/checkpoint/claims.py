"""Who may commit checkpoints in a directory: the newest of all groups that ever saved there. Called by `directory`
only.

    .claim-000000000007.json     the seventh group to save here: who it is, and which checkpoints it found

A group that was cut off, frozen or replaced without knowing it must not write a history of its own over that of its
successor. So a group claims the directory before its first save, under the fencing token that its agent gave it
(ELASTICJOB_FENCE). Claims are numbered; link(2) gives each number to one group only, without a lock that a dead writer
could keep. A writer whose claim is not the newest is refused.

Refusing is the courtesy; what holds in any case is what `valid` says. A checkpoint's name carries the number of its
claim, so no late rename replaces a newer group's file; and a claim lists what it found, so what an older group adds
afterwards does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import re
import time
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.checkpoint import files

_CLAIM = re.compile(r"\.claim-(\d{12,})\.json")
_CHECKPOINT = re.compile(r"step-(\d{12,})(?:-(\d+))?\.ckpt")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_REMEMBERED = 64
"""Earlier owners that a claim lists. More than ever share a directory."""
_TRIES = 50
_PAUSE = 0.05
"""s before a directory is looked at again that changed meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Found:
    """A checkpoint in a directory, by its name. Ordered: the later claim's is the newer one, whatever its step."""

    number: int
    """Of the claim under which it was committed; 0: of a writer without one."""
    step: int

    @property
    def name(self) -> str:
        return f"step-{self.step:012d}-{self.number}.ckpt" if self.number else f"step-{self.step:012d}.ckpt"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A group that saves."""

    owner: str
    """The job, or the run where no operator numbers its runs; empty: nobody in particular (plain python, torchrun)."""
    fence: Fence


NOBODY = Writer(owner="", fence=Fence(0, 0, 0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    number: int
    writer: Writer
    earlier: tuple[str, ...] = ()
    """Owners whose time is over."""
    kept: tuple[str, ...] | None = ()
    """Names of the checkpoints that counted when this claim began; None: the file cannot be read, all do."""
    claimed_at: float = 0.0
    """Unix time, s."""


UNCLAIMED = Claim(number=0, writer=NOBODY)


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What a directory holds."""

    claim: Claim
    """The newest; UNCLAIMED where there is none."""
    checkpoints: tuple[Found, ...]
    claims: tuple[int, ...]


class RefusedError(Exception):
    """Another group has taken the directory. The message says which, as a whole sentence."""


def writer_of(environment: Mapping[str, str]) -> Writer:
    """Raises ValueError where ELASTICJOB_FENCE is no fencing token."""
    text = environment.get(Env.FENCE, "")
    if not text:
        return NOBODY
    fence = Fence.parse(text)
    job = environment.get(Env.JOB_UID, "") if environment.get(Env.RUN) else ""
    return Writer(owner=job or f"{environment.get('TORCHELASTIC_RUN_ID', '')}@{fence.run}", fence=fence)


def valid(listing: Listing) -> list[Found]:
    """The one history, newest first: what the newest group committed, then what it found."""
    claim = listing.claim
    kept = claim.kept
    counted = [one for one in listing.checkpoints if one.number >= claim.number or kept is None or one.name in kept]
    return sorted(counted, reverse=True)


def refusal(claim: Claim, writer: Writer) -> str:
    """Why `writer` may not commit where `claim` is the newest; empty: it may, or may claim in its turn."""
    theirs = claim.writer
    if claim.number == 0 or writer.owner == "":
        return ""
    if theirs.owner == writer.owner:
        if writer.fence >= theirs.fence:
            return ""
        return (
            f"this group is round {writer.fence.round} (fencing token {writer.fence}), and a newer one, round "
            f"{theirs.fence.round} "
            f"({theirs.fence}), has taken over. It was replaced while it was cut off or frozen"
        )
    if writer.owner in claim.earlier:
        who = f"run {theirs.owner}" if theirs.owner else "a process without an agent"
        return (
            f"{who} has saved there since, and the newest claim wins. To give the directory back to this run, "
            "remove its .claim-* files"
        )
    return ""


def is_current(claim: Claim, writer: Writer) -> bool:
    """`writer` holds the newest claim; or needs none, as nobody ever claimed here."""
    return claim.writer == writer and (claim.number > 0 or not writer.owner)


def enter(folder: pathlib.Path, writer: Writer) -> Claim:
    """The claim under which `writer` saves: its own, made now if need be. Raises RefusedError, OSError."""
    for _ in range(_TRIES):
        listing = look(folder)
        if why := refusal(listing.claim, writer):
            raise RefusedError(why)
        if is_current(listing.claim, writer):
            return listing.claim
        claim = dataclasses.replace(next_claim(listing, writer), claimed_at=time.time())
        if _write(folder, claim) and look(folder).claim.number == claim.number:
            _forget(folder, [number for number in listing.claims if number < listing.claim.number])
            return claim
    raise RefusedError("others claim it all the time: do two jobs save there?")


def check(folder: pathlib.Path, claim: Claim) -> None:
    """Raises RefusedError where `claim` is not the newest any more; OSError."""
    newest = look(folder).claim
    if newest.number > claim.number:
        why = refusal(newest, claim.writer)
        raise RefusedError(why or f"run {newest.writer.owner} has claimed it meanwhile")


def look(folder: pathlib.Path) -> Listing:
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
            time.sleep(_PAUSE)  # there is a newer one by now
        else:
            return Listing(claim, tuple(one for one in checkpoints if one.name in names), numbers)
    raise OSError(errno.EBUSY, "its .claim-* files change all the time")


def next_claim(listing: Listing, writer: Writer) -> Claim:
    """What `writer` claims, whom nothing refuses."""
    before = listing.claim
    over = before.writer.owner if before.writer.owner != writer.owner else ""
    earlier = [owner for owner in (*before.earlier, over) if owner and owner != writer.owner]
    return Claim(
        number=before.number + 1,
        writer=writer,
        earlier=tuple(dict.fromkeys(earlier))[-_REMEMBERED:],
        kept=tuple(one.name for one in valid(listing)),
    )


def _path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f".claim-{number:012d}.json"


def _write(folder: pathlib.Path, claim: Claim) -> bool:
    """False: another has that number. Raises OSError."""
    document = {
        "owner": claim.writer.owner,
        "fence": str(claim.writer.fence),
        "earlier": claim.earlier,
        "kept": claim.kept,
        "claimed_at": claim.claimed_at,
    }
    target = _path(folder, claim.number)
    aside, file = files.create_temporary(target)
    try:
        with file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
            if not _link(aside, target):
                return False
        files.sync_directory(folder)
        return True
    finally:
        aside.unlink(missing_ok=True)


def _link(aside: pathlib.Path, target: pathlib.Path) -> bool:
    try:
        os.link(aside, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _reserve_and_rename(aside, target)
    return True


def _reserve_and_rename(aside: pathlib.Path, target: pathlib.Path) -> bool:
    """Where the file system has no links: who reads in between sees an empty claim, under which everything counts."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        return False
    aside.rename(target)
    return True


def _read(folder: pathlib.Path, number: int) -> Claim:
    """Raises FileNotFoundError, OSError. A file that makes no sense is a claim of nobody, under which everything
    counts."""
    try:
        data = json.loads(_path(folder, number).read_bytes())
        writer = Writer(owner=_text(data["owner"]), fence=Fence.parse(_text(data["fence"])))
        earlier, kept = _texts(data["earlier"]), _texts(data["kept"])
        return Claim(
            number=number, writer=writer, earlier=earlier, kept=kept, claimed_at=float(data.get("claimed_at", 0.0))
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Claim(number=number, writer=NOBODY, kept=None)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r}")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r}")
    return tuple(_text(one) for one in value)


def _forget(folder: pathlib.Path, numbers: Sequence[int]) -> None:
    """Old claims are of no use; the last one before the newest stays for those who look just now."""
    for number in numbers:
        with contextlib.suppress(OSError):
            _path(folder, number).unlink()
