"""The operator's certificate authority, and what is made with it: certificates of jobs' etcds, and the operator's own.

The CA is in a Secret in the operator's namespace, created at the first start: the first create wins, and the
other operators read it. Its own certificate is in memory only and is
replaced long before it expires.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import logging
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elasticjob_operator import names
from elasticjob_operator.certificates import (
    CA_FILE,
    PEER_CA_FILE,
    PEER_CA_KEY,
    SERVER_CERTIFICATE_FILE,
    CertificateAuthority,
    InvalidCertificateError,
    Usage,
    etcd_certificates,
    expires_at,
    peer_certificates,
    tier_certificates,
)
from elasticjob_operator.kube.api_resources import SECRETS
from elasticjob_operator.kube.client import ApiError, ConflictError, KubeClient, NotFoundError

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
OWN_LIFETIME = datetime.timedelta(days=7)
"""Of the operator's own certificate. It is replaced at half of that."""
CA_WARNING = datetime.timedelta(days=365)
"""A CA with less time left signs certificates that do not last a year."""

_CERTIFICATE, _KEY = "tls.crt", "tls.key"
"""The keys of a Secret of type kubernetes.io/tls."""


class CertificatesUnavailable(Exception):
    """The CA could not be read or created yet, and is retried. The message says why."""


class OperatorCertificates:
    """`open` before use. Methods raise CertificatesUnavailable until the CA is there. `create`: create the CA if it
    does not exist; otherwise it is only needed for jobs that started with TLS."""

    def __init__(
        self,
        api: KubeClient,
        namespace: str,
        name: str,
        *,
        create: bool = True,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self._client = api
        self._namespace = namespace
        self._name = name
        self._create_missing = create
        self._clock = clock
        self._ca: CertificateAuthority | None = None
        self._error = "it was not read yet"
        self._context: ssl.SSLContext | None = None
        self._renew_at = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)

    async def open(self) -> bool:
        """Reads or creates the CA, once. False: it failed, and the log says why."""
        try:
            if not self._namespace:
                self._error = "no namespace is set"
                return True
            self._ca = await self._read()
            if self._ca is None and not self._create_missing:
                self._error = "it does not exist"
                return True
            self._ca = self._ca or await self._create()
        except (ApiError, ConnectionError, InvalidCertificateError) as error:
            if self._error != str(error):
                log.error(
                    "Cannot use Secret %s/%s with the certificate authority, retrying: %s",
                    self._namespace,
                    self._name,
                    error,
                )
            self._error = str(error)
            return False
        if self._ca.expires_at < self._clock() + CA_WARNING:
            log.warning(
                "The certificate authority in Secret %s/%s expires on %s: delete the Secret and restart the operator, "
                "then suspend and resume the running jobs",
                self._namespace,
                self._name,
                self._ca.expires_at.date(),
            )
        return True

    async def keep_trying(self) -> None:
        """Opens it once that is possible. Never returns."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if self._ca is None:
                await self.open()

    async def for_etcd(self, dns_names: Sequence[str], peers: Sequence[str] = ()) -> dict[str, str]:
        """The files for one etcd and its clients, made in a thread: they take a millisecond of CPU. `peers`: DNS names
        of the members for each other, if there are several."""
        files = await asyncio.to_thread(etcd_certificates, self._authority(), dns_names, self._clock())
        return files | (await asyncio.to_thread(peer_certificates, peers, self._clock()) if peers else {})

    async def for_tier(
        self, dns_names: Sequence[str], known: Mapping[str, str], *, needed: datetime.timedelta
    ) -> dict[str, str]:
        """The files for one etcd tier. `known`: those that it has; empty where they are good for the time `needed`.
        Raises InvalidCertificateError too."""
        ca, now = self._authority(), self._clock()
        if known.get(CA_FILE) == ca.certificate and expires_at(known.get(SERVER_CERTIFICATE_FILE, "")) >= now + needed:
            return {}
        peer_ca = known.get(PEER_CA_FILE, ""), known.get(PEER_CA_KEY, "")
        return await asyncio.to_thread(tier_certificates, ca, dns_names, now, peer_ca)

    def context(self) -> ssl.SSLContext:
        """For connections to jobs' etcds, with the operator's certificate."""
        ca, now = self._authority(), self._clock()
        if self._context is None or now >= self._renew_at:
            self._context = _context(ca, now)
            self._renew_at = now + OWN_LIFETIME / 2
        return self._context

    def _authority(self) -> CertificateAuthority:
        if self._ca is None:
            raise CertificatesUnavailable(
                f"Secret {self._namespace}/{self._name} with the operator's certificate authority cannot be used: "
                f"{self._error}"
            )
        now = self._clock()
        if not self._ca.valid_from <= now < self._ca.expires_at:
            raise CertificatesUnavailable(
                f"the certificate authority in Secret {self._namespace}/{self._name} is valid from "
                f"{self._ca.valid_from:%Y-%m-%d %H:%M} to {self._ca.expires_at:%Y-%m-%d %H:%M}, and the clock of the "
                f"operator says {now:%Y-%m-%d %H:%M} (UTC). If the clock is wrong, correct it. Otherwise delete the "
                "Secret and restart the operator, then suspend and resume the running jobs"
            )
        return self._ca

    async def _read(self) -> CertificateAuthority | None:
        """None: there is none yet. Raises InvalidCertificateError, ApiError, ConnectionError."""
        try:
            secret = await self._client.request("GET", SECRETS.path(self._namespace, self._name))
        except NotFoundError:
            return None
        data = secret.get("data") or {}
        try:
            certificate, key = (
                base64.b64decode(data.get(each, ""), validate=True).decode() for each in (_CERTIFICATE, _KEY)
            )
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidCertificateError(f"it has no certificate and key in PEM format: {error}") from error
        return CertificateAuthority.load(certificate, key)

    async def _create(self) -> CertificateAuthority:
        ca = CertificateAuthority.create("elasticjob operator", self._clock())
        body = {
            "apiVersion": "v1",
            "kind": SECRETS.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/name": "elasticjob", "app.kubernetes.io/managed-by": names.FIELD_MANAGER},
            },
            "type": "kubernetes.io/tls",
            "immutable": True,
            "stringData": {_CERTIFICATE: ca.certificate, _KEY: ca.key},
        }
        try:
            await self._client.request("POST", SECRETS.path(self._namespace), body=body)
        except ConflictError:
            found = await self._read()  # another operator was faster
            if found is None:
                raise
            return found
        log.info("Created Secret %s/%s with the operator's certificate authority", self._namespace, self._name)
        return ca


def _context(ca: CertificateAuthority, now: datetime.datetime) -> ssl.SSLContext:
    own = ca.sign(Usage.CLIENT, now, lifetime=OWN_LIFETIME)
    context = ssl.create_default_context(cadata=ca.certificate)
    with tempfile.TemporaryDirectory(prefix="elasticjob-") as folder:  # ssl reads keys from files only
        file = Path(folder) / "own.pem"
        file.touch(mode=0o600)
        file.write_text(own.certificate + own.key, encoding="ascii")
        context.load_cert_chain(file)
    return context
