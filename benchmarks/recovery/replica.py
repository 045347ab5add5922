"""Starts torchft's script, and starts it again whenever it fails: `python replica.py SCRIPT`.

torchft leaves this to a launcher. This one reacts immediately.
"""

from __future__ import annotations

import signal
import subprocess
import sys


def main() -> int:
    ended = False

    def terminate(*_: object) -> None:
        nonlocal ended
        ended = True
        child.terminate()

    while True:
        child = subprocess.Popen([sys.executable, sys.argv[-1]])
        signal.signal(signal.SIGTERM, terminate)
        status = child.wait()
        if ended or not status:
            return 0


if __name__ == "__main__":
    sys.exit(main())
