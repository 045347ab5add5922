"""One image for several architectures, from an archive of each."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hack.release.oci import write_index
from tests.unit.hack.release.archives import docker_archive

NAME = "ghcr.io/example/elasticjob-runtime:1.2.3"


class Read:
    """A layout as its readers see it."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            files = ((item.name, tar.extractfile(item)) for item in tar)
            self.files = {name: file.read() for name, file in files if file is not None}

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        content = self.files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            descriptor["size"],
            descriptor["digest"].removeprefix("sha256:"),
        )
        return content


@pytest.fixture
def archives(tmp_path: Path) -> dict[str, Path]:
    return {item: docker_archive(tmp_path / item, item.encode() * 99) for item in ("arm64", "amd64")}


def test_each_architecture_finds_its_own_files(archives: dict[str, Path], tmp_path: Path) -> None:
    digest = write_index(archives, tmp_path / "index.tar", NAME, 0)
    layout = Read(tmp_path / "index.tar")
    assert json.loads(layout.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(layout.files["index.json"])["manifests"]
    assert named["digest"] == digest
    assert named["annotations"] == {
        "io.containerd.image.name": NAME,
        "org.opencontainers.image.ref.name": "1.2.3",
    }
    found = {manifest["platform"]["architecture"]: manifest for manifest in json.loads(layout.blob(named))["manifests"]}
    assert found.keys() == archives.keys()
    for architecture, descriptor in found.items():
        manifest = json.loads(layout.blob(descriptor))
        config = json.loads(layout.blob(manifest["config"]))
        assert (config["architecture"], config["config"]) == (architecture, {"User": "65532"})
        (layer,) = manifest["layers"]
        assert gzip.decompress(layout.blob(layer)) == architecture.encode() * 99


def test_the_same_archives_give_the_same_bytes(archives: dict[str, Path], tmp_path: Path) -> None:
    for target in ("one", "two"):
        write_index(archives, tmp_path / target, NAME, 1767225600)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_an_archive_without_an_image_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(KeyError, match=r"manifest\.json"):
        write_index({"amd64": tmp_path / "empty.tar"}, tmp_path / "index.tar", NAME, 0)
