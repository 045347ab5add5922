"""A real control plane with a real scheduler, and kwok in place of kubelets: nodes and pods exist only in the API.

Runs on loopback, without root.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml

from hack.cluster import components
from hack.cluster.components import command
from hack.cluster.loopback import ControlPlane
from hack.cluster.ports import free_ports
from hack.cluster.programs import source_of_module
from tests.integration.operator.conftest import install_crd

NODES = 30
Json = dict[str, Any]


class FakeCluster(ControlPlane):
    """Ends with this process."""

    def __init__(self, directory: Path) -> None:
        # Those of endpoints too: what a job's Service costs them is a cost of the operator's decision to create it.
        names = ("garbage-collector", "namespace", "endpoints", "endpointslice")
        super().__init__(directory, controllers=[f"{name}-controller" for name in names])

    def _start(self) -> None:
        super()._start()
        # The scheduler's default of 50 requests per second would limit every figure.
        port, kwok_port = free_ports(2)
        fast = ("--kube-api-qps=2000", "--kube-api-burst=4000", f"--secure-port={port}", "--bind-address=127.0.0.1")
        self._start_child([*components.scheduler(self.kubeconfig), *fast])
        kwok = {"kubeconfig": self.kubeconfig, "manage-all-nodes": True, "server-address": f"127.0.0.1:{kwok_port}"}
        stages = source_of_module("sigs.k8s.io/kwok") / "kustomize" / "stage"
        # Not pod-delete: kwok deletes by name, and a late delete hits the pod's successor again and again. Failed pods
        # are deleted without a kubelet; the others are deleted by force.
        initialize = self.directory / "node-initialize.yaml"
        text = (stages / "node/fast/node-initialize.yaml").read_text(encoding="utf-8")
        # A node that a benchmark makes silent stays so.
        initialize.write_text(text.replace("- 'True'\n", "- 'True'\n      - 'Unknown'\n", 1), encoding="utf-8")
        files = [initialize, stages / "pod/fast/pod-ready.yaml"]
        self._start_child([*command("kwok", kwok), *(f"--config={path}" for path in files)])
        install_crd(self)
        nodes = [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}} for number in range(NODES)
        ]
        self.kubectl(
            "create", "--filename=-", stdin=orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}).decode()
        )
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")

    def _server_flags(self) -> Json:
        # No node controller runs here to remove the taint of a new node.
        return {**super()._server_flags(), "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition"}


class Client:
    """The bare client: takes and returns dicts, over persistent connections. An async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server: str = cluster["server"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as pem:
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            context.load_cert_chain(pem.name)
        self._context = context

    async def __aenter__(self) -> Client:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._context, limit=256))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        data = orjson.dumps(body) if body is not None else None
        async with self.session.request(
            method, self.server + path, data=data, headers={"Content-Type": kind}
        ) as response:
            answer: Json = orjson.loads(await response.read())
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {answer.get('message')}")
            return answer
