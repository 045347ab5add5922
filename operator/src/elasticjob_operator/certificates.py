"""X.509 certificates for mutual TLS with the etcds that the operator runs. No I/O; keys are random.

    operator CA    one per installation; signs the certificate of each etcd server, and the operator's own
    run CA         one per etcd; signs the certificate of the job's worker pods; its key is never stored
    peer CA        one per etcd with several members; signs what they use among each other; its key is never stored,
                   but for an etcd tier, whose certificates are renewed

An etcd accepts clients of both CAs. No client certificate has a common name: etcd's JSON gateway rejects those that
have one. All keys are ECDSA P-256, which cost a tenth of a millisecond each; RSA keys would cost a hundred times that.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = datetime.timedelta(days=3650)
LEAF_LIFETIME = datetime.timedelta(days=365)
"""Of the certificates of an etcd and its worker pods. A new run gets new ones."""
BACKDATED = datetime.timedelta(hours=1)
"""Certificates are valid from so long before they are made: clocks of nodes differ."""

CA_FILE = "ca.crt"
"""What clients trust: the operator CA."""
CLIENT_CA_FILE = "client-ca.crt"
"""What etcd trusts: the run CA and the operator CA."""
SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE = "server.crt", "server.key"
WORKER_CERTIFICATE_FILE, WORKER_KEY_FILE = "worker.crt", "worker.key"
PEER_CA_FILE = "peer-ca.crt"
"""What the members of an etcd trust in each other."""
PEER_CA_KEY = "peer-ca.key"
"""Of an etcd tier; its pods do not mount it."""
PEER_SERVER_CERTIFICATE_FILE, PEER_SERVER_KEY_FILE = "peer-server.crt", "peer-server.key"
PEER_CLIENT_CERTIFICATE_FILE, PEER_CLIENT_KEY_FILE = "peer-client.crt", "peer-client.key"

_ORGANIZATION = "elasticjob.dev"
_LOCAL = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")))
"""For `etcdctl` in the etcd's own container."""


class InvalidCertificateError(ValueError):
    """A PEM block is not a certificate, or the key is not the certificate's; the message says what is wrong."""


class Usage(enum.Enum):
    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KeyPair:
    """A certificate and its private key, PEM."""

    certificate: str
    key: str = dataclasses.field(repr=False)
    expires_at: datetime.datetime


class CertificateAuthority:
    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(
        cls, name: str, now: datetime.datetime, lifetime: datetime.timedelta = CA_LIFETIME
    ) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(subject, subject, key.public_key(), now, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: str, key: str) -> CertificateAuthority:
        """Raises InvalidCertificateError."""
        try:
            loaded = x509.load_pem_x509_certificate(certificate.encode())
            private = serialization.load_pem_private_key(key.encode(), password=None)
        except (ValueError, TypeError) as error:
            raise InvalidCertificateError(f"it has no certificate and key in PEM format: {error}") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise InvalidCertificateError("its key is not an elliptic curve key")
        if private.public_key() != loaded.public_key():
            raise InvalidCertificateError("its key does not belong to its certificate")
        try:
            is_ca = loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            is_ca = False
        if not is_ca:
            raise InvalidCertificateError("its certificate is not one of a CA")
        return cls(loaded, private)

    @property
    def certificate(self) -> str:
        """PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key(self) -> str:
        """PEM."""
        return _key_pem(self._key)

    @property
    def valid_from(self) -> datetime.datetime:
        return self._certificate.not_valid_before_utc

    @property
    def expires_at(self) -> datetime.datetime:
        return self._certificate.not_valid_after_utc

    def sign(
        self, usage: Usage, now: datetime.datetime, *, dns_names: Sequence[str] = (), lifetime: datetime.timedelta
    ) -> KeyPair:
        """A new certificate with a new key. It never outlives the CA, and has no common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        expires_at = min(now + lifetime, self.expires_at)
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(_name(), self._certificate.subject, key.public_key(), now, expires_at)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage.value]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        )
        if dns_names:
            names = [*(x509.DNSName(dns_name) for dns_name in dns_names), *_LOCAL]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(
            certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
            key=_key_pem(key),
            expires_at=expires_at,
        )


