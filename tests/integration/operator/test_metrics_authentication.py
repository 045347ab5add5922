"""/metrics behind the API server's authentication, with tokens of real service accounts, and with TLS."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.contract.certificates import Pki
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Gate, Operator, free_port
from tests.integration.operator.test_metrics_certificate import mount


@pytest.fixture
def secured(start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(ELASTICJOB_METRICS_AUTHENTICATION="true")


@pytest.fixture
def token_of(ns: Namespace, control_plane_server: ControlPlane) -> Iterator[Callable[..., str]]:
    """Makes a service account, with the right to read metrics or without, and returns a token of it."""
    kubectl, roles = control_plane_server.kubectl, []

    def make(name: str, *, may: bool) -> str:
        kubectl("--namespace", ns.name, "create", "serviceaccount", name)
        if may:
            role = f"metrics-{uuid.uuid4().hex[:8]}"
            roles.append(role)
            kubectl("create", "clusterrole", role, "--verb=get", "--non-resource-url=/metrics")
            account = f"--serviceaccount={ns.name}:{name}"
            kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
        return kubectl("--namespace", ns.name, "create", "token", name).strip()

    yield make
    for role in roles:
        kubectl("delete", "clusterrolebinding,clusterrole", role)


def read(operator: Operator, authorization: str = "", path: str = "/metrics") -> tuple[int, str]:
    """(status, body)"""
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(f"http://127.0.0.1:{operator.probe_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 the operator of the test
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_a_user_with_the_right_reads_metrics(
    secured: Operator, token_of: Callable[..., str], ns: Namespace
) -> None:
    prometheus, other = token_of("prometheus", may=True), token_of("other", may=False)
    # The API server's authorizer learns of the new binding by a watch.
    eventually(lambda: read(secured, f"Bearer {prometheus}")[0] == 200, timeout=30, what="Prometheus may")
    assert "elasticjob_leader" in read(secured, f"Bearer {prometheus}")[1]
    status, message = read(secured, f"Bearer {other}")
    assert (status, message) == (403, f"system:serviceaccount:{ns.name}:other may not get /metrics\n")
    for invalid in ("", "Bearer ", "Bearer not-a-token", "Basic dXNlcjpwYXNzd29yZA=="):
        status, message = read(secured, invalid)
        assert (status, "token" in message, "elasticjob_leader" in message) == (401, True, False), invalid
    for probe in ("/healthz", "/readyz"):
        assert read(secured, path=probe) == (200, "ok"), "probes need no token"


def test_metrics_stay_closed_while_the_api_server_is_down(
    gate: Gate, gated: Path, start_operator: Callable[..., Operator], token_of: Callable[..., str]
) -> None:
    operator = start_operator(gated, ELASTICJOB_METRICS_AUTHENTICATION="true")
    known, new = token_of("prometheus", may=True), token_of("another", may=True)
    eventually(lambda: read(operator, f"Bearer {known}")[0] == 200, timeout=30, what="Prometheus may")
    gate.shut()
    status, message = read(operator, f"Bearer {new}")
    assert (status, "cannot ask the API server about this token" in message) == (503, True)
    assert read(operator, f"Bearer {known}")[0] == 200, "known for a minute"
    gate.open()
    eventually(lambda: read(operator, f"Bearer {new}")[0] == 200, timeout=30, what="it is asked again")


def test_with_a_certificate_metrics_are_served_with_tls_only(
    tmp_path: Path, start_operator: Callable[..., Operator], token_of: Callable[..., str]
) -> None:
    pki, port = Pki(tmp_path / "pki"), free_port()
    mount(pki, "server", tmp_path / "metrics")
    operator = start_operator(
        ELASTICJOB_METRICS_AUTHENTICATION="true",
        ELASTICJOB_METRICS_CERTIFICATE=str(tmp_path / "metrics"),
        ELASTICJOB_METRICS_PORT=str(port),
    )
    assert read(operator)[0] == 404, "not on the port of the probes"
    assert read(operator, path="/readyz")[0] == 200
    authorization = {"Authorization": f"Bearer {token_of('prometheus', may=True)}"}
    request = urllib.request.Request(f"https://localhost:{port}/metrics", headers=authorization)

    def text() -> str:
        try:
            with urllib.request.urlopen(request, context=pki.context(), timeout=20) as response:  # noqa: S310 the test's
                return str(response.read().decode())
        except urllib.error.HTTPError:
            return ""  # the API server has not seen the right yet

    assert "elasticjob_leader" in eventually(text, timeout=30, what="Prometheus may")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://localhost:{port}/metrics", context=ssl.create_default_context(), timeout=20)


def test_a_missing_certificate_is_named(tmp_path: Path, control_plane: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elasticjob_operator"],
        env={
            **os.environ,
            "KUBECONFIG": str(control_plane),
            "ELASTICJOB_CA_NAMESPACE": "default",
            "ELASTICJOB_METRICS_CERTIFICATE": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ELASTICJOB_METRICS_CERTIFICATE: no certificate for /metrics" in done.stderr
    assert f"{tmp_path}/tls.crt" in done.stderr
    assert "Traceback" not in done.stderr
