"""How pytest-xdist spreads the tests: each to whichever worker is free, but for those that share a fixture."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a module-scoped fixture run on one worker, which sets it up once (`--dist loadgroup`)."""
    for item in items:
        if isinstance(item, pytest.Function) and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _shares_a_fixture(item: pytest.Function) -> bool:
    found = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope in {"module", "package"} for definitions in found for definition in definitions)
