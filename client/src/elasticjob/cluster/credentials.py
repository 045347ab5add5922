"""Logging in: client certificates, tokens, and programs that print either."""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from elasticjob.cluster.kubeconfig import ClusterAccess
from elasticjob.errors import UnreachableError

TOKEN_SECONDS = 60.0
"""How long a token from a file is used before the file is read again, s: Kubernetes rotates it in running pods."""
EXPIRY_MARGIN = 30.0
"""A token that expires within this time is renewed, s."""


class Certificate(NamedTuple):
    """Of a client, and its key, as PEM; empty: those of the kubeconfig's files, if any."""

    content: bytes
    key: bytes


class Credentials:
    """Headers and TLS context for one target. Renews tokens and certificates that expire."""

    def __init__(self, target: ClusterAccess) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._token = target.token
        self.certificate = Certificate(target.certificate, target.key)
        """The newest; `headers` renews it."""
        self._until = float("inf") if target.token and not target.token_file else 0.0

    def headers(self) -> dict[str, str]:
        """Raises UnreachableError."""
        target = self._target
        if target.basic:
            return {"Authorization": "Basic " + base64.b64encode(target.basic.encode()).decode()}
        with self._lock:  # so that one of many threads starts the program that logs in
            if time.time() >= self._until:
                self._renew()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def forget(self) -> bool:
        """After a 401: whether another token may be better."""
        target = self._target
        self._until = 0.0 if target.token_file or target.command or target.auth_provider else self._until
        return self._until == 0.0

    def tls(self, certificate: Certificate) -> ssl.SSLContext:
        """Raises UnreachableError."""
        target = self._target
        try:
            context = ssl.create_default_context(cafile=target.ca_file or None, cadata=target.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise UnreachableError(f"Cannot use the CA certificate of the kubeconfig: {error}") from error
        if target.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            self._load(context, certificate)
        except (OSError, ssl.SSLError) as error:
            raise UnreachableError(f"Cannot use the client certificate of the kubeconfig: {error}") from error
        return context

    def _load(self, context: ssl.SSLContext, certificate: Certificate) -> None:
        """OpenSSL reads certificates from files only."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [self._target.certificate_file, self._target.key_file]
            for number, content in enumerate(certificate):
                if content:
                    path = Path(folder) / str(number)
                    path.touch(mode=0o600)
                    path.write_bytes(content)
                    paths[number] = str(path)
            if paths[0]:
                context.load_cert_chain(paths[0], paths[1] or None)

    def _renew(self) -> None:
        target = self._target
        if target.token_file:
            try:
                self._token = Path(target.token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                if not self._token:
                    raise UnreachableError(
                        f"Cannot read the token file {target.token_file}: {error.strerror}."
                    ) from error
            self._until = time.time() + TOKEN_SECONDS
        elif target.command:
            self._run_command()
        elif target.auth_provider:
            self._token, self._until = _token_of_provider(target), time.time() + TOKEN_SECONDS
        else:
            self._until = float("inf")

    def _run_command(self) -> None:
        """Keeps the token and the certificate of the ExecCredential that the program prints."""
        spec = self._target.command
        variables = {variable["name"]: str(variable.get("value") or "") for variable in spec.get("env") or []}
        about: dict[str, Any] = {"interactive": False}
        if spec.get("provideClusterInfo"):
            about["cluster"] = self._target.cluster_info
        asked = {"apiVersion": spec.get("apiVersion"), "kind": "ExecCredential", "spec": about}
        command = [spec.get("command", ""), *(spec.get("args") or [])]
        environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        except OSError as error:
            hint = spec.get("installHint") or "Install it, or use another context."
            raise UnreachableError(
                f"The kubeconfig logs in with {command[0]}, which is not installed.", hint
            ) from error
        if done.returncode:
            raise UnreachableError(f"{command[0]} could not log in (exit code {done.returncode}).")
        try:
            status: dict[str, Any] = {**json.loads(done.stdout)["status"]}
        except (ValueError, KeyError, TypeError) as error:
            raise UnreachableError(f"{command[0]} printed no credentials.") from error
        self._token = status.get("token", "")
        self.certificate = Certificate(
            str(status.get("clientCertificateData") or "").encode() or self._target.certificate,
            str(status.get("clientKeyData") or "").encode() or self._target.key,
        )
        self._until = _seconds(status.get("expirationTimestamp")) - EXPIRY_MARGIN


def _seconds(stamp: str | None) -> float:
    """Unix time of an RFC 3339 time; never, if there is none."""
    if not stamp:
        return float("inf")
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return time.time() + TOKEN_SECONDS


def _token_of_provider(target: ClusterAccess) -> str:
    """Providers such as oidc, as the official client knows them. It takes half a second to import."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise UnreachableError(
            f"The kubeconfig logs in with the auth provider {target.auth_provider}, which needs one more package.",
            "Install it: pip install 'elasticjob[oidc]', or log in with an exec plug-in, such as kubelogin.",
        ) from None
    configuration = client.Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            target.kubeconfig or None, context=target.context, client_configuration=configuration
        )
    except config.ConfigException as error:
        raise UnreachableError(f"Cannot log in with {target.auth_provider}: {error}") from error
    token = configuration.get_api_key_with_prefix("BearerToken") or configuration.get_api_key_with_prefix(
        "authorization"
    )
    return str(token or "").removeprefix("Bearer ")
