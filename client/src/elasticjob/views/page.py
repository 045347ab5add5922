"""The page that `elasticjob plot` writes: readable without a network, and on a phone. Pure."""

from __future__ import annotations

import datetime
from html import escape

from elasticjob_api import Change, ChangeType, History

from elasticjob.state import JobState
from elasticjob.views.report import color_of, summary, title_of
from elasticjob.views.svg import NARROW, WIDTH, drawing
from elasticjob.views.words import number, steps_lost

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 14px; } td, th { text-align: left; padding: .25rem .9rem .25rem 0; }
th { border-bottom: 1px solid #d1d9e0; } td { border-bottom: 1px solid #eff2f5; vertical-align: top; }
.facts { color: #59636e; } svg { max-width: 100%; height: auto; } .narrow { display: none; }
@media (max-width: 700px) {
  .wide { display: none; } .narrow { display: block; }
  .changes tr { display: block; padding: .4rem 0; border-bottom: 1px solid #d1d9e0; } .changes th { display: none; }
  .changes td { display: block; border: 0; padding: 0; overflow-wrap: anywhere; } .changes td:empty { display: none; }
  .changes td[title]::before { content: attr(title) ": "; color: #59636e; }
}
"""
_COLUMNS = ("", "", "processes", "step", "steps repeated", "resumed after", "")
"""Of the changes. On narrow screens, these names are before the values."""


def page(job: JobState, history: History, now: datetime.datetime) -> str:
    """A self-contained HTML page: figures, restarts by cause, and every change."""
    facts = ", ".join(f"{name} {value}" for name, value in summary(job, history, now))
    dropped = f"<p class=facts>{history.dropped_changes} older changes are not listed.</p>" if history.dropped else ""
    figures = "".join(
        f"<div class={name}>{drawing(job, history, now, width)}</div>"
        for name, width in (("wide", WIDTH), ("narrow", NARROW))
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(job.name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(job.namespace)}/{escape(job.name)}: {escape(job.summary)}</h1>"
        f"<p class=facts>{escape(facts)}</p>{figures}{_causes(job)}<h2>Changes</h2>{_changes(history)}{dropped}"
        f"<p class=facts>Written {now.strftime('%Y-%m-%d %H:%M:%S UTC')}.</p></body></html>"
    )


def _causes(job: JobState) -> str:
    if not job.causes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(cause)}</td><td>{times}</td></tr>"
        for cause, times in sorted(job.causes.items(), key=lambda item: -item[1])
    )
    return f"<h2>Restarts by cause</h2><table><tr><th>cause</th><th>restarts</th></tr>{rows}</table>"


def _changes(history: History) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("time", "change", *_COLUMNS[2:]))
    return f"<table class=changes><tr>{head}</tr>{''.join(map(_change, history.changes))}</table>"


def _change(change: Change) -> str:
    is_round = change.type == ChangeType.ROUND
    cells = (
        change.time.strftime("%H:%M:%S"),
        f"<span style='color:{color_of(change)}'>●</span> {escape(title_of(change))}",
        f"{change.world_size_before} → {change.world_size}" if is_round else "",
        "" if change.step is None else str(change.step),
        steps_lost(change.steps_lost, expected=is_round and change.world_size_before > 0),
        f"{number(change.resume_seconds)} s" if change.resume_seconds is not None else "",
        escape(change.message),
    )
    named = zip(_COLUMNS, cells, strict=True)
    return "<tr>" + "".join(f"<td{f' title={name!r}' if name else ''}>{cell}</td>" for name, cell in named) + "</tr>"
