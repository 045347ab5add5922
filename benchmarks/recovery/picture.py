"""The picture of the front page: what a kill costs in each system, to scale, from what was measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.recovery.report import NEVER_SECONDS, Measured, Row, figure
from benchmarks.recovery.systems import SYSTEMS

FILE = "docs/img/kill.svg"
SHOWN = ("torchrun", "torchft", "level-1", "level-2")
LEFT, KILLED, RIGHT = 224, 328, 860
TOP, LANE, GROUP = 44, 24, 108
"""Top of the first lane, height of a lane, and of the lanes of one system."""
_FONT = "-apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"


def kill(measured: Measured) -> str:
    """One group of lanes for each system that was measured, one lane for each worker process."""
    values = {name: statistics.median(found) for name in SHOWN if (found := measured.values(Row.KILL, name))}
    seconds = {name: min(value, NEVER_SECONDS) for name, value in values.items()}
    scale = (RIGHT - KILLED) / max(1.0, 1.1 * max(seconds.values(), default=0.0))
    height = TOP + GROUP * len(values) + 30
    said = "; ".join(f"{SYSTEMS[name].title}: {figure(Row.KILL, value)}" for name, value in values.items())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" role="img" aria-labelledby="title desc" '
        f'font-family="{_FONT}" font-size="14">',
        '  <title id="title">One worker process is killed</title>',
        f'  <desc id="desc">Three worker processes train, and one is killed. Time to the next step: {said}.</desc>',
        '  <defs><pattern id="steps" width="8" height="16" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="16" fill="#2e7d4f"/></pattern></defs>',
        f'  <path d="M{KILLED} 32 V{height - 30}" stroke="#b3402f" stroke-width="1.2" stroke-dasharray="3 4"/>',
        f'  <text x="{KILLED}" y="24" fill="#b3402f" text-anchor="middle">one process is killed</text>',
    ]
    for index, (name, value) in enumerate(values.items()):
        resumed = KILLED + scale * seconds[name]
        lines += _group(name, figure(Row.KILL, value), resumed, TOP + GROUP * index)
    unit = next(item for item in (0.2, 0.5, 1.0, 2.0, 5.0, 20.0) if item * scale > 60)
    for step in range(int((RIGHT - KILLED) / (unit * scale)) + 1):
        x = KILLED + step * unit * scale
        lines.append(
            f'  <text x="{x:.0f}" y="{height - 8}" fill="#6b7789" text-anchor="middle">{step * unit:g} s</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


def _group(name: str, median: str, resumed: float, top: int) -> Iterator[str]:
    """`resumed`: where training goes on."""
    title, _, detail = SYSTEMS[name].title.partition(", ")
    restarts = SYSTEMS[name].restarts
    yield f'  <text x="8" y="{top + 14}" fill="#6b7789" font-weight="600">{title}</text>'
    yield f'  <text x="8" y="{top + 34}" fill="#6b7789" font-size="12">{detail}</text>'
    for lane in range(3):
        y = top + LANE * lane
        yield f'  <rect x="{LEFT}" y="{y}" width="{KILLED - LEFT}" height="16" fill="url(#steps)"/>'
        if restarts or lane != 1:
            width = max(0.0, RIGHT - resumed)
            yield f'  <rect x="{resumed:.1f}" y="{y}" width="{width:.1f}" height="16" fill="url(#steps)"/>'
    cross = f"M{KILLED} {top + LANE + 2} l12 12 m0 -12 l-12 12"
    yield f'  <path d="{cross}" stroke="#b3402f" stroke-width="3"/>'
    what = "all restart from the last checkpoint" if restarts else "the others go on; a new process joins later"
    y = top + LANE * 3 + 10 if restarts else top + LANE + 13
    yield f'  <text x="{KILLED + 22}" y="{y}" fill="#6b7789">{median}: {what}</text>'
