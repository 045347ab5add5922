"""The chart's Grafana dashboards: they can be loaded, and every query asks for what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hack.checks import promql

ROOT = Path(__file__).parents[3]
FILES = sorted(ROOT.joinpath("charts/elasticjob/dashboards").glob("*.json"))

Json = dict[str, Any]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Json:
    """As Grafana reads it from the chart."""
    found: Json = json.loads(Path(request.param).read_text(encoding="utf-8"))
    return found


def targets(dashboard: Json) -> list[Json]:
    return [target for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_every_dashboard_has_a_uid_of_its_own() -> None:
    uids = [json.loads(path.read_text(encoding="utf-8"))["uid"] for path in FILES]
    assert len(set(uids)) == len(uids) >= 2


def test_every_panel_says_what_it_shows(dashboard: Json) -> None:
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["type"] == "row" or (panel["description"].endswith(".") and panel["targets"])


def test_every_query_asks_for_metrics_and_labels_that_are_exported(dashboard: Json) -> None:
    known = promql.exported()
    assert targets(dashboard)
    for target in targets(dashboard):
        assert promql.series(target["expr"]), target["expr"]
        assert promql.unknown(target["expr"], known) == set(), target["expr"]


def test_choices_of_a_dashboard_ask_for_what_is_exported(dashboard: Json) -> None:
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match
            assert promql.unknown(match[1], promql.exported()) == set()
            assert match[2] in promql.OF_THE_TARGET


def test_queries_use_the_choices_that_the_dashboard_has(dashboard: Json) -> None:
    there = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for target in targets(dashboard):
        assert set(re.findall(r"\$\{?(\w+)", target["expr"] + target["datasource"]["uid"])) <= there


def test_series_are_named_by_labels_that_they_have(dashboard: Json) -> None:
    for target in targets(dashboard):
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert named <= promql.labels(target["expr"]) | promql.OF_THE_TARGET, target
