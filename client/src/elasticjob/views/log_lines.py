"""Lines of a merged log as people see them. Pure."""

from __future__ import annotations

import datetime
import re

from elasticjob.decisions.log_lines import Line
from elasticjob.views.text import visible

_COLORS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
"""Of worker pods, by their index: cyan, yellow, green, magenta, blue, and the bright ones."""
_WORKER = re.compile("worker-([0-9]+)")
"""What the name of a worker pod begins with after the job's: all of one index look alike."""


class LineView:
    """How to show the lines of one job."""

    def __init__(self, job: str, *, prefix: bool, timestamps: bool, color: bool) -> None:
        self._job, self._prefix, self._timestamps, self._color = job, prefix, timestamps, color
        self._width = 0

    def text(self, line: Line) -> str:
        """A script's own colors are kept on terminals that show colors; other control sequences never are."""
        text = visible(line.text, colors=self._color)
        parts = []
        if self._timestamps:
            parts.append(_clock(line.at))
        if self._prefix:
            parts.append(self._label(line.source))
        reset = "\x1b[0m" if self._color and "\x1b" in text else ""
        return " ".join([*parts, text]).rstrip() + reset

    def _label(self, source: str) -> str:
        name = source.removeprefix(f"{self._job}-")
        worker = _WORKER.match(name)
        name = worker[0] if worker else name
        self._width = max(self._width, len(name))
        label = name.ljust(self._width) + " |"
        color = _COLORS[int(worker[1]) % len(_COLORS) if worker else 0]
        return f"\x1b[{color}m{label}\x1b[0m" if self._color else label


def _clock(at: int) -> str:
    """Local date and time with milliseconds and zone."""
    return datetime.datetime.fromtimestamp(at / 1e9).astimezone().isoformat(timespec="milliseconds")
