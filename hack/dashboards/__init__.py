"""Grafana dashboards of the Helm chart.

`python -m hack.dashboards` writes them; `python -m hack.checks` compares them.
"""

from __future__ import annotations

import json
from pathlib import Path

from hack.checks.pages import Problem
from hack.dashboards.fleet import fleet
from hack.dashboards.job import job

FOLDER = Path("charts/elasticjob/dashboards")


def files() -> dict[Path, str]:
    """Path, relative to the root of the repository -> content."""
    made = {"fleet": fleet(), "job": job()}
    return {FOLDER / f"{name}.json": json.dumps(each, indent=1) + "\n" for name, each in made.items()}


def outdated(root: Path) -> list[Problem]:
    """Dashboards in the chart that differ from what this package makes."""
    return [
        Problem(str(path), 1, "not up to date: run `make generate` and commit the result")
        for path, text in files().items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]
