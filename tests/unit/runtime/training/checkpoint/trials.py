"""Random histories of a directory of checkpoints, plain or sharded, with kills and I/O errors in the midst of saves and
loads.

`test_trials` runs a few; `make checkpoint-trials ARGS="--seconds 1800"` runs many.
"""

from __future__ import annotations

import argparse
import errno
import os
import pathlib
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import reading

CALLS = ("open", "fsync", "fstat", "link", "rename", "unlink", "listdir", "mkdir", "write")
"""Of `os`, which may fail, or be the last that a process makes."""
ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ENOENT)
MOST_CALLS = 40
"""In one save."""


class FileLayer:
    """Between the code and `os`: fails, or kills this process, at one call."""

    def __init__(self, at: int, fault: Callable[[], None]) -> None:
        self._left = at
        self._fault = fault
        self._patches = [mock.patch.object(os, name, self._wrapped(getattr(os, name))) for name in CALLS]

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._fault()
            return real(*args, **kwargs)

        return call

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class History:
    """One job's. Each checkpoint has a serial number, so that the newest is known here."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._round = 1
        self._serial = 0
        self._saved = 0
        """The newest serial number of which the save has returned."""
        self._step = 0

    def play(self, events: int) -> None:
        for _ in range(events):
            event = self._random.choice([self._save, self._save, self._error, self._killed, self._replaced, self._read])
            event()
            self._check(self._load())

    def _save(self) -> None:
        self._serial += 1
        self._step += 1
        self._write(self._serial)
        self._saved = self._serial

    def _write(self, serial: int, round_number: int | None = None) -> None:
        os.environ.update({Env.FENCE: f"1.0.{round_number or self._round}", Env.JOB_UID: "job", Env.RUN: "1"})
        self._write_to(self._folder, serial, self._step, self._random.randint(1, 3))

    def _write_to(self, folder: pathlib.Path, serial: int, step: int, keep: int) -> None:
        data = str(serial).encode() * 1000
        checkpoint.save(folder, step, lambda file: file.write(data), keep=keep)

    def _error(self) -> None:
        """A save in which one call fails."""
        try:
            with FileLayer(self._random.randint(1, MOST_CALLS), self._fail):
                self._save()
        except checkpoint.CheckpointError:
            pass

    def _fail(self) -> None:
        code = self._random.choice(ERRORS)
        raise OSError(code, os.strerror(code))

    def _killed(self) -> None:
        """A save that is killed, and the next group."""
        at = self._random.randint(1, MOST_CALLS)
        self._serial += 1
        self._step += 1
        child = os.fork()
        if child == 0:
            with FileLayer(at, _kill):
                self._write(self._serial)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            self._saved = self._serial
        self._round += 1

    def _replaced(self) -> None:
        """A group that was replaced, and tries to save. The next one goes back a few steps."""
        self._round += 1
        self._step = max(0, self._step - self._random.randint(0, 3))
        self._save()
        self._step += 5
        try:
            self._write(0, self._round - 1)
        except checkpoint.FencedError:
            return
        raise AssertionError("a group that was replaced has saved")

    def _read(self) -> None:
        """A load in which one call fails."""
        try:
            with FileLayer(self._random.randint(1, 6), self._fail):
                found = self._load()
        except checkpoint.CheckpointError:
            return
        self._check(found)

    def _load(self) -> int:
        found = checkpoint.load(self._folder, lambda file: file.read())
        if found is None:
            return 0
        serial = found.state[: len(found.state) // 1000]
        assert found.state == serial * 1000
        return int(serial)

    def _check(self, serial: int) -> None:
        assert serial >= self._saved, f"{self._saved} was saved, and {serial} is loaded"
        assert serial <= self._serial


class ShardedHistory(History):
    """Of one rank's sharded checkpoints, some of them written in the background."""

    def _write_to(self, folder: pathlib.Path, serial: int, step: int, keep: int) -> None:
        from elasticjob_runtime.training import save_sharded_checkpoint
        from elasticjob_runtime.training.sharded import saving

        block = self._random.random() < 0.5
        save_sharded_checkpoint(folder, {"model": _model(serial)}, step=step, keep=keep, block=block)
        saving.finish()

    def _load(self) -> int:
        from elasticjob_runtime.training import load_sharded_checkpoint

        model = _model(0)
        if load_sharded_checkpoint(self._folder, {"model": model}) is None:
            return 0
        (serial,) = set(model.weight.flatten().tolist())
        return int(serial)


def _model(serial: int) -> Any:
    import torch

    model = torch.nn.Linear(10, 10, bias=False)
    torch.nn.init.constant_(model.weight, serial)
    return model


def run(seed: int, events: int, kind: type[History] = History) -> None:
    """Raises AssertionError, with the seed, if a checkpoint is lost."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(reading, "PAUSE", 0.0):
        try:
            kind(pathlib.Path(folder) / "checkpoints", seed).play(events)
        except BaseException as error:
            raise AssertionError(f"{kind.__name__}, seed {seed}: {error}") from error


def seeds(first: int, seconds: float) -> Iterator[int]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield first
        first += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    parser.add_argument("--events", type=int, default=60, help="of each history")
    options = parser.parse_args()
    count = 0
    for seed in seeds(options.seed, options.seconds):
        run(seed, options.events)
        run(seed, options.events, ShardedHistory)
        count += 2
    print(f"{count} histories of {options.events} events: no checkpoint was lost")


if __name__ == "__main__":
    main()
