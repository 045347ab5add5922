"""Certificates for TLS tests, created with the openssl command: a CA, a server, and clients with and without a common
name."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Pki:
    """One CA and the certificates that it has signed, as PEM files in `directory`."""

    def __init__(self, directory: Path, *, client_auth: bool = False) -> None:
        self.directory = directory
        self.client_auth = client_auth
        directory.mkdir(parents=True, exist_ok=True)
        self._openssl("req", "-x509", *_NEW_KEY, "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test-ca")
        self.sign("server", "/CN=etcd", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1")
        self.sign("client", "/O=elasticjob", "extendedKeyUsage=clientAuth")
        self.sign("named", "/CN=another-user", "extendedKeyUsage=clientAuth")

    @property
    def ca(self) -> str:
        return str(self.directory / "ca.crt")

    def certificate(self, name: str) -> str:
        return str(self.directory / f"{name}.crt")

    def key(self, name: str) -> str:
        return str(self.directory / f"{name}.key")

    def sign(self, name: str, subject: str, extension: str) -> None:
        (self.directory / f"{name}.ext").write_text(extension + "\n")
        self._openssl("req", *_NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext"),
        )

    def server_flags(self) -> list[str]:
        flags = ["--cert-file", self.certificate("server"), "--key-file", self.key("server")]
        if self.client_auth:
            flags += ["--client-cert-auth", "--trusted-ca-file", self.ca]
        return flags

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # these, like many in use, are not strictly valid
        context.load_cert_chain(self.certificate("client"), self.key("client"))
        return context

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
