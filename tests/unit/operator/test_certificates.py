from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from elasticjob_operator.certificates import (
    CertificateAuthority,
    InvalidCertificateError,
    Usage,
    etcd_certificates,
    tier_certificates,
)

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)
YEAR = datetime.timedelta(days=365)
NAMES = ("digits-etcd.ml.svc", "*.digits-etcd.ml.svc")


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority.create("operator", NOW)


@pytest.fixture(scope="module")
def files(ca: CertificateAuthority) -> dict[str, str]:
    return etcd_certificates(ca, NAMES, NOW)


def test_only_members_of_a_tier_trust_each_other(ca: CertificateAuthority) -> None:
    """Its own authority, not the operator's, which signs the certificates of all etcds."""
    tier, other = (tier_certificates(ca, NAMES, NOW) for _ in range(2))
    peer = load(tier["peer-client.crt"])
    peer.verify_directly_issued_by(load(tier["peer-ca.crt"]))
    for stranger in (other["peer-ca.crt"], ca.certificate):
        with pytest.raises((InvalidSignature, ValueError)):
            peer.verify_directly_issued_by(load(stranger))
    assert usages(load(tier["server.crt"])) == [ExtendedKeyUsageOID.SERVER_AUTH]


def load(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_the_server_is_known_by_its_service_and_its_pods(files: dict[str, str]) -> None:
    names = load(files["server.crt"]).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [*NAMES, "localhost"]


def test_a_servers_certificate_opens_no_other_etcd(ca: CertificateAuthority, files: dict[str, str]) -> None:
    """Every etcd trusts the operator CA, which signs the servers: they must be no clients."""
    server = load(files["server.crt"])
    server.verify_directly_issued_by(load(ca.certificate))
    assert usages(server) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_worker_is_trusted_by_its_own_etcd_only(ca: CertificateAuthority, files: dict[str, str]) -> None:
    worker = load(files["worker.crt"])
    run_ca, operator_ca = x509.load_pem_x509_certificates(files["client-ca.crt"].encode())
    worker.verify_directly_issued_by(run_ca)
    assert usages(worker) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert operator_ca == load(ca.certificate)
    (another, _) = x509.load_pem_x509_certificates(etcd_certificates(ca, NAMES, NOW)["client-ca.crt"].encode())
    with pytest.raises(InvalidSignature):
        worker.verify_directly_issued_by(another)


def test_the_key_of_the_run_ca_is_kept_nowhere(files: dict[str, str]) -> None:
    keys = {name for name, text in files.items() if "PRIVATE KEY" in text}
    assert keys == {"server.key", "worker.key"}


@pytest.mark.parametrize("name", ["server.crt", "worker.crt"])
def test_no_certificate_has_a_common_name(files: dict[str, str], name: str) -> None:
    """etcd's JSON gateway rejects clients that have one."""
    assert not load(files[name]).subject.get_attributes_for_oid(NameOID.COMMON_NAME)


@pytest.mark.parametrize("name", ["server.crt", "worker.crt"])
def test_leaves_last_a_year_and_allow_for_clocks_that_differ(files: dict[str, str], name: str) -> None:
    certificate = load(files[name])
    assert certificate.not_valid_after_utc == NOW + YEAR
    assert certificate.not_valid_before_utc == NOW - datetime.timedelta(hours=1)


def test_no_leaf_outlives_the_ca() -> None:
    ca = CertificateAuthority.create("short", NOW, datetime.timedelta(days=2))
    leaf = ca.sign(Usage.CLIENT, NOW, lifetime=YEAR)
    assert leaf.expires_at == ca.expires_at == load(leaf.certificate).not_valid_after_utc


def test_a_ca_is_loaded_as_it_was_stored(ca: CertificateAuthority) -> None:
    again = CertificateAuthority.load(ca.certificate, ca.key)
    load(again.sign(Usage.CLIENT, NOW, lifetime=YEAR).certificate).verify_directly_issued_by(load(ca.certificate))


def _not_a_ca(ca: CertificateAuthority) -> tuple[str, str]:
    leaf = ca.sign(Usage.CLIENT, NOW, lifetime=YEAR)
    return leaf.certificate, leaf.key


def test_what_is_no_ca_is_refused(ca: CertificateAuthority) -> None:
    other = CertificateAuthority.create("other", NOW)
    with pytest.raises(InvalidCertificateError, match="its key does not belong to its certificate"):
        CertificateAuthority.load(ca.certificate, other.key)
    with pytest.raises(InvalidCertificateError, match="its certificate is not one of a CA"):
        CertificateAuthority.load(*_not_a_ca(ca))
    with pytest.raises(InvalidCertificateError, match="no certificate and key in PEM format"):
        CertificateAuthority.load("", "")
