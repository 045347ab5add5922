"""What can go wrong with one etcd, as errors for users."""

from __future__ import annotations

import os
import ssl

from elasticjob_runtime.etcd import Endpoint, NotEtcd, StoreError, Unavailable

from elasticjob_operator.etcd.connection import NotHttp
from elasticjob_operator.etcd.limits import LimitExceeded
from elasticjob_operator.etcd.responses import Untrusted
from elasticjob_operator.etcd.watch_stream import OPEN_SECONDS


def described(endpoint: Endpoint, error: BaseException) -> StoreError:
    """A message for users, with the address and without anything the server sent."""
    match error:
        case StoreError() if str(error).startswith(f"{endpoint}: "):
            return error
        case StoreError():
            result = type(error)(f"{endpoint}: {error}")
            for note in getattr(error, "__notes__", ()):
                result.add_note(note)
            return result
        case TimeoutError():
            return Unavailable(f"{endpoint}: no response within {OPEN_SECONDS:g} s")
        case LimitExceeded() | NotHttp():
            return NotEtcd(f"{endpoint}: it {error}")
        case OSError():
            return _os_error(endpoint, error)
        case _:
            return Unavailable(f"{endpoint}: {error or type(error).__name__}")


def _is_refusal(reason: str) -> bool:
    """Whether a TLS alert of the server is about our certificate."""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _os_error(endpoint: Endpoint, error: OSError) -> StoreError:
    match error:
        case ssl.SSLCertVerificationError():
            return Untrusted(f"{endpoint}: its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError() if _is_refusal(error.reason or ""):
            return Untrusted(f"{endpoint}: it does not accept the operator's certificate: {error.reason}")
        case ssl.SSLError():
            return Unavailable(f"{endpoint}: TLS failed: {error.reason or 'no reason given'}")
        case _ if error.errno and error.errno > 0:
            return Unavailable(f"{endpoint}: {os.strerror(error.errno)}")
        case _:
            return Unavailable(f"{endpoint}: {error.strerror or error}")