def etcd_certificates(
    operator_ca: CertificateAuthority, dns_names: Sequence[str], now: datetime.datetime
) -> dict[str, str]:
    """The files for one etcd and its clients: name -> PEM. The run CA's key is forgotten here."""
    run_ca = CertificateAuthority.create(f"etcd {dns_names[0]}"[:64], now, LEAF_LIFETIME)
    server = operator_ca.sign(Usage.SERVER, now, dns_names=dns_names, lifetime=LEAF_LIFETIME)
    worker = run_ca.sign(Usage.CLIENT, now, lifetime=LEAF_LIFETIME)
    return {
        CA_FILE: operator_ca.certificate,
        CLIENT_CA_FILE: run_ca.certificate + operator_ca.certificate,
        SERVER_CERTIFICATE_FILE: server.certificate,
        SERVER_KEY_FILE: server.key,
        WORKER_CERTIFICATE_FILE: worker.certificate,
        WORKER_KEY_FILE: worker.key,
    }


def tier_certificates(
    operator_ca: CertificateAuthority,
    dns_names: Sequence[str],
    now: datetime.datetime,
    peer_ca: tuple[str, str] = ("", ""),
) -> dict[str, str]:
    """The files for one etcd tier, which outlives its certificates: name -> PEM. Its clients need none, they log in.

    `peer_ca`: certificate and key of the one that its members trust already; empty: there is none. Raises
    InvalidCertificateError.
    """
    peers = CertificateAuthority.load(*peer_ca) if all(peer_ca) else _peer_ca(dns_names, now, CA_LIFETIME)
    server = operator_ca.sign(Usage.SERVER, now, dns_names=dns_names, lifetime=LEAF_LIFETIME)
    return {
        CA_FILE: operator_ca.certificate,
        SERVER_CERTIFICATE_FILE: server.certificate,
        SERVER_KEY_FILE: server.key,
        PEER_CA_KEY: peers.key,
        **_of_peers(peers, dns_names, now),
    }


def expires_at(certificate: str) -> datetime.datetime:
    """`certificate`: PEM. Raises InvalidCertificateError."""
    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    except ValueError as error:
        raise InvalidCertificateError(f"it has no certificate in PEM format: {error}") from error


def peer_certificates(dns_names: Sequence[str], now: datetime.datetime) -> dict[str, str]:
    """The files with which the members of one etcd reach each other: name -> PEM. No other etcd's, and no worker pod's
    certificate opens the port of the members.

    Two certificates, because etcd checks the names in a client's against the address from which it connects, which DNS
    may not know yet.
    """
    return _of_peers(_peer_ca(dns_names, now, LEAF_LIFETIME), dns_names, now)


def _peer_ca(dns_names: Sequence[str], now: datetime.datetime, lifetime: datetime.timedelta) -> CertificateAuthority:
    return CertificateAuthority.create(f"etcd peers {dns_names[0]}"[:64], now, lifetime)


def _of_peers(ca: CertificateAuthority, dns_names: Sequence[str], now: datetime.datetime) -> dict[str, str]:
    server = ca.sign(Usage.SERVER, now, dns_names=dns_names, lifetime=LEAF_LIFETIME)
    client = ca.sign(Usage.CLIENT, now, lifetime=LEAF_LIFETIME)
    return {
        PEER_CA_FILE: ca.certificate,
        PEER_SERVER_CERTIFICATE_FILE: server.certificate,
        PEER_SERVER_KEY_FILE: server.key,
        PEER_CLIENT_CERTIFICATE_FILE: client.certificate,
        PEER_CLIENT_KEY_FILE: client.key,
    }


def _name(common_name: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION)]
    if common_name:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    expires_at: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(expires_at)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
