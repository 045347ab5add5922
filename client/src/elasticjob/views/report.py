"""`elasticjob plot`: a job's history as figures over time. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from html import escape
from typing import Any

from elasticjob_api import Change, ChangeType, History
from elasticjob_api.history import Series, goodput, step_rates, world_sizes

from elasticjob.state import JobState
from elasticjob.views.words import duration, number

BLUE, GREEN, ORANGE, RED, GRAY = "#0969da", "#1a7f37", "#bc4c00", "#cf222e", "#6e7781"
_CAUSES = {
    "Start": GREEN,
    "WorkerFailed": RED,
    "MemberLost": RED,
    "MemberLeft": ORANGE,
    "MemberJoined": BLUE,
    "Resized": BLUE,
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 14px; } td, th { text-align: left; padding: .25rem .9rem .25rem 0; }
th { border-bottom: 1px solid #d1d9e0; } td { border-bottom: 1px solid #eff2f5; vertical-align: top; }
.facts { color: #59636e; }
"""


@dataclass(frozen=True)
class Panel:
    """One figure over time."""

    title: str
    series: Series
    color: str
    steps: bool = False
    """Each value holds until the next time."""
    most: float | None = None
    """The end of its scale. None: as the values need."""
    unit: str = ""


def panels(job: JobState, history: History, now: datetime.datetime) -> list[Panel]:
    """What is drawn, from top to bottom."""
    end = job.finished or now
    shares = [(time, 100 * value) for time, value in goodput(history, end)]
    return [
        Panel("Worker processes that train", _until(world_sizes(history), end), BLUE, steps=True),
        Panel("Steps per second", step_rates(history), GREEN),
        Panel("Goodput: share of the time that trained new steps", shares, ORANGE, steps=True, most=100, unit=" %"),
    ]


def figure(job: JobState, history: History, now: datetime.datetime) -> Any:
    """A plotly figure with three rows that share their time axis."""
    from plotly import graph_objects as go  # type: ignore[import-untyped]
    from plotly.subplots import make_subplots  # type: ignore[import-untyped]

    drawn = panels(job, history, now)
    titles = [panel.title for panel in drawn]
    made = make_subplots(rows=len(drawn), cols=1, shared_xaxes=True, vertical_spacing=0.08, subplot_titles=titles)
    for row, panel in enumerate(drawn, 1):
        made.add_trace(
            go.Scatter(
                x=[time for time, _ in panel.series],
                y=[value for _, value in panel.series],
                mode="lines+markers" if len(panel.series) < 3 else "lines",
                line={"color": panel.color, "shape": "hv" if panel.steps else "linear", "width": 2},
                name=panel.title,
                hovertemplate="%{y:.4g}<extra></extra>",
            ),
            row=row,
            col=1,
        )
    _mark_changes(made, go, history)
    made.update_yaxes(rangemode="tozero")
    made.update_yaxes(range=[0, 105], ticksuffix=" %", row=3, col=1)
    made.update_layout(
        height=760,
        showlegend=False,
        hovermode="x unified",
        template="plotly_white",
        margin={"l": 50, "r": 20, "t": 50, "b": 40},
    )
    return made


def _until(series: Series, end: datetime.datetime) -> Series:
    """The last value holds until the end."""
    return [*series, (max(end, series[-1][0]), series[-1][1])] if series else []


def _mark_changes(made: Any, go: Any, history: History) -> None:
    """A marker for each change on the first row, coloured by its cause."""
    changes = [each for each in history.changes if each.type != ChangeType.SCALED]
    made.add_trace(
        go.Scatter(
            x=[each.time for each in changes],
            y=[each.world_size for each in changes],
            mode="markers",
            marker={"size": 9, "color": [color_of(each) for each in changes], "line": {"color": "white", "width": 1}},
            text=[escape(f"{title_of(each)}: {each.message}" if each.message else title_of(each)) for each in changes],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=1,
        col=1,
    )


def color_of(change: Change) -> str:
    if change.type == ChangeType.FAILED:
        return RED
    return GREEN if change.type == ChangeType.SUCCEEDED else _CAUSES.get(change.reason, GRAY)


def title_of(change: Change) -> str:
    return f"Round {change.round}, {change.reason}" if change.type == ChangeType.ROUND else str(change.type)


def page(job: JobState, history: History, now: datetime.datetime) -> str:
    """A self-contained HTML page: figures, restarts by cause, and every change."""
    chart = figure(job, history, now).to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False})
    facts = ", ".join(f"{name} {value}" for name, value in summary(job, history, now))
    dropped = f"<p class=facts>{history.dropped_changes} older changes are not listed.</p>" if history.dropped else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(job.name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(job.namespace)}/{escape(job.name)}: {escape(job.status_word)}</h1>"
        f"<p class=facts>{escape(facts)}</p>{chart}{_causes(job)}<h2>Changes</h2>{_changes(history)}{dropped}"
        f"<p class=facts>Written {now.strftime('%Y-%m-%d %H:%M:%S UTC')}.</p></body></html>"
    )


def summary(job: JobState, history: History, now: datetime.datetime) -> list[tuple[str, str]]:
    """What the history amounts to, in a few figures."""
    end = job.finished or now
    good = goodput(history, end)
    samples = history.progress
    found = []
    if history.changes:
        found.append(("duration", duration((end - history.changes[0].caused_at).total_seconds())))
    if samples:
        found.append(("steps", str(samples[-1].step)))
    rounds = sum(each.type == ChangeType.ROUND for each in history.changes)
    found += [("rounds", str(max(job.round, rounds))), ("restarts", str(job.restarts))]
    lost = sum(each.steps_lost or 0 for each in history.changes)
    found.append(("steps repeated", str(lost)))
    if good:
        found.append(("goodput", f"{100 * good[-1][1]:.1f} %"))
    return found


def _causes(job: JobState) -> str:
    if not job.causes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(cause)}</td><td>{times}</td></tr>"
        for cause, times in sorted(job.causes.items(), key=lambda each: -each[1])
    )
    return f"<h2>Restarts by cause</h2><table><tr><th>cause</th><th>restarts</th></tr>{rows}</table>"


def _changes(history: History) -> str:
    titles = ("time", "change", "processes", "step", "steps repeated", "resumed after", "")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><tr>{head}</tr>{''.join(map(_change, history.changes))}</table>"


def _change(change: Change) -> str:
    sizes = f"{change.world_size_before} → {change.world_size}" if change.type == ChangeType.ROUND else ""
    resumed = f"{number(change.resume_seconds)} s" if change.resume_seconds is not None else ""
    cells = (
        change.time.strftime("%H:%M:%S"),
        f"<span style='color:{color_of(change)}'>●</span> {escape(title_of(change))}",
        sizes,
        "" if change.step is None else str(change.step),
        "" if change.steps_lost is None else str(change.steps_lost),
        resumed,
        escape(change.message),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
