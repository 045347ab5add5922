"""Tables of the docs that are written by hand have a row for everything that the code has: exit codes and metrics.
Queries of the docs ask for metrics that exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from elasticjob_runtime.contract import ExitCode

from hack.checks import promql
from hack.checks.pages import Problem, blocks

AGENT_PREFIX = "elasticjob_agent_"


def exit_codes() -> list[str]:
    """The exit codes of an agent."""
    return [str(code.value) for code in ExitCode]


def agent_metrics() -> list[str]:
    """Names of the agents' metrics, without their common prefix."""
    return [name.removeprefix(AGENT_PREFIX) for name in _metrics() if name.startswith(AGENT_PREFIX)]


def metrics_of_the_operator() -> list[str]:
    """Names of the operator's metrics, as Prometheus stores them."""
    return [name for name in _metrics() if not name.startswith(AGENT_PREFIX)]


def _metrics() -> list[str]:
    """A histogram is one metric with three series."""
    series = promql.exported().keys() - promql.OF_THE_PROCESS
    histograms = {name.removesuffix("_bucket") for name in series if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return sorted(histograms | (series - parts))


TABLES: dict[str, list[tuple[str, Callable[[], list[str]]]]] = {
    "docs/reference/elasticrun.md": [("exit code", exit_codes), ("metric", agent_metrics)],
    "docs/guides/monitoring.md": [("metric", metrics_of_the_operator)],
}
"""Page -> what its tables list."""


def _first_cells(markdown: str) -> set[str]:
    """The words in the first cell of every row."""
    rows = re.findall(r"^\| *(.*?) *\|", markdown, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"[\w]+", re.sub(r"\{[^}]*\}", "", row))}


def missing(page: str, markdown: str) -> Iterator[Problem]:
    """What the code has and the page's tables lack."""
    present = _first_cells(markdown)
    for kind, names in TABLES.get(page, ()):
        yield from (
            Problem(page, 1, f"no table has a row for {kind} {name}") for name in names() if name not in present
        )


def unknown_metrics(page: str, markdown: str) -> Iterator[Problem]:
    """Metrics and labels in queries that neither operator nor agents have."""
    for block in blocks(markdown):
        for name in sorted(promql.unknown(block.text, promql.exported())) if block.language == "promql" else ():
            yield Problem(page, block.line, f"there is no metric or label {name}")
