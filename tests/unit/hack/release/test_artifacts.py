"""Image archives, tarballs and bases of a release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from hack.release.archive import make_reproducible, retag
from tests.unit.hack.release.archives import docker_archive

LAYER = b"layer" * 1000


def test_a_released_image_has_the_release_s_name_and_the_same_layers(tmp_path: Path) -> None:
    retag(docker_archive(tmp_path / "built.tar", LAYER), tmp_path / "released.tar", "elasticjob-operator:1.2.3")
    with tarfile.open(tmp_path / "released.tar") as tar:
        manifest, layer = tar.extractfile("manifest.json"), tar.extractfile("l.tar")
        assert manifest is not None
        assert json.load(manifest)[0]["RepoTags"] == ["elasticjob-operator:1.2.3"]
        assert layer is not None
        assert layer.read() == LAYER
        assert "repositories" not in tar.getnames(), "the old name is there too"


def test_the_same_files_give_the_same_tarball_whenever_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("b")
    (tmp_path / "a.sh").write_text("a")
    (tmp_path / "a.sh").chmod(0o755)
    for name, time, order in (("one.tgz", 1_000, "ab"), ("two.tgz", 2_000, "ba")):
        with tarfile.open(tmp_path / name, "w:gz") as tar:
            for letter in order:
                (path,) = tmp_path.glob(f"{letter}.*")
                os.utime(path, (time, time))
                tar.add(path, f"package/{path.name}")
        make_reproducible(tmp_path / name, 3_000)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()
    with tarfile.open(tmp_path / "one.tgz") as tar:
        assert [(one.name, oct(one.mode)) for one in tar] == [("package/a.sh", "0o755"), ("package/b.py", "0o644")]


def test_a_release_rejects_a_base_image_without_a_digest(tmp_path: Path) -> None:
    """A tag names another image tomorrow."""
    done = subprocess.run(
        [sys.executable, "-m", "hack.release", "build", f"--output={tmp_path / 'dist'}"],
        env={**os.environ, "BASE_IMAGE": "debian:trixie-slim"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "BASE_IMAGE=debian:trixie-slim has no digest" in done.stderr
    assert not (tmp_path / "dist").exists()
