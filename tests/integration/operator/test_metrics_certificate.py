"""The certificate of /metrics, renewed while the operator runs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path

import pytest
from elasticjob_operator import health as served_by
from elasticjob_operator.health import MOST_CONNECTIONS, Health, ServerCertificate

from tests.contract.certificates import Pki
from tests.integration.operator.process import free_port
from tests.unit.operator.waiting import until


def mount(pki: Pki, name: str, folder: Path) -> None:
    """As the kubelet shows a Secret of type kubernetes.io/tls."""
    folder.mkdir(exist_ok=True)
    shutil.copy(pki.key(name), folder / "tls.key")
    shutil.copy(pki.certificate(name), folder / "tls.crt")


async def served(port: int, pki: Pki) -> bytes:
    """The certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("localhost", port, ssl=pki.context())
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return bytes(found)


def der(pki: Pki, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pki.certificate(name)).read_text(encoding="utf-8"))


async def test_new_connections_get_a_renewed_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pki, folder = Pki(tmp_path / "pki"), tmp_path / "metrics"
    pki.sign("renewed", "/CN=elasticjob", "subjectAltName=DNS:localhost")
    mount(pki, "server", folder)
    certificate = ServerCertificate(folder, renewal_seconds=0.05)
    health = Health(free_port(), list, lambda: (True, "ok"), certificate=certificate, metrics_port=free_port())
    await health.start()
    follower = asyncio.create_task(certificate.follow())
    try:
        assert await served(health.metrics_port, pki) == der(pki, "server")
        (folder / "tls.crt").write_text("half written")
        await until(lambda: "Cannot read the changed" in caplog.text, what="a warning")
        assert await served(health.metrics_port, pki) == der(pki, "server"), "the last good one"
        mount(pki, "renewed", folder)
        await until(lambda: "serving the new certificate" in caplog.text, what="it is loaded")
        assert await served(health.metrics_port, pki) == der(pki, "renewed")
    finally:
        follower.cancel()
        await health.stop()


def test_a_folder_without_a_certificate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tls\.crt"):
        ServerCertificate(tmp_path)


async def test_connections_that_never_begin_tls_keep_no_reader_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_by, "HANDSHAKE_SECONDS", 600.0)
    pki = Pki(tmp_path / "pki")
    mount(pki, "server", tmp_path / "metrics")
    certificate = ServerCertificate(tmp_path / "metrics")
    health = Health(free_port(), list, lambda: (True, "ok"), certificate=certificate, metrics_port=free_port())
    await health.start()
    silent = [await asyncio.open_connection("localhost", health.metrics_port) for _ in range(3 * MOST_CONNECTIONS)]
    reads = [asyncio.create_task(reader.read()) for reader, _ in silent]
    try:
        await until(lambda: sum(read.done() for read in reads) >= 2 * MOST_CONNECTIONS, what="the oldest are closed")
        assert await served(health.metrics_port, pki) == der(pki, "server")
    finally:
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*reads, return_exceptions=True)
        await health.stop()
