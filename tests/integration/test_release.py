"""What `make release` builds, installed from its folder alone: the runtime in a fresh virtual environment, the manifest
on a fresh API server.

The images are left out: they take minutes, and the end-to-end tests run them.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
import yaml

from hack.cluster import ControlPlane
from hack.cluster.output import run
from hack.cluster.programs import program
from hack.release import version

pytestmark = pytest.mark.nightly

SCRIPT = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "hack.release",
        "build",
        "--without-images",
        "--registry",
        "ghcr.io/example",
    ]
    run([*build, "--output", folder], cwd=version.ROOT)
    return folder


def test_the_checksums_are_those_of_the_files(dist: Path) -> None:
    run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist)
    assert len((dist / "SHA256SUMS").read_text().splitlines()) == len(list(dist.iterdir())) - 1


def test_elasticrun_works_in_a_fresh_environment_without_an_index(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    run([binaries / "pip", "install", "-q", "--no-index", "--find-links", dist, "elasticjob-runtime"])
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [binaries / "elasticrun", "--standalone", "--nproc-per-node=2", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert "rank 1 of 2" in done.stdout


def test_the_operator_s_wheel_needs_api_and_runtime_of_the_same_release(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("elasticjob_operator-*.whl")
    run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path])
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    for name in ("elasticjob-api", "elasticjob-runtime"):
        assert f"Requires-Dist: {name}=={version.read()}\n" in metadata.read_text()


def test_the_client_s_wheel_has_its_commands_and_its_starter(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("elasticjob-*.whl")
    run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path])
    (scripts,) = tmp_path.glob("*.dist-info/entry_points.txt")
    for name in ("elasticjob", "kubectl-elasticjob"):
        assert f"{name} = elasticjob.__main__:main" in scripts.read_text()
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    assert f"Requires-Dist: elasticjob-api=={version.read()}\n" in metadata.read_text()
    assert {path.name for path in (tmp_path / "elasticjob" / "starter").iterdir()} >= {"train.py", "job.yaml"}
    assert (tmp_path / "elasticjob" / "py.typed").exists()


def test_the_manifest_installs_everything_on_an_empty_cluster(dist: Path, tmp_path: Path) -> None:
    manifest = dist / "install.yaml"
    with ControlPlane(tmp_path) as server:
        applied = server.kubectl("apply", "--server-side", f"--filename={manifest}")
        for kind in ("customresourcedefinition", "deployment", "clusterrole", "serviceaccount"):
            assert f"{kind}." in applied or f"{kind}/" in applied, applied
        images = server.kubectl("get", "deployments", "-n", "elasticjob-system", "-o", "jsonpath={..image}")
        assert images == f"ghcr.io/example/elasticjob-operator:{version.read()}"
    hooks = [one for one in yaml.safe_load_all(manifest.read_text()) if "helm.sh/hook" in str(one)]
    assert hooks == [], "kubectl would run the chart's tests once, as part of the installation"


def test_the_packaged_chart_is_the_one_that_the_manifest_was_made_from(dist: Path, tmp_path: Path) -> None:
    (package,) = dist.glob("elasticjob-*.tgz")
    with tarfile.open(package) as tar:
        tar.extractall(tmp_path, filter="data")
    chart = yaml.safe_load((tmp_path / "elasticjob" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version.read(), version.read())
    namespace = ["--namespace", "elasticjob-system", "--kube-version", "1.36", "--skip-tests"]
    assert run([program("helm"), "template", "elasticjob", package, *namespace]) in (dist / "install.yaml").read_text()
