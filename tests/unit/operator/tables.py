"""Tables of cases, one a row."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def table(columns: str, rows: Mapping[str, object]) -> pytest.MarkDecorator:
    """Runs a test for each row: what it says, and its values in the order of `columns`, which commas separate."""
    return pytest.mark.parametrize(columns, rows.values(), ids=rows.keys())
