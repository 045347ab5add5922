"""What can go wrong with one endpoint: errors of the connection, and the store errors that they become."""

from __future__ import annotations

from elasticjob_runtime.etcd.interface import Denied, NotEtcd, StoreError, Unavailable


class TransportError(Exception):
    """An exchange with an endpoint failed. The message is one clause, without the endpoint."""


class NotSent(TransportError):
    """The request was not sent completely, so it had no effect: it may be sent again, even if it writes."""


class TooLate(NotSent):
    """The deadline passed before the request could be sent."""


class AnswerLost(TransportError):
    """The request was sent, but no complete answer came."""


class NotHttp(TransportError):
    """The server does not speak HTTP/1.1."""


class TlsRefused(TransportError):
    """One side does not accept the other's certificate."""


def explain(error: OSError, usual: type[TransportError]) -> TransportError:
    """Distinguishes a rejected certificate and a server without TLS from a broken connection, without importing ssl."""
    if message := getattr(error, "verify_message", ""):
        return TlsRefused(f"its certificate is not accepted: {message}")
    reason = getattr(error, "reason", None) or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return TlsRefused(f"it does not accept our client certificate, or wants one (cert, key): {reason}")
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}:
        return NotHttp("does not speak TLS; is protocol=https right?")
    return usual(error.strerror or str(error) or type(error).__name__)


class Unsent(Unavailable):
    """The call had no effect, so any call may be sent again."""


class NoTime(Unsent):
    """The deadline passed before the request was sent. Less informative than an earlier error of the same endpoint."""


class Untrusted(Denied):
    """The endpoint or this client does not accept the other's certificate; another endpoint may still work."""


def store_error(error: TransportError) -> StoreError:
    match error:
        case TooLate():
            return NoTime(str(error))
        case NotSent():
            return Unsent(str(error))
        case NotHttp():
            return NotEtcd(str(error))
        case TlsRefused():
            return Untrusted(str(error))
        case _:
            return Unavailable(str(error))
