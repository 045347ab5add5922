"""Settings of the connection: TLS, credentials, and the keys of --rdzv-conf that set them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

DEFAULT_TIMEOUT = 5.0
"""Seconds that a call may take."""

# The names of torch's `etcd` backend, and those of its `etcd-v2` backend for the same settings, so that a --rdzv-conf
# written for either works.
_ALIASES = {"cacert": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}

CONF_KEYS = frozenset({"protocol", "user", "password", "password_file", "read_timeout", *_ALIASES, *_ALIASES.values()})
"""Keys of --rdzv-conf that `connect` reads. `read_timeout` is the deadline of a call in seconds, as in torch's etcd-v2
backend (`timeout` is not one of them, because torch uses it for the whole rendezvous)."""


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
class Credentials:
    """User and password for etcd's authentication. `password_file` is read at every login, so that it may be
    rotated."""

    user: str
    password: str = dataclasses.field(default="", repr=False)
    password_file: str = ""

    def read_password(self) -> str:
        """Raises ValueError if the file cannot be read."""
        if not self.password_file:
            return self.password
        try:
            with open(self.password_file, encoding="utf-8") as file:
                return file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"password_file {self.password_file}: cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings in --rdzv-conf that concern the connection."""

    protocol: str = ""
    tls: TlsConfig = TlsConfig()
    credentials: Credentials | None = None
    timeout: float = DEFAULT_TIMEOUT


def parse_conf(conf: Mapping[str, str]) -> ConnectionSettings:
    """Reads the keys in CONF_KEYS and ignores all others. Raises ValueError, which names the key and the remedy."""
    protocol = conf.get("protocol", "").strip().lower()
    if protocol not in {"", "http", "https"}:
        raise ValueError(f"protocol is {protocol!r}; it must be http or https")
    tls = TlsConfig(**{name: _either(conf, name, alias) for name, alias in _ALIASES.items()})
    return ConnectionSettings(protocol, tls, _credentials(conf), _timeout(conf))


def with_tls_keys(conf: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    """`conf`, with `cacert`, `cert` and `key` of `default` if it has none of its own."""
    if any(name in conf for pair in _ALIASES.items() for name in pair):
        return dict(conf)
    return {**{name: value for name, value in default.items() if name in _ALIASES}, **conf}


def _either(conf: Mapping[str, str], name: str, alias: str) -> str:
    if name in conf and alias in conf:
        raise ValueError(f"{name} and {alias} are the same setting; give one of them")
    return conf.get(name, conf.get(alias, "")).strip()


def _credentials(conf: Mapping[str, str]) -> Credentials | None:
    user, password, file = conf.get("user", ""), conf.get("password", ""), conf.get("password_file", "")
    if not user:
        if password or file:
            raise ValueError("password is given without user")
        return None
    if bool(password) == bool(file):
        raise ValueError(f"user is {user!r}: give either password or password_file with it")
    credentials = Credentials(user, password, file)
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
