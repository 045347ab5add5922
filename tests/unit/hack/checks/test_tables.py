"""The hand-written tables of exit codes and metrics are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.checks import tables

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("docs/elasticrun.md", "| 75 |"),
        ("docs/elasticrun.md", "| `heartbeats_missed_total` |"),
        ("docs/elasticrun.md", "`steps_per_second`"),
        ("docs/operator-metrics.md", "`elasticjob_leader`"),
        ("docs/operator-metrics.md", "`elasticjob_jobs{condition}`"),
    ],
)
def test_a_missing_row_is_reported(page: str, row: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert list(tables.missing(page, text)) == []
    assert len(list(tables.missing(page, text.replace(row, row[0] if row.startswith("`") else "| |")))) == 1


def test_all_metrics_of_the_code_are_found() -> None:
    assert {"phase_seconds", "restarts_total", "last_checkpoint_step", "store_up"} <= set(tables.agent_metrics())
    assert {"elasticjob_reconcile_seconds", "elasticjob_jobs"} <= set(tables.metrics_of_the_operator())


def test_a_query_for_a_metric_that_does_not_exist_is_reported() -> None:
    query = 'sum(rate(elasticjob_time_to_resume_seconds_bucket[1h])) > elasticjob_agent_step{job="a"}'
    assert list(tables.unknown_metrics("docs/a.md", f"```promql\n{query}\n```\n")) == []
    (problem,) = tables.unknown_metrics("docs/a.md", "```promql\nelasticjob_jops > 1\n```\n")
    assert (problem.line, problem.message) == (2, "there is no metric elasticjob_jops")
