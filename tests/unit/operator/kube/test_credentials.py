"""The proxy to the API server is that of the environment, as kubectl's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from elasticjob_operator.kube.client import KubeClient
from elasticjob_operator.kube.credentials import Credentials, proxy_for
from kubernetes.aio.client import Configuration

from tests.contract.certificates import Pki
from tests.unit.operator.waiting import until


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_without_a_proxy_setting_none_is_used(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTP_PROXY", "http://for-http:3128")
    assert proxy_for("https://10.0.0.1:443") is None


def test_the_proxy_of_the_environment_is_used(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://user:secret@proxy:3128")
    assert proxy_for("https://api.example.org:6443") == "http://user:secret@proxy:3128"


def test_no_proxy_is_respected(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", "10.0.0.1,.example.org")
    assert proxy_for("https://10.0.0.1:443") is None
    assert proxy_for("https://api.example.org:6443") is None
    assert proxy_for("https://10.0.0.2:443") == "http://proxy:3128"


async def test_a_rotated_certificate_authority_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob_operator.kube.credentials.CA_SECONDS", 0.01)
    first, second = Pki(tmp_path / "first"), Pki(tmp_path / "second")
    mounted = tmp_path / "ca.crt"
    mounted.write_bytes((first.directory / "ca.crt").read_bytes())
    configuration = Configuration()
    configuration.ssl_ca_cert = str(mounted)
    credentials = Credentials(configuration, None)
    context = credentials.client().rest_client.ssl_context
    before = {certificate["serialNumber"] for certificate in context.get_ca_certs()}
    task = asyncio.create_task(credentials.follow_ca())
    mounted.write_bytes(b"half of a fi")
    await asyncio.sleep(0.05)
    mounted.write_bytes((second.directory / "ca.crt").read_bytes())
    await until(lambda: {certificate["serialNumber"] for certificate in context.get_ca_certs()} > before)
    assert not task.done()
    task.cancel()


async def test_watches_never_exhaust_the_connections_for_writes() -> None:
    release = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "Status"})
        response = web.StreamResponse()
        await response.prepare(request)
        await release.wait()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    configuration.connection_pool_maxsize = 2
    api = KubeClient(Credentials(configuration, None).client())
    watches = [await api.stream("/pods", {"watch": "true"}, silence=60) for _ in range(5)]
    async with asyncio.timeout(30):
        assert await api.request("POST", "/pods", body={}) == {"kind": "Status"}
    release.set()
    for watch in watches:
        watch.close()
    await api.close()
    await runner.cleanup()
