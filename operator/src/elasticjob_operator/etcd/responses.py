"""What an endpoint's answer means, in words of our own.

Whoever may write an ElasticJob chooses the address, reads the status, and need not be allowed to reach that address
himself. So nothing that was answered goes into a message - of an error's text only phrases that are known to be etcd's.
The answer itself is logged, for those who run the operator. Pure.
"""

from __future__ import annotations

from typing import Any

from elasticjob_runtime.etcd import Denied, NotEtcd, StoreError, Unavailable, responses

from elasticjob_operator.etcd.limits import TooMuch, check_parts

Json = dict[str, Any]

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
    "not capable",
    "request is too large",
    "required revision has been compacted",
    "corrupt",
    "stopped",
)
"""Of etcd's messages: what is worth telling, and tells nothing of anything but an etcd."""
LONGEST_IN_LOG = 300


def answer_of(status: int, body: bytes | bytearray) -> Json:
    """The object that a call was answered with; the last one of a streamed answer. Raises StoreError, TooMuch."""
    check_parts(body)
    try:
        return responses.parse_answer(status, {}, bytes(body))
    except StoreError as error:
        raise told(error, status) from error
    except RecursionError as error:
        raise TooMuch("sends a message that is nested too deeply") from error


def check_version(status: int, body: bytes | bytearray) -> None:
    """Whether the answer to GET /version is that of an etcd that we can use. Raises StoreError, TooMuch."""
    check_parts(body)
    try:
        responses.check_version(status, {}, bytes(body))
    except NotEtcd as error:
        old = status == 200 and "3.4 or newer is needed" in str(error)
        raise (
            _with(NotEtcd("it is an etcd of another version: 3.4 or newer is needed"), error)
            if old
            else told(error, status)
        ) from error
    except (StoreError, RecursionError, ValueError) as error:
        raise told(error, status) from error


def cancelled(reason: object) -> StoreError:
    """Why the server ended a watch, by its word."""
    error = responses.cancel_error(reason if isinstance(reason, str) else "")
    return told(error, 200)


def garbled(error: Exception) -> StoreError:
    """An answer that is JSON and not what etcd answers."""
    return _with(NotEtcd("it answers what no etcd answers"), error)


def told(error: Exception, status: int = 200) -> StoreError:
    """The same kind of error, in our words. `status`: of the HTTP answer."""
    phrase = next((each for each in _PHRASES if each in str(error)), "")
    number = f" (HTTP {status})" if status != 200 else ""
    match error:
        case NotEtcd():
            return _with(NotEtcd(f"what answers is not etcd's v3 gateway{number}"), error)
        case Denied() if "common name" in str(error):
            return _with(
                Denied("etcd's gateway refuses client certificates with a common name (CN); issue one without"), error
            )
        case Denied():
            return _with(Denied(f"it refuses this request: {phrase or 'no reason that we know'}{number}"), error)
        case Unavailable():
            return _with(Unavailable(f"it cannot answer now: {phrase or 'no reason that we know'}{number}"), error)
        case StoreError():
            return _with(StoreError(f"it answers with an error: {phrase or 'one that we do not know'}{number}"), error)
        case _:
            return garbled(error)


def _with(verdict: StoreError, error: Exception) -> StoreError:
    """For the log."""
    verdict.add_note(str(error)[:LONGEST_IN_LOG])
    return verdict


def for_log(error: BaseException) -> str:
    """The message, and what was answered."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{error} ({notes!r})" if notes else str(error)
