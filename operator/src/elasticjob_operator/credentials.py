"""Credentials for an etcd that the operator does not run, as a Secret has them. No I/O but that of `ssl`.

ca.crt                  the CA of etcd's certificate; without it, the system's CAs
tls.crt, tls.key        a client certificate without a common name, for an etcd that demands one
username, password      a user of etcd
worker.crt, worker.key  only in the Secret of the shared etcd: the client certificate that its worker pods get
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from elasticjob_runtime.etcd import CREDENTIAL_FILES, StoreError

CA, CERTIFICATE, KEY, USER, PASSWORD = CREDENTIAL_FILES
WORKER_CERTIFICATE, WORKER_KEY = "worker.crt", "worker.key"
_PAIRS = ((CERTIFICATE, KEY), (USER, PASSWORD), (WORKER_CERTIFICATE, WORKER_KEY))


class CredentialsUnusable(StoreError):
    """The Secret is missing or incomplete, or the operator may not read it. The message says what to do, and has
    nothing of its content."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EtcdCredentials:
    """Missing values are empty."""

    source: str
    """What they were read from, for messages: `Secret ml/etcd`."""
    ca: str = ""
    certificate: str = ""
    key: str = dataclasses.field(default="", repr=False)
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    worker_certificate: str = ""
    worker_key: str = dataclasses.field(default="", repr=False)

    @classmethod
    def parse(cls, source: str, data: Mapping[str, str], *, needs_user: bool = False) -> EtcdCredentials:
        """`data`: of a Secret, base64. `needs_user`: user and password are required. Raises CredentialsUnusable."""
        texts = {key: _text(source, key, data[key]) for key in (*CREDENTIAL_FILES, *_PAIRS[2]) if data.get(key)}
        if not texts.keys() & set(CREDENTIAL_FILES):
            raise CredentialsUnusable(f"{source} has none of the keys {', '.join(CREDENTIAL_FILES)}")
        if needs_user and USER not in texts and PASSWORD not in texts:
            raise CredentialsUnusable(
                f"{source} has no keys {USER} and {PASSWORD}: add those of an etcd user with the role root, with which "
                "the operator creates a user for each run"
            )
        for pair in _PAIRS:
            absent = [key for key in pair if key not in texts]
            if len(absent) == 1:
                present = pair[1 - pair.index(absent[0])]
                raise CredentialsUnusable(f"{source} has the key {present} without {absent[0]}: add it")
        return cls(
            source=source,
            ca=texts.get(CA, ""),
            certificate=texts.get(CERTIFICATE, ""),
            key=texts.get(KEY, ""),
            user=texts.get(USER, "").rstrip("\r\n"),
            password=texts.get(PASSWORD, "").rstrip("\r\n"),
            worker_certificate=texts.get(WORKER_CERTIFICATE, ""),
            worker_key=texts.get(WORKER_KEY, ""),
        )

    def context(self) -> ssl.SSLContext:
        """Raises CredentialsUnusable."""
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsUnusable(f"{self.source}: {CA} is not a certificate in PEM format") from error
        # As in the runtime: etcd and its own clients accept CA certificates without key identifiers.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate:
            self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        with tempfile.TemporaryDirectory(prefix="elasticjob-") as folder:  # ssl reads keys from files only
            file = Path(folder) / "client.pem"
            file.touch(mode=0o600)
            file.write_text(f"{self.certificate}\n{self.key}", encoding="utf-8")
            try:
                context.load_cert_chain(file, password=_no_passphrase)
            except (OSError, ValueError) as error:
                raise CredentialsUnusable(
                    f"{self.source}: {CERTIFICATE} and {KEY} are not a certificate and its key, in PEM format and "
                    "without a passphrase"
                ) from error

    def for_worker_pods(self, user: str, password: str) -> dict[str, str]:
        """The content of the Secret of a run with a user of its own."""
        files = {
            CA: self.ca,
            CERTIFICATE: self.worker_certificate,
            KEY: self.worker_key,
            USER: user,
            PASSWORD: password,
        }
        return {key: text for key, text in files.items() if text}


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted")


def _text(source: str, key: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise CredentialsUnusable(f"{source}: {key} is not text") from error
