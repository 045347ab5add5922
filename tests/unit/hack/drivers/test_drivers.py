"""One word chooses the cluster, and an invalid one gets a helpful error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hack.drivers import DriverError, adapt, cluster_driver
from hack.drivers.current import CurrentCluster, load_command
from hack.drivers.install import chart_values
from hack.drivers.kind import SHARED, kind_config
from hack.drivers.kube import Kubectl, KubeError, find_program


@pytest.mark.parametrize(("word", "name"), [("", "own"), ("own", "own"), ("kind", "kind"), ("current", "current")])
def test_the_variable_cluster_chooses_the_driver(word: str, name: str) -> None:
    assert cluster_driver({"CLUSTER": word}).name == name


def test_an_unknown_cluster_is_rejected_with_the_valid_names() -> None:
    with pytest.raises(DriverError, match=r"CLUSTER=mine: .*own.*kind.*current"):
        cluster_driver({"CLUSTER": "mine"})


@pytest.mark.parametrize("word", ["own", "kind", "current"])
def test_a_driver_controls_its_nodes_or_says_why_not(word: str) -> None:
    driver = cluster_driver({"CLUSTER": word})
    assert (driver.power is None) == bool(driver.no_power)


def test_the_current_cluster_requires_a_way_to_load_images() -> None:
    with pytest.raises(DriverError, match="IMAGE_LOAD"):
        CurrentCluster({}).up()


def test_image_load_gets_image_and_archive_as_single_arguments() -> None:
    command = load_command("load '{archive}' --as={image} 'two words'", "localhost/a:dev", Path("/tmp/my archive.tar"))
    assert command == ["load", "/tmp/my archive.tar", "--as=localhost/a:dev", "two words"]


def test_an_invalid_image_load_command_is_rejected() -> None:
    with pytest.raises(DriverError, match="IMAGE_LOAD"):
        load_command("load 'half", "localhost/a:dev", Path("/tmp/a.tar"))


def test_a_registry_names_the_images_in_manifests_and_chart() -> None:
    driver = CurrentCluster({"IMAGE_REGISTRY": "registry.example:5000/team/"})
    assert (
        adapt("image: localhost/elasticjob-trainer:dev\n", driver)
        == "image: registry.example:5000/team/elasticjob-trainer:dev\n"
    )
    values = chart_values(driver, {})
    assert values == {
        "image.repository": "registry.example:5000/team/elasticjob-operator",
        "image.tag": "dev",
        "image.pullPolicy": "Always",
        "runtime.repository": "registry.example:5000/team/elasticjob-runtime",
        "runtime.tag": "dev",
        "runtime.pullPolicy": "Always",
    }


def test_a_loaded_image_keeps_its_name() -> None:
    assert (
        adapt("image: localhost/elasticjob-trainer:dev\n", CurrentCluster({"IMAGE_LOAD": "true"}))
        == "image: localhost/elasticjob-trainer:dev\n"
    )


JOB = """\
spec:
  workers: {template: {spec: {containers: [{image: "localhost/elasticjob-trainer:dev"}]}}}
  checkpoint: {directory: /checkpoints, volume: {hostPath: {path: /var/lib/elasticjob-shared}}}
---
spec: {workers: {}}
"""


@pytest.mark.parametrize(
    ("environment", "volume"),
    [
        ({"CHECKPOINT_CLAIM": "checkpoints"}, {"persistentVolumeClaim": {"claimName": "checkpoints"}}),
        ({}, {"emptyDir": {}}),
    ],
)
def test_a_cluster_without_the_shared_folder_gets_another_checkpoint_volume(
    environment: dict[str, str], volume: dict[str, object]
) -> None:
    first, second = yaml.safe_load_all(adapt(JOB, CurrentCluster({"IMAGE_LOAD": "true", **environment})))
    assert first["spec"]["checkpoint"] == {"directory": "/checkpoints", "volume": volume}
    assert second == {"spec": {"workers": {}}}


def test_the_own_cluster_runs_examples_unchanged() -> None:
    assert adapt(JOB, cluster_driver({"CLUSTER": "own"})) == JOB


def test_a_new_operator_image_under_the_old_tag_starts_a_new_pod(tmp_path: Path) -> None:
    driver = CurrentCluster({"IMAGE_LOAD": "true"})
    first, second = (chart_values(driver, {"operator": tmp_path / key / "operator.tar"}) for key in ("a", "b"))
    assert first != second
    assert first == chart_values(driver, {"operator": tmp_path / "a" / "operator.tar"})


def test_nodes_of_a_kind_cluster_share_one_folder() -> None:
    nodes = json.loads(kind_config(2, Path("/shared")))["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker"]
    assert all(node["extraMounts"] == [{"hostPath": "/shared", "containerPath": SHARED}] for node in nodes[1:])
    assert not any("image" in node for node in nodes), "kind's default"


def test_a_kind_cluster_runs_the_version_of_its_node_image() -> None:
    nodes = json.loads(kind_config(1, Path("/shared"), "kindest/node:v1.35.0"))["nodes"]
    assert [node["image"] for node in nodes] == ["kindest/node:v1.35.0"] * 2


def test_a_failing_kubectl_is_reported_with_command_and_output(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("apiVersion: v1\nkind: Config\ncurrent-context: gone\n")
    try:
        find_program("kubectl")
    except KubeError as error:
        pytest.skip(str(error))
    with pytest.raises(KubeError, match=r"(?s)kubectl --kubeconfig .* get pods.*exit status 1\n.+"):
        Kubectl(tmp_path / "kubeconfig").run("get", "pods")
