"""Turns counters into tables. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Crowded:
    """A report of one process: every member of it has its rank in this round."""

    round: int
    at: float
    """Unix time, s."""
    planners: int = 0
    """How many of its members have been the planner so far."""


Counters = Mapping[str, float]
"""Of etcd: name -> sum over all labels."""
CALLS = "grpc_server_started_total"
"""Calls and streams opened."""
WRITES = "etcd_server_proposals_committed_total"
"""Entries in its log: transactions, leases."""
KEYS = "etcd_mvcc_put_total"
RECEIVED, SENT = "etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total"
LOG = "etcd_disk_wal_write_bytes_total"
CPU = "process_cpu_seconds_total"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """The time until every member has its (next) rank, and the cost until all are at rest then."""

    seconds: float
    python_cpu: float
    """s."""
    etcd: Counters
    """By how much its counters have grown."""
    planners: int = 0
    """Members that became the planner, which reads all members."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    members: int
    start: Phase
    loss: Phase
    takeover: Phase
    """After the loss of the planner itself."""


COLUMNS: tuple[tuple[str, Callable[[Phase, int], str]], ...] = (
    ("s", lambda phase, _: f"{phase.seconds:.3f}"),
    ("agents' CPU s", lambda phase, _: f"{phase.python_cpu:.2f}"),
    ("etcd's CPU s", lambda phase, _: f"{phase.etcd[CPU]:.2f}"),
    ("planners", lambda phase, _: str(phase.planners)),
    ("MB out", lambda phase, _: f"{phase.etcd[SENT] / 1e6:.1f}"),
    ("calls each", lambda phase, members: f"{phase.etcd[CALLS] / members:.2f}"),
    ("writes each", lambda phase, members: f"{phase.etcd[WRITES] / members:.1f}"),
    ("keys each", lambda phase, members: f"{phase.etcd[KEYS] / members:.1f}"),
    ("B in each", lambda phase, members: f"{phase.etcd[RECEIVED] / members:,.0f}"),
    ("B out each", lambda phase, members: f"{phase.etcd[SENT] / members:,.0f}"),
    ("B log each", lambda phase, members: f"{phase.etcd[LOG] / members:,.0f}"),
)


def table(results: Sequence[Result]) -> list[Table]:
    phases: tuple[tuple[str, Callable[[Result], Phase]], ...] = (
        ("start: until every member has a rank", lambda result: result.start),
        ("loss of a member: until every member has its new rank", lambda result: result.loss),
        ("loss of the planner: until every member has its new rank", lambda result: result.takeover),
    )
    tables = []
    for title, phase in phases:
        shown = Table("members", *(name for name, _ in COLUMNS), title=title, title_justify="left")
        for result in results:
            shown.add_row(str(result.members), *(text(phase(result), result.members) for _, text in COLUMNS))
        tables.append(shown)
    return tables


def growth(results: Sequence[Result], figure: Callable[[Result], float]) -> float:
    """How many times as much a member costs in the largest group as in a middle one: 1 is linear, N/M quadratic.

    Needs at least two results.
    """
    few, many = results[len(results) // 2 - 1], results[-1]
    return (figure(many) / many.members) / (figure(few) / few.members)


def conclusion(results: Sequence[Result]) -> str:
    """One sentence on whether the cost per member stays the same."""
    if len(results) < 2:
        return ""
    few, many = results[len(results) // 2 - 1].members, results[-1].members
    parts = [
        f"writes at the start x{growth(results, lambda one: one.start.etcd[WRITES]):.2f}",
        f"bytes x{growth(results, lambda one: one.start.etcd[RECEIVED] + one.start.etcd[SENT]):.2f}",
        f"writes after a loss x{growth(results, lambda one: one.loss.etcd[WRITES]):.2f}",
        f"bytes x{growth(results, lambda one: one.loss.etcd[RECEIVED] + one.loss.etcd[SENT]):.2f}",
    ]
    return (
        f"per member, from {few} to {many} members: {', '.join(parts)} (1 is linear, {many / few:.0f} would be "
        "quadratic)"
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text: name -> sum over all labels.

    >>> parse_metrics('# HELP a\\na{x="1"} 2\\na{x="2"} 3\\nb 1e3\\n')
    {'a': 5.0, 'b': 1000.0}
    """
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found
