"""Panels of a Grafana dashboard, and the dashboard that they make: Grafana's JSON model, as far as we need it.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]

WIDTH = 24
"""Columns of Grafana's grid."""
SCHEMA_VERSION = 39
"""Of Grafana 11; newer versions migrate it."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass(frozen=True)
class Query:
    """A PromQL expression, and the name of its series."""

    expr: str
    legend: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    queries: Sequence[Query]
    text: str
    """What it shows, and what to do about it."""
    kind: str = "timeseries"
    """timeseries, stat or state-timeline."""
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: Sequence[tuple[float, str]] = ()
    """From this value on: color. Below the first: green."""
    mappings: Sequence[tuple[int, str, str]] = ()
    """Value -> text and color."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A heading, with the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True)
class Variable:
    """A choice at the head of the dashboard."""

    name: str
    label: str
    query: str
    several: bool = False


def dashboard(uid: str, title: str, text: str, variables: Iterable[Variable], rows: Iterable[Row]) -> Json:
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["elasticjob"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_link()],
        "templating": {"list": [_datasource(), *map(_variable, variables)]},
        "panels": _placed(rows),
    }


def _link() -> Json:
    return {
        "title": "ElasticJob",
        "type": "dashboards",
        "tags": ["elasticjob"],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(each: Variable) -> Json:
    return {
        "name": each.name,
        "label": each.label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": each.query, "refId": each.name},
        "refresh": 2,
        "sort": 1,
        "multi": each.several,
        "includeAll": each.several,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if each.several else {}),
    }


def _placed(rows: Iterable[Row]) -> list[Json]:
    """The panels from left to right and from top to bottom, with unique ids."""
    placed: list[Json] = []
    top = 0
    for row in rows:
        position = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "gridPos": position, "panels": []})
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            at = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            placed.append({"id": len(placed) + 1, "gridPos": at, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return placed


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "targets": [_target(index, each, panel) for index, each in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(index: int, query: Query, panel: Panel) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or panel.title,
        "instant": panel.kind == "stat",
        "range": panel.kind != "stat",
    }


def _defaults(panel: Panel) -> Json:
    steps = [
        {"color": "green", "value": None},
        *({"color": color, "value": value} for value, color in panel.thresholds),
    ]
    result: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}, "mappings": []}
    if panel.mappings:
        options = {str(value): {"text": text, "color": color} for value, text, color in panel.mappings}
        result["mappings"] = [{"type": "value", "options": options}]
    if panel.kind == "timeseries":
        custom: Json = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "auto", "spanNulls": False}
        if panel.stacked:
            custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
        result |= {"min": 0, "custom": custom}
    if panel.kind == "state-timeline":
        result["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    return result


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "state-timeline":
        return {"mergeValues": True, "showValue": "auto", "rowHeight": 0.9, "legend": {"showLegend": True}}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
