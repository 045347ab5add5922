"""A job per test, on the shared etcd or on one that the test may break; scripts under a launcher; a zygote launcher."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.etcd_servers import EtcdServer, require_etcd
from tests.integration.runtime.agents import SOURCE, Job
from tests.integration.runtime.launcher_harness import MODULES, Harness
from tests.integration.runtime.own_network import OwnNetwork, created
from tests.integration.runtime.small_torch import write_small_torch
from tests.integration.runtime.standalone import ELASTICRUN, Launch, Run
from tests.integration.runtime.subreaper import subreaper


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[Job]:
    job = Job(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture
def own_network() -> Iterator[OwnNetwork]:
    with created() as network:
        yield network


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(require_etcd("3.6"), tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.stop()


@pytest.fixture
def fragile_job(own_etcd: EtcdServer, tmp_path: pathlib.Path) -> Iterator[Job]:
    """A job on `own_etcd`, which the test may break."""
    job = Job(own_etcd.url, tmp_path)
    yield job
    job.close()


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Launch]:
    """Runs scripts under a launcher; with `torch=False`, in a moment, for scripts that do not use it."""
    runs: list[Run] = []

    def launched(
        script: str,
        *flags: str,
        launcher: str = ELASTICRUN,
        stdin: str = "",
        arguments: Sequence[str] = (),
        torch: bool = True,
        **environment: str,
    ) -> Run:
        path = tmp_path / "script.py"
        path.write_text(script)
        log = tmp_path / f"log-{launcher}"
        given, what = tmp_path / "stdin", [] if "--no-python" in flags else [str(path)]
        given.write_text(stdin)
        command = [sys.executable, "-m", launcher, "--standalone", *flags, *what, *arguments]
        variables = {
            **os.environ,
            "PYTHONPATH": str(SOURCE) if torch else f"{write_small_torch(tmp_path)}:{SOURCE}",
            "FOUND": str(tmp_path / f"found-{launcher}"),
            **environment,
        }
        with log.open("wb") as output, given.open("rb") as source:
            process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdin=source, stdout=output, stderr=output)
        runs.append(Run(process, log))
        return runs[-1]

    yield launched
    for run in runs:
        run.process.kill()
        run.process.wait()


@pytest.fixture
def harness(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.PRELOAD", ("torch",))
    with subreaper():
        made = Harness(tmp_path, MODULES)
        yield made
        made.close()
