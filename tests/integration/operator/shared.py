"""One operator for all tests of a module, which watches the whole cluster: import `operator` to have it instead of one
for each test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.kube import Kube
from tests.integration.operator.process import Operator


@contextlib.contextmanager
def running(kubeconfig: Path, folder: Path, **environment: str) -> Iterator[Operator]:
    """An operator of all namespaces. Its log is printed when a test fails."""
    operator = Operator(kubeconfig, "", folder / "operator.log", **environment)
    try:
        operator.start()
        yield operator
    finally:
        operator.close()
    print(f"--- log of the operator: {operator.log}\n{operator.log_text()}")


@pytest.fixture(scope="module")
def operator(kube: Kube, control_plane: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    assert kube  # with the CRD
    with running(control_plane, tmp_path_factory.mktemp("operator")) as operator:
        yield operator
