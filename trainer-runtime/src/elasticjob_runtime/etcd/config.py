"""Settings of the connection: TLS, credentials, and the keys of --rdzv-conf that set them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

DEFAULT_TIMEOUT = 5.0
"""Seconds that a call may take."""

# The names of torch's `etcd` backend, and those of its `etcd-v2` backend for the same settings, so that a --rdzv-conf
# written for either works.
_ALIASES = {"cacert": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}

_TLS_KEYS = frozenset({*_ALIASES, *_ALIASES.values()})
_USER_KEYS = frozenset({"user", "password", "password_file"})

CONF_KEYS = frozenset({"protocol", "credentials", "read_timeout", *_USER_KEYS, *_TLS_KEYS})
"""Keys of --rdzv-conf that `connect` reads. `read_timeout` is the deadline of a call in seconds, as in torch's etcd-v2
backend (`timeout` is not one of them, because torch uses it for the whole rendezvous)."""

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
USER_FILE, PASSWORD_FILE = "username", "password"
CREDENTIAL_FILES = (CA_FILE, CERTIFICATE_FILE, KEY_FILE, USER_FILE, PASSWORD_FILE)
"""Names of the files in the folder `credentials`, each of which may be missing: the keys of Secrets of types
kubernetes.io/tls and kubernetes.io/basic-auth, and that of cert-manager for the CA."""


@dataclasses.dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files. Empty `cacert`: the system's CAs. `cert` and `key`: the client's certificate; the `cert` file
    may contain the key.

    etcd's gateway rejects client certificates with a common name: issue them without one, and authorise by user and
    password.
    """

    cacert: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises ValueError, naming the file, if one cannot be used."""
        import ssl  # only if TLS is configured: it costs 3 MB

        try:
            context = ssl.create_default_context(cafile=self.cacert or None)
        except OSError as error:
            raise ValueError(f"cacert {self.cacert}: cannot be used as a CA certificate: {_reason(error)}") from error
        # Since 3.13, Python rejects CA certificates without key identifiers, which etcd and its own clients accept.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.key and not self.cert:
            raise ValueError("key is given without cert")
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None, password=_no_passphrase)
            except OSError as error:
                files = f"cert {self.cert}" + (f", key {self.key}" if self.key else "")
                raise ValueError(f"{files}: cannot be used as a client certificate: {_reason(error)}") from error
        return context


def _no_passphrase() -> str:
    raise ValueError("the private key of the client certificate is encrypted; give one without a passphrase")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@dataclasses.dataclass(frozen=True, slots=True)
class EtcdCredentials:
    """User and password for etcd's authentication. `password_file` is read at every login, so that it may be
    rotated."""

    user: str
    password: str = dataclasses.field(default="", repr=False)
    password_file: str = ""

    def read_password(self) -> str:
        """Raises ValueError if the file cannot be read."""
        if not self.password_file:
            return self.password
        return _read(self.password_file, "password_file")


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings in --rdzv-conf that concern the connection."""

    protocol: str = ""
    tls: TlsConfig = TlsConfig()
    credentials: EtcdCredentials | None = None
    timeout: float = DEFAULT_TIMEOUT


def parse_conf(conf: Mapping[str, str]) -> ConnectionSettings:
    """Reads the keys in CONF_KEYS and ignores all others. Raises ValueError, which names the key and the remedy."""
    protocol = conf.get("protocol", "").strip().lower()
    if protocol not in {"", "http", "https"}:
        raise ValueError(f"protocol is {protocol!r}; it must be http or https")
    conf = _with_files(conf)
    tls = TlsConfig(**{name: _either(conf, name, alias) for name, alias in _ALIASES.items()})
    return ConnectionSettings(protocol, tls, _credentials(conf), _timeout(conf))


def with_pod_credentials(conf: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    """`conf`, with `cacert`, `cert`, `key` and `credentials` of `default` if it has none of these."""
    ours = {*_ALIASES, "credentials"}
    if any(name in conf for name in (*ours, *_TLS_KEYS)):
        return dict(conf)
    return {**{name: value for name, value in default.items() if name in ours}, **conf}


def _with_files(conf: Mapping[str, str]) -> dict[str, str]:
    """`conf`, with the files of the folder `credentials` in its place, except where `conf` itself names others."""
    folder = conf.get("credentials", "").strip()
    if not folder:
        return dict(conf)
    paths = {name: os.path.join(folder, name) for name in CREDENTIAL_FILES}
    there = {name: path for name, path in paths.items() if os.path.exists(path)}
    if not there:
        raise ValueError(f"credentials {folder}: has none of the files {', '.join(CREDENTIAL_FILES)}")
    _check_pairs(folder, there)
    found: dict[str, str] = {}
    if CA_FILE in there and not conf.keys() & {"cacert", "ca_cert"}:
        found["cacert"] = there[CA_FILE]
    if CERTIFICATE_FILE in there and not conf.keys() & (_TLS_KEYS - {"cacert", "ca_cert"}):
        found |= {"cert": there[CERTIFICATE_FILE], "key": there[KEY_FILE]}
    if USER_FILE in there and not conf.keys() & _USER_KEYS:
        found |= {"user": _read(there[USER_FILE], USER_FILE), "password_file": there[PASSWORD_FILE]}
    return {**found, **conf}


def _check_pairs(folder: str, there: Mapping[str, str]) -> None:
    for one, other in ((CERTIFICATE_FILE, KEY_FILE), (USER_FILE, PASSWORD_FILE)):
        if (one in there) != (other in there):
            present, absent = (one, other) if one in there else (other, one)
            raise ValueError(f"credentials {folder}: has {present} without {absent}")


def _read(path: str, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} {path}: cannot be read: {error}") from error


def _either(conf: Mapping[str, str], name: str, alias: str) -> str:
    if name in conf and alias in conf:
        raise ValueError(f"{name} and {alias} are the same setting; give one of them")
    return conf.get(name, conf.get(alias, "")).strip()


def _credentials(conf: Mapping[str, str]) -> EtcdCredentials | None:
    user, password, file = conf.get("user", ""), conf.get("password", ""), conf.get("password_file", "")
    if not user:
        if password or file:
            raise ValueError("password is given without user")
        return None
    if bool(password) == bool(file):
        raise ValueError(f"user is {user!r}: give either password or password_file with it")
    credentials = EtcdCredentials(user, password, file)
    credentials.read_password()
    return credentials


def _timeout(conf: Mapping[str, str]) -> float:
    text = conf.get("read_timeout", "")
    try:
        timeout = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < 86400:
        raise ValueError(f"read_timeout is {text!r}; it must be a number of seconds above 0")
    return timeout
