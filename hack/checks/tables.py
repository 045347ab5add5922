"""Tables of the docs that are written by hand have a row for everything that the code has: exit codes and metrics.
Queries of the docs ask for metrics that exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from elasticjob_operator import metrics as operator_metrics
from elasticjob_runtime.contract import ExitCode
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from hack.checks import promql
from hack.checks.pages import Problem, blocks

AGENT_PREFIX = "elasticjob_agent_"


def exit_codes() -> list[str]:
    """The exit codes of an agent."""
    return [str(code.value) for code in ExitCode]


def agent_metrics() -> list[str]:
    """Names of the agents' metrics, without their common prefix."""
    return [name.removeprefix(AGENT_PREFIX) for name in _families(promql.of_an_agent())]


def metrics_of_the_operator() -> list[str]:
    """Names of the operator's metrics, as Prometheus stores them."""
    registry = CollectorRegistry()
    for var in vars(operator_metrics).values():
        if isinstance(var, MetricWrapperBase):
            registry.register(var)
    return sorted({*_families(generate_latest(registry).decode()), "elasticjob_jobs", "elasticjob_wall_seconds"})


def _families(text: str) -> list[str]:
    """Names in Prometheus's text format. Counters' times of creation are not metrics of their own."""
    names = re.findall(r"^# TYPE (\S+) \w+$", text, re.MULTILINE)
    return [name for name in names if not name.endswith("_created")]


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
    """Metrics in queries that neither operator nor agents have."""
    known = {*metrics_of_the_operator(), *(AGENT_PREFIX + name for name in agent_metrics())}
    for block in blocks(markdown):
        for name in re.findall(r"\belasticjob_\w+", block.text) if block.language == "promql" else ():
            if re.sub(r"_(bucket|sum|count)$", "", name) not in known:
                yield Problem(page, block.line, f"there is no metric {name}")
