"""A wrong ElasticJob is rejected with its field, its value and what to do about it: the table in api_invalid.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.manifests import GONE, Case, Cluster, api, empty

__all__ = ["api", "empty"]

INVALID = yaml.safe_load(Path(__file__).with_name("api_invalid.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_manifest_is_rejected_with_field_value_and_remedy(empty: Cluster, case: dict[str, Any]) -> None:
    changes = {path: GONE if value == "GONE" else value for path, value in case["change"].items()}
    empty.judges(Case(changes, tuple(case["says"])))
