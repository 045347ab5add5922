"""The full-screen view. It draws what `live.model` says, about once a second."""

from __future__ import annotations

import collections
import datetime
import time
from typing import ClassVar

from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Footer, RichLog, Sparkline, Static

from elasticjob.decisions.changes import changes
from elasticjob.decisions.log_selection import processes_per_pod
from elasticjob.errors import ElasticJobError
from elasticjob.live.model import COLORS, Row, facts, in_the_way, past, rows, title
from elasticjob.sdk.client import ElasticJobClient
from elasticjob.sdk.watch import JobWatch, Snapshot
from elasticjob.state import JobState, WorkerState
from elasticjob.views.table import plain

REDRAW_SECONDS = 1.0
AGES_SECONDS = 10.0
"""Ages alone are drawn again this often, s: of a thousand worker pods they cost most."""
RATES = 120
"""Step rates in the sparkline."""
LINES = 500
_COLUMNS = ("RANK", "WORKER POD", "STATUS", "NODE", "AGE", "DETAIL")


def watch_full_screen(client: ElasticJobClient, name: str) -> JobState | None:
    """Returns the last state; None if the job was deleted. Raises ElasticJobError."""
    with JobWatch(client.cluster, name, workers=True) as watch:
        app = WatchApp(client, watch)
        app.run()
        if app.error is not None:
            raise app.error
        return app.last


class WatchApp(App[None]):
    CSS = """
    #title { height: 1; padding: 0 1; text-style: bold; }
    #top { height: auto; max-height: 50%; }
    #facts { width: 1fr; height: auto; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #rate { width: 30%; height: 4; margin: 0 1; }
    #obstacles { height: auto; max-height: 4; padding: 0 1; color: $warning; }
    #workers { height: 2fr; min-height: 4; scrollbar-size-horizontal: 0; }
    #timeline { height: 1fr; min-height: 4; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, client: ElasticJobClient, watch: JobWatch) -> None:
        super().__init__()
        self._client, self._watch = client, watch
        self._before: JobState | None = None
        self._pods_before: list[WorkerState] = []
        self._drawn: dict[str, Row] = {}
        self._drawn_at = self._ages_at = 0.0
        self._rates: collections.deque[float] = collections.deque(maxlen=RATES)
        self._step = -1
        self._goodput_at = float("-inf")
        self._last_goodput: float | None = None
        self.last: JobState | None = None
        self.error: ElasticJobError | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="top"):
            yield Static(id="facts")
            with Vertical(id="rate"):
                yield Static("steps/s", id="rate-title")
                yield Sparkline([], id="rates")
        yield Static(id="obstacles")
        yield DataTable(id="workers", cursor_type="row", zebra_stripes=True)
        yield RichLog(id="timeline", max_lines=LINES, min_width=0, markup=True, wrap=True)
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one("#workers", DataTable)
        for name in _COLUMNS:
            table.add_column(name, key=name)
        self.call_after_refresh(self._draw)  # the timeline wraps its lines at the width that it has then
        self.set_interval(REDRAW_SECONDS, self._draw_if_changed)

    def _draw_if_changed(self) -> None:
        if self._watch.has_changed() or time.monotonic() - self._drawn_at > AGES_SECONDS or self._is_lost():
            self._draw()

    def _is_lost(self) -> bool:
        return self._watch.lost_for() > 1

    def _draw(self) -> None:
        try:
            now = self._watch.snapshot()
        except ElasticJobError as error:
            self.error = error
            self.exit()
            return
        self._drawn_at = time.monotonic()
        self._tell(now)
        self.last = now.job
        if now.job is None:
            self.query_one("#title", Static).update(Text("The job was deleted. q quits.", style="yellow"))
            return
        self._draw_job(now.job, now)
        self._draw_workers(now)
        self._before, self._pods_before = now.job, now.workers

    def _draw_job(self, job: JobState, now: Snapshot) -> None:
        clock = self._client.cluster.api.now()
        text, style = title(job, clock, now.lost_for)
        self.query_one("#title", Static).update(Text(text, style=f"bold {COLORS[style]}"))
        lines = Text(no_wrap=True, overflow="ellipsis")
        for name, value in facts(job, clock, self._goodput(job, clock)):
            lines.append(f"{name:<13}", style="bold").append(f"{value}\n")
        lines.rstrip()
        self.query_one("#facts", Static).update(lines)
        obstacles = self.query_one("#obstacles", Static)
        found = in_the_way(job, now.workers, clock)
        obstacles.display = bool(found)
        obstacles.update(Text("\n".join(found)))
        progress = job.progress
        rate = self.query_one("#rate", Vertical)
        rate.display = progress is not None and progress.steps_per_second is not None
        if progress is not None and progress.steps_per_second is not None and progress.step != self._step:
            self._step = progress.step
            self._rates.append(progress.steps_per_second)
            self.query_one("#rates", Sparkline).data = list(self._rates)
            self.query_one("#rate-title", Static).update(f"{progress.steps_per_second:.3g} steps/s")

    def _goodput(self, job: JobState, clock: datetime.datetime) -> float | None:
        """Of the history so far; None if there is none."""
        if not job.history:
            return None
        if time.monotonic() - self._goodput_at > AGES_SECONDS:
            from elasticjob.sdk.history import goodput_of  # takes half a second

            body = self._watch.body()
            self._goodput_at = time.monotonic()
            self._last_goodput = goodput_of(body, job.finished or clock) if body is not None else None
        return self._last_goodput

    def _draw_workers(self, now: Snapshot) -> None:
        """Changes only the cells that differ; draws everything if rows come, go or move."""
        if now.workers == self._pods_before and time.monotonic() - self._ages_at < AGES_SECONDS:
            return
        self._ages_at = time.monotonic()
        table = self.query_one("#workers", DataTable)
        per_pod = processes_per_pod(now.job, now.workers) if now.job else 1
        wanted = {row.key: row for row in rows(now.workers, self._client.cluster.api.now(), per_pod)}
        if list(wanted) != list(self._drawn):
            at = table.scroll_offset.y
            table.clear()
            for row in wanted.values():
                table.add_row(*_cells(row), key=row.key)
            table.scroll_to(y=at, animate=False)
        else:
            for key, row in wanted.items():
                before = self._drawn[key]
                if row == before:
                    continue
                for name, cell, old, new in zip(_COLUMNS, _cells(row), before.cells, row.cells, strict=True):
                    if old != new or name == "STATUS":
                        table.update_cell(key, name, cell)
        self._drawn = wanted

    def _tell(self, now: Snapshot) -> None:
        clock = self._client.cluster.api.now().astimezone().strftime("%H:%M:%S")
        log = self.query_one("#timeline", RichLog)
        if self._before is None and now.job is not None:
            for time_, text in past(now.job):
                log.write(f"[dim]{time_} {escape(text)}[/]")
        for change in changes(self._before, now.job, self._pods_before, now.workers):
            log.write(f"[dim]{clock}[/] [{COLORS[change.style]}]{escape(plain(change.text))}[/]")


def _cells(row: Row) -> tuple[Text, ...]:
    return tuple(
        Text(cell, style=COLORS[row.style] if name == "STATUS" else "")
        for name, cell in zip(_COLUMNS, row.cells, strict=True)
    )
