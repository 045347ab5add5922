"""Alerts and docs name metrics that operator and agents export, and the docs name all of them. For dashboards, see
tests/unit/hack/test_dashboards.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elasticjob_operator import metrics
from prometheus_client import generate_latest

from hack.checks import promql

ROOT = Path(__file__).parents[3]
AGENT = "elasticjob_agent_"


def exported_by_operator() -> dict[str, str]:
    """Name -> type."""
    stop = metrics.count_jobs(lambda: {"Running": 1}, lambda: {"productive": 1}, lambda: {"50": 1})
    try:
        return families(generate_latest().decode())
    finally:
        stop()


def exported_by_agents() -> dict[str, str]:
    return families(promql.of_an_agent())


def families(text: str) -> dict[str, str]:
    found = dict(re.findall(r"(?m)^# TYPE (elasticjob_\w+) (\w+)$", text))
    # The client library exports when each counter and histogram was created, too.
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def alerts() -> dict[str, str]:
    """Name -> expression."""
    template = (ROOT / "charts" / "elasticjob" / "templates" / "metrics.yaml").read_text(encoding="utf-8")
    selected = template.replace('{{- include "elasticjob.ownSeries" . -}}', 'job="ej"')
    found = re.findall(r"(?m)^ *- alert: (\w+)\n *expr: (.*)$", selected)
    return {name: re.sub(r"\{\{ \.Values\.\w+ \}\}", "1", expression) for name, expression in found}


@pytest.mark.parametrize("alert", alerts())
def test_alerts_use_metrics_and_labels_that_the_operator_exports(alert: str) -> None:
    expression = alerts()[alert]
    assert promql.series(expression)
    assert promql.unknown(expression, promql.exported()) == set()


def test_the_docs_name_every_metric_of_the_operator_with_its_type() -> None:
    table = (ROOT / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`elasticjob_.*?`) \| (\w+?)s? \|", table)
    documented = {name: kind for names, kind in rows for name in re.findall(r"elasticjob_\w+", names)}
    assert documented == exported_by_operator()


def test_the_docs_name_every_metric_of_the_agents_with_its_type() -> None:
    text = (ROOT / "docs" / "reference" / "elasticrun.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"(?ms)^## Metrics\n(.*?)^## ", text)
    rows = re.findall(r"(?m)^\| (`.*?`) \| (\w+) \|", section)
    documented = {AGENT + name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    assert documented == exported_by_agents()
