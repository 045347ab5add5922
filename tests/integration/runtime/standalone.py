"""Runs a script under torchrun or elasticrun on this machine, with the torch installed."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
from collections.abc import Callable

from hack.support import eventually

TORCHRUN = "torch.distributed.run"
ELASTICRUN = "elasticjob_runtime"


@dataclasses.dataclass
class Run:
    """One launcher on one machine, with its output in a file."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def exit_code(self, timeout: float = 120.0) -> int:
        eventually(lambda: self.process.poll() is not None, timeout, 0.1, f"the launcher exits; log: {self.log}")
        return int(self.process.returncode)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


Launch = Callable[..., Run]
