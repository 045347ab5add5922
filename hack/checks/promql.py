"""Metrics and labels in PromQL expressions, and those that operator and agents export."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from elasticjob_operator import metrics as operator_metrics
from elasticjob_runtime.telemetry.metrics import Metrics
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

_NAME = re.compile(r"(?<![\w$:\"=~])[a-zA-Z_:][\w:]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WINDOW = re.compile(r"\[[^\]]*\]")
_WORDS = frozenset({"and", "by", "group_left", "group_right", "ignoring", "offset", "on", "or", "unless", "without"})

OF_THE_PROCESS = frozenset({"process_cpu_seconds_total", "process_resident_memory_bytes"})
"""Metrics of prometheus_client itself."""
OF_THE_TARGET = frozenset(
    {"elasticjob_dev_job_name", "elasticjob_dev_worker_index", "instance", "job", "namespace", "pod"}
)
"""Labels that Prometheus adds, by the chart's monitors."""


def exported() -> dict[str, set[str]]:
    """Name of each series -> its labels."""
    of_all_jobs = {
        "elasticjob_jobs": {"condition"},
        "elasticjob_wall_seconds": {"part"},
        "elasticjob_jobs_below_goodput": {"percent"},
    }
    return {**_of_the_operator(), **_of_agents(), **of_all_jobs} | {name: set() for name in OF_THE_PROCESS}


def _of_the_operator() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for var in vars(operator_metrics).values():
        if not isinstance(var, MetricWrapperBase):
            continue
        name, labels = var._name, set(var._labelnames)
        if isinstance(var, Histogram):
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[f"{name}_total" if isinstance(var, Counter) else name] = labels
    return found


def of_an_agent() -> str:
    """What an agent serves when it knows everything about itself."""
    metrics = Metrics(rank=0, steps_lost=0, step=0, optimizer_steps=0, steps_per_second=0.0, last_checkpoint_step=0)
    metrics.backward_passes, metrics.own_seconds = 0, {0: 1.0}
    metrics.connections_dropped["Unauthenticated"] = 1
    metrics.add_restart("WorkerFailed")
    metrics.add_transition("WorkerFailed", {"fork": {"seconds": 1.0}}, 0)
    return metrics.text()


def _of_agents() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(\w+)(\{.*\})? \S+$", of_an_agent(), re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return dict(found)


def series(expression: str) -> set[str]:
    """Names of the series in a PromQL expression.

    >>> sorted(series('sum by (code) (rate(a_total{code=~"5.."}[$x])) / on (pod) b or vector(0)'))
    ['a_total', 'b']
    """
    text = _STRING.sub("", expression)
    for pattern in (_SELECTOR, _GROUPING, _WINDOW):
        text = pattern.sub(" ", text)
    return {
        match[0]
        for match in _NAME.finditer(text)
        if match[0] not in _WORDS and not text[match.end() :].lstrip().startswith("(") and not _is_keyword(text, match)
    }


def _is_keyword(text: str, match: re.Match[str]) -> bool:
    """Whether it is an aggregation whose grouping comes first, as in `sum by (a) (b)`."""
    return match[0] in {"avg", "count", "group", "max", "min", "sum"} and not text[match.end() :].strip().startswith(
        "{"
    )


def labels(expression: str) -> set[str]:
    """Names of the labels in its selectors and groupings.

    >>> sorted(labels('sum by (le, a) (x{b="c,d", e!~"f"})'))
    ['a', 'b', 'e', 'le']
    """
    text = _STRING.sub('""', expression)
    inside = ",".join([*_SELECTOR.findall(text), *_GROUPING.findall(text)])
    return {match for match in re.findall(r"[A-Za-z_]\w*", inside) if match}


def unknown(expression: str, known: Mapping[str, set[str]]) -> set[str]:
    """Series and labels that nothing exports."""
    names = series(expression)
    there = OF_THE_TARGET.union(*(known.get(name, set()) for name in names))
    return (names - known.keys()) | (labels(expression) - there)
