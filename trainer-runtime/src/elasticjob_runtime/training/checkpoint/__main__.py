"""`python3 -m elasticjob_runtime.training.checkpoint DIRECTORY`: shows a directory of checkpoints to a person, and lets
them decide what counts. Standard library only, so that it runs in any image and on a login node."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib
import sys
import time
from typing import Any

from elasticjob_runtime.training.checkpoint import claims, intact
from elasticjob_runtime.training.checkpoint.claims import ANONYMOUS, Claim, Found, Listing, Writer
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError, read_footer
from elasticjob_runtime.training.checkpoint.reading import CheckpointError


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 for an error, with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog=f"python3 -m {claims.COMMAND}", description=__doc__.partition(":")[2].strip())
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument(
        "--verify", action="store_true", help="read all files completely, also those of sharded checkpoints"
    )
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--use", metavar="FILE", help="continue from this checkpoint, whatever is newer")
    change.add_argument("--release", action="store_true", help="let any job save here again, also an earlier one")
    options = parser.parse_args(arguments)
    try:
        listing = claims.list_directory(options.directory)
        if options.use:
            answer = _use(options.directory, listing, options.use)
        elif options.release:
            answer = _release(options.directory, listing)
        else:
            answer = _table(options.directory, listing, complete=options.verify)
    except (OSError, CheckpointError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        sys.stderr.write(f"{options.directory}: {reason}\n")
        return 1
    sys.stdout.write(f"{answer}\n")
    return 0


def _table(folder: pathlib.Path, listing: Listing, *, complete: bool) -> str:
    """One line for each checkpoint, newest first, then who saves here."""
    counting = claims.valid(listing)
    others = sorted(set(listing.checkpoints) - set(counting), reverse=True)
    rows = [("FILE", "STEP", "MIB", "SAVED", "BY", "STATE", "COUNTS")]
    for found in (*counting, *others):
        state = _state(folder / found.name, found, complete=complete)
        counts = "yes" if found in counting else "no: added after a newer group had begun to save (--use FILE)"
        by = claims.saver_of(listing, found).saved_by or "?"
        rows.append((found.name, str(found.step), *_about(folder / found.name), by, state, counts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, _owner(listing.claim)])


def _about(path: pathlib.Path) -> tuple[str, str]:
    """Size and time of a file; of a sharded checkpoint, the manifest's."""
    try:
        found = path.stat()
    except OSError:
        return "?", "?"
    saved = datetime.datetime.fromtimestamp(found.st_mtime, datetime.timezone.utc)
    return f"{found.st_size / 2**20:.1f}", f"{saved:%Y-%m-%d %H:%M:%SZ}"


def _state(path: pathlib.Path, found: Found, *, complete: bool) -> str:
    try:
        if complete:
            intact.verify(path, found.step)
            return "intact"
        with open(path, "rb") as file:
            read_footer(file)
    except CorruptCheckpointError as error:
        return f"corrupt: {error}"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return "complete"


def _owner(claim: Claim) -> str:
    writer = claim.writer
    if claim.number == 0 or not writer.owner:
        return "No job has claimed this directory: any may save here."
    since = datetime.datetime.fromtimestamp(claim.claimed_at, datetime.timezone.utc)
    which = f"run {writer.fence.run}, round {writer.fence.round}"
    return f"Claimed by {writer.owner} since {since:%Y-%m-%d %H:%M:%SZ}: {which}."


def _use(folder: pathlib.Path, listing: Listing, name: str) -> str:
    """Gives the file the number of a new claim, which makes it the newest, also newer than memory, and newer than what
    other machines have. The group that saves here may go on."""
    path = pathlib.Path(name)
    if path.name != name and path.resolve().parent != folder.resolve():
        raise CheckpointError(f"{name} is not in {folder}: copy it there first")
    wanted = next((found for found in listing.checkpoints if found.name == path.name), None)
    if wanted is None:
        known = ", ".join(found.name for found in sorted(listing.checkpoints, reverse=True)) or "none"
        raise CheckpointError(f"there is no checkpoint {name}; there are: {known}")
    try:
        intact.verify(folder / wanted.name, wanted.step)
    except CorruptCheckpointError as error:
        raise CheckpointError(f"{wanted.name} is corrupt: {error}") from error
    listing = claims.list_directory(folder)  # it may have taken minutes to verify
    if wanted not in listing.checkpoints:
        raise CheckpointError(
            f"{wanted.name} was removed in this moment: a training that still runs keeps only the newest"
        )
    choice = max(int(time.time()), 1 + claims.newest_choice(listing))
    by = claims.saver_of(listing, wanted).saved_by
    writer = dataclasses.replace(listing.claim.writer, choice=choice, chosen=by)
    claim = _claim(folder, listing, writer, earlier=listing.claim.earlier, claimed_at=listing.claim.claimed_at)
    chosen = Found(claim.number, wanted.step)
    (folder / wanted.name).rename(folder / chosen.name)
    return (
        f"The next process that loads from {folder} continues from step {wanted.step} ({chosen.name}). A training that "
        "still runs goes on from where it is, and what it saves next in this directory is newer: suspend it first."
    )


def _release(folder: pathlib.Path, listing: Listing) -> str:
    _claim(folder, listing, ANONYMOUS, earlier=(), claimed_at=time.time())
    return f"Any job may save in {folder} again; the next one that does claims it."


def _claim(folder: pathlib.Path, listing: Listing, writer: Writer, **about: Any) -> Claim:
    """Makes the next claim. Raises CheckpointError if a job does at the same time."""
    follows = (*listing.claim.follows, listing.claim.number)
    claim = dataclasses.replace(claims.next_claim(listing, writer), follows=follows, **about)
    if not claims.write_claim(folder, claim):
        raise CheckpointError("a job has begun to save there in this moment: try again")
    return claim


if __name__ == "__main__":
    sys.exit(main())
