"""Alerts, dashboards and docs name metrics that operator and agents export, and the docs name all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elasticjob_operator import metrics
from elasticjob_runtime.telemetry.metrics import Metrics
from prometheus_client import generate_latest

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "elasticjob"
AGENT = "elasticjob_agent_"
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def exported_by_operator() -> dict[str, str]:
    """Name -> type."""
    stop = metrics.count_jobs(lambda: {"Running": 1})
    try:
        return families(generate_latest().decode())
    finally:
        stop()


def exported_by_agents() -> dict[str, str]:
    known = Metrics(rank=0, steps_lost=1, step=2, steps_per_second=1.0, last_checkpoint_step=1)
    known.add_restart("WorkerFailed")
    known.add_transition("WorkerFailed", {"detect": {"since": 0.0, "seconds": 1.0}}, 1)
    return families(known.text())


def families(text: str) -> dict[str, str]:
    found = dict(re.findall(r"(?m)^# TYPE (elasticjob_\w+) (\w+)$", text))
    # The client library exports when each counter and histogram was created, too.
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def series(exported: dict[str, str]) -> set[str]:
    return {name + suffix for name, kind in exported.items() for suffix in _SUFFIXES.get(kind, ("",))}


def queries() -> dict[str, set[str]]:
    """File -> metrics in alerts and dashboards of the chart."""
    files = [CHART / "templates" / "metrics.yaml", *sorted(CHART.glob("dashboards/**/*.json"))]
    return {
        str(path.relative_to(ROOT)): set(re.findall(r"\belasticjob_\w+", path.read_text(encoding="utf-8")))
        for path in files
    }


@pytest.mark.parametrize("path", queries())
def test_alerts_and_dashboards_name_exported_metrics(path: str) -> None:
    used = queries()[path]
    assert used
    assert used - series(exported_by_operator()) - series(exported_by_agents()) == set()


def test_the_docs_name_every_metric_of_the_operator_with_its_type() -> None:
    table = (ROOT / "docs" / "operator-metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`elasticjob_.*?`) \| (\w+?)s? \|", table)
    documented = {name: kind for names, kind in rows for name in re.findall(r"elasticjob_\w+", names)}
    assert documented == exported_by_operator()


def test_the_docs_name_every_metric_of_the_agents_with_its_type() -> None:
    text = (ROOT / "docs" / "elasticrun.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"(?ms)^## Metrics\n(.*?)^## ", text)
    rows = re.findall(r"(?m)^\| (`.*?`) \| (\w+) \|", section)
    documented = {AGENT + name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    assert documented == exported_by_agents()
