"""`stacks`: of the processes in running worker pods, and of those that a hang has ended. The test plays kubectl."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elasticjob.errors import Exit

from tests.integration.client.conftest import Operator, Result

Cli = Callable[..., Result]

KUBECTL = """#!/bin/sh
case "$*" in
*worker-1*) echo "Warning: ignore this" >&2; echo "pods \\"bert-worker-1\\" is forbidden" >&2; exit 1 ;;
*) echo "Stacks of local rank 0, process 12:"; echo "$*" ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


@pytest.mark.usefixtures("kubectl")
def test_the_stacks_of_each_running_worker_pod_are_shown(cli: Cli, submitted: str, operator: Operator) -> None:
    for index in range(3):
        operator.worker(submitted, index, running=index < 2)
    shown = cli("stacks", submitted, "--context", "")
    assert shown.code == Exit.OK, shown
    assert "Stacks of local rank 0, process 12:" in shown.out
    assert "exec bert-worker-0 -c trainer -- python3 -c" in shown.out
    assert "bert-worker-1" in shown.out
    assert "is forbidden" in shown.out, "why this one has given none"
    assert "bert-worker-2" not in shown.out, "it does not run"


@pytest.mark.usefixtures("kubectl")
def test_one_worker_pod_that_gives_none_is_an_error(cli: Cli, submitted: str, operator: Operator) -> None:
    operator.worker(submitted, 1)
    shown = cli("stacks", submitted)
    assert (shown.code, "pods/exec" in shown.err) == (Exit.ERROR, True), shown


def test_without_kubectl_the_remedy_is_told(cli: Cli, submitted: str, operator: Operator, kubectl: Path) -> None:
    kubectl.unlink()
    operator.worker(submitted, 0)
    assert "python3 -m elasticjob_runtime.agent.stacks" in cli("stacks", submitted).err


def test_after_the_end_the_stacks_of_the_hang_are_shown(cli: Cli, submitted: str, operator: Operator) -> None:
    assert cli("stacks", submitted).code == Exit.NOT_FOUND
    message = "hang: no step for 75 s\nStacks of rank 1:\nwait_forever"
    operator.status(submitted, lastFailure={"worker": "bert-worker-0", "reason": "Hang", "message": message})
    assert cli("stacks", submitted).out == f"{message}\n"
