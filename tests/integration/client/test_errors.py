"""Missing rights, clusters without ElasticJobs, and clusters that cannot be reached: a sentence and an exit code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from elasticjob import ElasticJobClient
from elasticjob.cli.app import run
from elasticjob.errors import Exit

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.contract.proxy import Proxy
from tests.integration.client.conftest import Operator, Result
from tests.integration.operator.kube import Namespace

Cli = Callable[..., Result]


@pytest.fixture
def as_user(control_plane: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A kubeconfig of the administrator, who acts as another user."""

    def make(name: str) -> Path:
        config = yaml.safe_load(control_plane.read_text())
        config["users"][0]["user"]["as"] = name
        path = tmp_path / f"{name}.conf"
        path.write_text(yaml.safe_dump(config))
        return path

    return make


def test_a_user_who_may_read_jobs_only_still_sees_them(
    cli: Cli, as_user: Callable[[str], Path], ns: Namespace, submitted: str
) -> None:
    rules = [{"apiGroups": ["elasticjob.dev"], "resources": ["elasticjobs"], "verbs": ["get", "list"]}]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{ns.name}"
    ns.kube.call("POST", f"{path}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    ns.kube.call("POST", f"{path}/rolebindings", binding)
    kubeconfig = ["--kubeconfig", str(as_user("bob"))]
    got = cli("get", submitted, *kubeconfig)
    assert got.code == Exit.OK
    assert "has no right to list pods" in got.err
    assert "User bob has no right to list events" in cli("describe", submitted, *kubeconfig).err
    assert "patch elasticjobs" in cli("scale", submitted, "2", *kubeconfig).err


def test_a_cluster_without_elasticjobs_says_how_to_install_them(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with ControlPlane(tmp_path_factory.mktemp("empty")) as empty:
        for command in (["list"], ["get", "bert"], ["submit", "--image", "x", "bert", "python"]):
            assert run([command[0], "--kubeconfig", str(empty.kubeconfig), *command[1:]]) == Exit.UNREACHABLE
            err = capsys.readouterr().err
            assert "This cluster has no ElasticJobs" in err
            assert "helm install elasticjob" in err


def test_an_api_server_with_another_ca_is_named(
    cli: Cli, control_plane: Path, control_plane_server: ControlPlane, tmp_path: Path
) -> None:
    config = yaml.safe_load(control_plane.read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["certificate-authority"] = str(control_plane_server.directory / "pki" / "front-proxy-ca.crt")
    path = tmp_path / "other-ca"
    path.write_text(yaml.safe_dump(config))
    result = cli("list", "--kubeconfig", str(path))
    assert result.code == Exit.UNREACHABLE
    assert "its certificate does not match the kubeconfig (" in result.err
    assert "_ssl.c" not in result.err


@pytest.fixture
def broken_link(control_plane: Path, tmp_path: Path) -> Iterator[tuple[Proxy, str]]:
    """A proxy to the API server, and the kubeconfig that goes through it."""
    config = yaml.safe_load(control_plane.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    assert server.port
    proxy = Proxy(server.port)
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = tmp_path / "proxied"
    path.write_text(yaml.safe_dump(config))
    yield proxy, str(path)
    proxy.close()


def test_waiting_survives_an_api_server_that_goes_away(
    broken_link: tuple[Proxy, str], ns: Namespace, operator: Operator
) -> None:
    proxy, kubeconfig = broken_link
    client = ElasticJobClient(ns.name, kubeconfig=kubeconfig)
    client.submit("bert", image="train:1", command="python train.py")
    said: list[str] = []
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(client.wait("bert", on_wait=said.append).summary))
    thread.start()
    eventually(lambda: "the operator has not seen the job yet" in said)
    proxy.refuse()
    eventually(lambda: any("cannot be reached" in item for item in said))
    operator.conditions("bert", "Succeeded")
    proxy.admit()
    thread.join(60)
    assert outcome == ["Succeeded"]
