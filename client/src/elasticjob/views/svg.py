"""A job's history as an SVG image: what `elasticjob plot` writes, and what is on its page. Pure."""

from __future__ import annotations

import datetime
import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from elasticjob_api import ChangeType, History
from elasticjob_api.history import Series

from elasticjob.state import JobState
from elasticjob.views.report import Panel, color_of, panels, summary, title_of
from elasticjob.views.words import duration, number

WIDTH, NARROW, LEFT, RIGHT = 1000, 420, 60, 20
"""`NARROW`: for a phone."""
TOP, HEIGHT, GAP = 25, 170, 50
HEAD, LINE, WIDEST, NO_BREAK = 42, 16, 7, "\N{NO-BREAK SPACE}"
"""Of the facts above the panels: where their first line is, their distance, and what a character takes in the widest of
`FONTS`, on average."""
FONTS = "system-ui,Arial,Helvetica,Roboto,Noto Sans,DejaVu Sans,Liberation Sans,sans-serif"
"""By name too: what draws the PNG (views/png.py) takes no other font than Arial for sans-serif, which most machines
with Linux lack."""
_TEXT = f"font-family='{FONTS}' font-size='12' fill='#59636e'"
MOST_TICKS, TICK = 8, 80
"""Labels of the time axis, and the least distance between them."""
DISTANCES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
"""Between the labels of the time axis, s; above these, days."""


@dataclass(frozen=True)
class Scale:
    """Maps times and values of one panel to pixels."""

    start: datetime.datetime
    end: datetime.datetime
    most: float
    top: float
    width: int

    def x(self, time: datetime.datetime) -> float:
        share = (time - self.start).total_seconds() / max(1.0, (self.end - self.start).total_seconds())
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.top + HEIGHT * (1 - value / self.most)


def image(job: JobState, history: History, now: datetime.datetime) -> str:
    """The same panels as on the page, with a head."""
    facts = ", ".join(f"{name} {value}".replace(" ", NO_BREAK) for name, value in summary(job, history, now))
    lines = textwrap.wrap(facts, (WIDTH - LEFT - RIGHT) // WIDEST, break_on_hyphens=False)
    title = f"{escape(job.namespace)}/{escape(job.name)}: {escape(job.summary)}"
    head = [
        f"<title>{title}</title><rect width='100%' height='100%' fill='white'/>",
        f"<text x='{LEFT}' y='24' font-family='{FONTS}' font-size='18' fill='#1f2328'>{title}</text>",
    ]
    head += [
        f"<text x='{LEFT}' y='{HEAD + LINE * row}' {_TEXT}>{escape(line)}</text>" for row, line in enumerate(lines)
    ]
    return drawing(job, history, now, WIDTH, head, HEAD + LINE * len(lines))


def drawing(
    job: JobState,
    history: History,
    now: datetime.datetime,
    width: int,
    head: Sequence[str] = (),
    height_of_head: int = 0,
) -> str:
    """Worker processes, step rate and goodput over time, with a dot for each change."""
    drawn = panels(job, history, now)
    times = [time for panel in drawn for time, _ in panel.series] or [now]
    top = TOP + height_of_head
    height = top + len(drawn) * (HEIGHT + GAP)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>",
        *head,
    ]
    for row, panel in enumerate(drawn):
        most = panel.most or round_up(max((value for _, value in panel.series), default=1.0))
        scale = Scale(min(times), max(times), most, top + row * (HEIGHT + GAP), width)
        lines += _panel(panel, scale)
        if row == 0:
            lines += _dots(history, scale)
    return "\n".join([*lines, "</svg>\n"])


def round_up(most: float) -> float:
    """The end of a scale whose quarters are short numbers.

    >>> round_up(13.0), round_up(3.6), round_up(0.0)
    (20.0, 4.0, 4.0)
    """
    if most <= 0:
        return 4.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= most)


def ticks(seconds: float, most: int = MOST_TICKS) -> list[int]:
    """Times for the labels of an axis from 0 to `seconds`: round, and at most `most`.

    >>> ticks(305), ticks(5400)
    ([0, 60, 120, 180, 240, 300], [0, 900, 1800, 2700, 3600, 4500, 5400])
    """
    days = (86_400 * count for count in itertools.count(1))
    distance = next(step for step in itertools.chain(DISTANCES, days) if seconds < step * most)
    return list(range(0, int(seconds) + 1, distance))


def _panel(panel: Panel, scale: Scale) -> Iterator[str]:
    yield f"<text x='{LEFT}' y='{scale.top - 8}' {_TEXT}>{escape(panel.title)}</text>"
    if not panel.series:
        yield f"<text x='{LEFT}' y='{scale.top + HEIGHT / 2}' {_TEXT}>{escape(panel.missing)}</text>"
        return
    for step in range(5):
        value = scale.most * step / 4
        y = scale.y(value)
        yield f"<line x1='{LEFT}' x2='{scale.width - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#eff2f5'/>"
        yield f"<text x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' {_TEXT}>{number(value)}{panel.unit}</text>"
    most = min(MOST_TICKS, (scale.width - LEFT - RIGHT) // TICK)
    for seconds in ticks((scale.end - scale.start).total_seconds(), most):
        x = scale.x(scale.start + datetime.timedelta(seconds=seconds))
        y = scale.top + HEIGHT + 16
        yield f"<text x='{x:.1f}' y='{y}' text-anchor='middle' {_TEXT}>{duration(seconds)}</text>"
    points = " ".join(f"{scale.x(time):.1f},{scale.y(value):.1f}" for time, value in _corners(panel))
    yield f"<polyline points='{points}' fill='none' stroke='{panel.color}' stroke-width='2'/>"


def _corners(panel: Panel) -> Sequence[tuple[datetime.datetime, float]]:
    """The points of the line; of steps, each value holds until the next time."""
    if not panel.steps:
        return panel.series
    found: Series = []
    for time, value in panel.series:
        if found:
            found.append((time, found[-1][1]))
        found.append((time, value))
    return found


def _dots(history: History, scale: Scale) -> Iterator[str]:
    for change in history.changes:
        if change.type != ChangeType.SCALED:
            x, y = scale.x(min(max(change.time, scale.start), scale.end)), scale.y(change.world_size)
            text = escape(f"{title_of(change)} {change.message}".strip())
            yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{color_of(change)}'><title>{text}</title></circle>"
