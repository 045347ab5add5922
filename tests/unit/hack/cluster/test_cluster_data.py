"""The parts of the test cluster that only compute: addresses, cgroup hierarchies, image archives, command lines."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from hack.cluster import node_config
from hack.cluster.cgroups import Hierarchy, parse_hierarchies
from hack.cluster.nodes import ready_names
from hack.cluster.oci import ArchivedImage, StoredImage, chain_ids, read_archive, write_archive, write_stored_image
from hack.cluster.output import ClusterError
from hack.cluster.settings import MAX_NODES, NodeAddress, node_address

CPU_AND_NAMED = """\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,release_agent=/lib/agent,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""


def test_cgroup_v1_hierarchies_are_remounted_with_their_options() -> None:
    assert parse_hierarchies(CPU_AND_NAMED) == [
        Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu,cpuacct"),
        Hierarchy(Path("/sys/fs/cgroup/freezer"), "freezer"),
        Hierarchy(Path("/sys/fs/cgroup/systemd"), "none,name=systemd"),
    ]


def test_a_machine_with_only_cgroup_v2_has_one_hierarchy() -> None:
    (only,) = parse_hierarchies("proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n")
    assert only == Hierarchy(Path("/sys/fs/cgroup"), None)
    assert only.has("freezer")


def test_every_node_has_distinct_addresses() -> None:
    nodes = [NodeAddress(number) for number in range(1, MAX_NODES + 1)]
    for attribute in ("name", "namespace", "link", "address", "pod_range"):
        assert len({getattr(node, attribute) for node in nodes}) == MAX_NODES
    assert max(len(node.link) for node in nodes) <= 15  # the kernel's limit


@pytest.mark.parametrize("name", ["node-0", "node-51", "node-x", "cp", ""])
def test_an_invalid_node_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="its nodes are node-1"):
        node_address(name)


def test_a_written_archive_lists_its_content_and_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"static binary")
    archives = [tmp_path / "first.tar", tmp_path / "second.tar"]
    for archive in archives:
        write_archive(archive, "localhost/tool:1", {"/usr/bin/tool": tmp_path / "program"}, ["/usr/bin/tool"])
    assert read_archive(archives[0]).name == "localhost/tool:1"
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_archives_of_docker_and_buildah_are_read(tmp_path: Path) -> None:
    manifest = [{"Config": "abc.json", "RepoTags": ["localhost/trainer:dev"], "Layers": []}]
    _write_tar(tmp_path / "docker.tar", {"manifest.json": json.dumps(manifest)})
    assert read_archive(tmp_path / "docker.tar") == ArchivedImage("localhost/trainer:dev", "sha256:abc")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme": "no image"}, "holds 0 named images"),
        (
            {"manifest.json": json.dumps([{"Config": "a.json", "RepoTags": ["localhost/a:1", "localhost/b:1"]}])},
            "holds 2 named images",
        ),
        (
            {"manifest.json": json.dumps([{"Config": "a.json", "RepoTags": ["latest"]}])},
            "names its image 'latest'; the full name",
        ),
        ({"index.json": json.dumps({"manifests": [{"digest": "sha256:a"}]})}, "names its image ''; the full name"),
    ],
)
def test_an_archive_that_cannot_be_loaded_says_why(tmp_path: Path, files: dict[str, str], message: str) -> None:
    _write_tar(tmp_path / "bad.tar", files)
    with pytest.raises(ClusterError, match=message):
        read_archive(tmp_path / "bad.tar")


def test_an_archive_without_layers_keeps_name_and_manifest(tmp_path: Path) -> None:
    image = StoredImage("localhost/tool:1", "application/vnd.oci.image.manifest.v1+json", b'{"config":{}}', b"{}")
    write_stored_image(tmp_path / "new" / "image.tar", image)
    assert read_archive(tmp_path / "new" / "image.tar").name == "localhost/tool:1"


def test_a_chain_id_covers_a_layer_and_all_below_it() -> None:
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:" + "a" * 64, "sha256:" + "b" * 64]}}).encode()
    lowest, upper = chain_ids(config)
    assert lowest == "sha256:" + "a" * 64
    # printf 'sha256:aa...a sha256:bb...b' | sha256sum
    assert upper == "sha256:ccd722928bd92476ba1745586fed6e45a102504185ad88cd89e01ff116fd146c"


@pytest.mark.parametrize(
    ("ready", "taints", "renewed", "expected"),
    [
        ("True", [], "2026-01-01T00:00:10.000000Z", {"node-1"}),
        ("Unknown", [], "2026-01-01T00:00:10.000000Z", set()),
        ("True", [], "2026-01-01T00:00:04.000000Z", set()),
        ("True", [{"key": "node.kubernetes.io/unreachable"}], "2026-01-01T00:00:10.000000Z", set()),
        ("True", [{"key": "nvidia.com/gpu"}], "2026-01-01T00:00:10.000000Z", {"node-1"}),
    ],
)
def test_a_node_is_ready_if_it_said_so_recently_and_is_schedulable(
    ready: str, taints: list[dict[str, str]], renewed: str, expected: set[str]
) -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    lease = {"kind": "Lease", "metadata": {"name": "node-1"}, "spec": {"renewTime": renewed}}
    assert ready_names([node, lease], since=1767225605.0) == expected  # 2026-01-01T00:00:05Z


def test_a_node_without_a_renewed_lease_is_ready_only_without_since() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert ready_names([node], since=1.0) == set()


def test_the_nodes_configuration_files_are_well_formed() -> None:
    kubelet = yaml.safe_load(node_config.kubelet_config("/pki/ca.crt", "/empty"))
    assert kubelet["failCgroupV1"] is False
    cni = json.loads(node_config.cni_config(NodeAddress(7)))
    assert cni["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.7.0/24"}]]


def _write_tar(archive: Path, files: dict[str, str]) -> None:
    with tarfile.open(archive, "w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
