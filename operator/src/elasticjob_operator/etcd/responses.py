"""Interprets an endpoint's responses, and redacts them in error messages.

Anyone who can create an ElasticJob chooses the address and reads the status, but may not be allowed to reach that
address. So nothing that the endpoint sent is copied into a message, except phrases known to be etcd's. The response
itself is logged, for cluster administrators. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any

from elasticjob_runtime.etcd import Denied, NotEtcd, StoreError, Unavailable, responses

from elasticjob_operator.etcd.limits import LimitExceeded, check_json_parts

Json = dict[str, Any]


class Untrusted(Denied):
    """The certificate of the etcd or of the operator is not accepted by the other side."""


class TokenRejected(Denied):
    """The token is missing or no longer valid. Log in and repeat the call, which had no effect."""


_PHRASES = (
    "no leader",
    "leader changed",
    "request timed out",
    "too many requests",
    "database space exceeded",
    "user name is empty",
    "invalid auth token",
    "permission denied",
    "authentication failed",
    "authentication is not enabled",
    "user name already exists",
    "user name not found",
    "role name already exists",
    "role name not found",
    "not capable",
    "request is too large",
    "required revision has been compacted",
    "corrupt",
    "stopped",
)
"""Phrases of etcd's messages that are worth showing and reveal nothing about any other server."""
LONGEST_IN_LOG = 300
_KEEPS_USERS_APART = {4: 44, 5: 30, 6: 11}
"""By minor version of etcd 3, the first patch that checks the permissions of a user within nested transactions and for
leases and alarms: GHSA-rfx7-8w68-q57q, GHSA-q8m4-xhhv-38mg, GHSA-x35m-3gp4-4fh5. Later versions do."""


def answer_of(status: int, body: bytes | bytearray) -> Json:
    """The response of a call; the last object of a streamed one. Raises StoreError, LimitExceeded."""
    check_json_parts(body)
    try:
        return responses.parse_answer(status, {}, bytes(body))
    except StoreError as error:
        raise redacted(error, status) from error
    except RecursionError as error:
        raise LimitExceeded("sends a message that is nested too deeply") from error


def check_version(status: int, body: bytes | bytearray) -> None:
    """Checks the response to GET /version. Raises StoreError, LimitExceeded."""
    check_json_parts(body)
    try:
        responses.check_version(status, {}, bytes(body))
    except NotEtcd as error:
        old = status == 200 and "3.4 or newer is needed" in str(error)
        raise (
            _with(NotEtcd("it is an etcd of another version: 3.4 or newer is needed"), error)
            if old
            else redacted(error, status)
        ) from error
    except (StoreError, RecursionError, ValueError) as error:
        raise redacted(error, status) from error


def check_keeps_users_apart(body: bytes | bytearray) -> None:
    """Checks the response to GET /version of an etcd in which each run has a user, after `check_version`. Raises
    Denied."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", json.loads(body)["etcdserver"])
    major, minor, patch = (int(group or 0) for group in found.groups()) if found else (3, 4, 0)
    if major == 3 and patch < _KEEPS_USERS_APART.get(minor, 0):
        fixed = ", ".join(f"3.{minor}.{patch}" for minor, patch in _KEEPS_USERS_APART.items())
        raise Denied(
            f"it is etcd {major}.{minor}.{patch}, in which the user of one run can read and change all others "
            f"(GHSA-rfx7-8w68-q57q): upgrade it to {fixed} or newer"
        )


def cancelled(reason: object) -> StoreError:
    """The error for a watch that the server cancelled with this reason."""
    error = responses.cancel_error(reason if isinstance(reason, str) else "")
    return redacted(error, 200)


def malformed(error: Exception) -> StoreError:
    """The error for a response that is JSON but not from etcd."""
    return _with(NotEtcd("its responses are not etcd's"), error)


def redacted(error: Exception, status: int = 200) -> StoreError:
    """The same kind of error, with a message of ours. `status`: of the HTTP response."""
    phrase = next((phrase for phrase in _PHRASES if phrase in str(error)), "")
    number = f" (HTTP {status})" if status != 200 else ""
    match error:
        case NotEtcd():
            return _with(NotEtcd(f"the server is not etcd's v3 gateway{number}"), error)
        case Denied() if "common name" in str(error):
            return _with(
                Denied("etcd's gateway rejects client certificates with a common name (CN); issue one without"), error
            )
        case responses.TokenRefused():
            return _with(TokenRejected(f"it rejects this request: {phrase or 'unknown reason'}{number}"), error)
        case responses.AuthDisabled():
            return _with(Denied("it accepts every client, because authentication is not enabled"), error)
        case Denied():
            return _with(Denied(f"it rejects this request: {phrase or 'unknown reason'}{number}"), error)
        case Unavailable():
            return _with(Unavailable(f"it is unavailable: {phrase or 'unknown reason'}{number}"), error)
        case StoreError():
            return _with(StoreError(f"it returns an error: {phrase or 'unknown reason'}{number}"), error)
        case _:
            return malformed(error)


def _with(result: StoreError, error: Exception) -> StoreError:
    """Keeps the original message as a note, for the log."""
    result.add_note(str(error)[:LONGEST_IN_LOG])
    return result


def for_log(error: BaseException) -> str:
    """The message, and what the server sent."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{error} ({notes!r})" if notes else str(error)
