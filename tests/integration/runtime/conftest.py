"""One job per test, on an etcd that all share; or on one of its own, to break."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.etcd_servers import EtcdServer, require_etcd
from tests.integration.runtime.agents import SOURCE, Job
from tests.integration.runtime.launcher_harness import MODULES, Bench
from tests.integration.runtime.standalone import ELASTICRUN, Run, Start
from tests.integration.runtime.subreaper import subreaper


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[Job]:
    job = Job(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(require_etcd("3.6"), tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.stop()


@pytest.fixture
def fragile_job(own_etcd: EtcdServer, tmp_path: pathlib.Path) -> Iterator[Job]:
    """On `own_etcd`."""
    job = Job(own_etcd.url, tmp_path)
    yield job
    job.close()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    runs: list[Run] = []

    def started(
        script: str,
        *flags: str,
        launcher: str = ELASTICRUN,
        stdin: str = "",
        arguments: Sequence[str] = (),
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
            "PYTHONPATH": str(SOURCE),
            "FOUND": str(tmp_path / f"found-{launcher}"),
            **environment,
        }
        with log.open("wb") as output, given.open("rb") as source:
            process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdin=source, stdout=output, stderr=output)
        runs.append(Run(process, log))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


@pytest.fixture
def bench(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.PRELOAD", ("torch",))
    with subreaper():
        made = Bench(tmp_path, MODULES)
        yield made
        made.close()
