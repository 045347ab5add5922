"""One operator for all tests of a module, which watches the whole cluster: import `operator` to have it instead of one
for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.kube import Kube
from tests.integration.operator.process import Operator


@pytest.fixture(scope="module")
def operator(kube: Kube, control_plane: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    assert kube  # with the CRD
    operator = Operator(control_plane, "", tmp_path_factory.mktemp("operator") / "operator.log")
    try:
        operator.start()
        yield operator
    finally:
        operator.close()
    print(f"--- log of the operator: {operator.log}\n{operator.log_text()}")
