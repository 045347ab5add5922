"""Parses responses into the JSON of a success or the matching StoreError. Pure."""

from __future__ import annotations

import json
from typing import Any

from elasticjob_runtime.etcd.interface import Denied, Full, LeaseLost, NotEtcd, StoreError, Unavailable

Json = dict[str, Any]


class TokenRefused(Denied):
    """The token is missing or invalid. Log in and repeat the call, which had no effect."""


class Exists(StoreError):
    """The lease already exists."""


class AuthDisabled(StoreError):
    """Authentication is not enabled on the server."""


_NOT_FOUND, _FORBIDDEN, _EXHAUSTED, _PRECONDITION, _UNAUTHENTICATED = 5, 7, 8, 9, 16
_PASSING = {1, 2, 4, 10, 13, 14}
"""gRPC codes of errors that may be temporary: canceled, unknown, deadline exceeded, aborted, internal, unavailable."""
_LOGIN_AGAIN = ("invalid auth token", "user name is empty", "revision of auth store is old")


_REMEDY = "its owner must compact and defragment it, or raise --quota-backend-bytes, then disarm the alarm NOSPACE"


def grpc_error(code: int, message: str) -> StoreError:
    """The StoreError for a gRPC status. Compares messages where etcd uses one code for different errors."""
    text = message.removeprefix("etcdserver: ")
    if any(words in text for words in _LOGIN_AGAIN) or code == _UNAUTHENTICATED:
        return TokenRefused(text)
    if "database space exceeded" in text:
        return Full(f"{text}: {_REMEDY}")
    if code == _FORBIDDEN or "authentication failed" in text:
        return Denied(text)
    if code == _NOT_FOUND and "lease" in text:
        return LeaseLost(text)
    if code == _PRECONDITION and "lease already exists" in text:
        return Exists(text)
    if code == _PRECONDITION and "authentication is not enabled" in text:
        return AuthDisabled(text)
    if code in _PASSING or (code == _EXHAUSTED and "too many requests" in text):
        return Unavailable(text)
    return StoreError(text)


def http_error(status: int, headers: dict[str, str], body: bytes) -> StoreError:
    """The StoreError for an unsuccessful HTTP response."""
    data = _object(body)
    if data is not None:
        inner = data["error"] if isinstance(data.get("error"), dict) else data
        code, message = inner.get("code", inner.get("grpc_code")), inner.get("message")
        if isinstance(code, int) and isinstance(message, str):
            return grpc_error(code, message)
    text = body[:200].decode("utf-8", "replace").strip()
    if status in {502, 503, 504}:
        return Unavailable(f"HTTP {status} {text}".strip())
    if "CommonName" in text:
        return Denied("etcd's gateway refuses client certificates with a common name (CN); issue one without")
    server = headers.get("server", "")
    return NotEtcd(f"not an etcd v3 gateway (HTTP {status}{f' from {server}' if server else ''}: {text[:80]!r})")


def cancel_error(reason: str) -> StoreError:
    """The StoreError for the reason why a watcher was cancelled: "rpc error: code = PermissionDenied desc = etcdserver:
    ..."."""
    text = reason.rpartition("desc = ")[2].removeprefix("etcdserver: ")
    if any(words in text for words in _LOGIN_AGAIN):
        return TokenRefused(text)
    if "permission denied" in text:
        return Denied(text)
    return Unavailable(f"watch cancelled: {text or 'no reason given'}")


def parse_answer(status: int, headers: dict[str, str], body: bytes) -> Json:
    """Parses the answer to a call; of a streamed answer, the last object. Raises StoreError."""
    if status != 200:
        raise http_error(status, headers, body)
    data = _object(body.strip().rpartition(b"\n")[2])
    if data is None:
        raise http_error(status, headers, body)
    if "error" in data:
        raise http_error(status, headers, body)
    result = data.get("result", data)
    if not isinstance(result, dict):
        raise http_error(status, headers, body)
    return result


def check_header(answer: Json) -> None:
    """Checks that an answer has a header, as every answer of etcd 3.4 or newer does (older versions use other paths).
    Raises NotEtcd."""
    header = answer.get("header")
    if not isinstance(header, dict) or "cluster_id" not in header:
        raise NotEtcd(f"not an etcd v3 gateway (answers {json.dumps(answer)[:80]})")


def check_version(status: int, headers: dict[str, str], body: bytes) -> None:
    """Checks the response to GET /version: {"etcdserver": "3.4.23", ...}. Raises StoreError."""
    data = _object(body) if status == 200 else None
    version = data.get("etcdserver") if data is not None else None
    if not isinstance(version, str):
        raise http_error(status, headers, body)
    numbers = version.split(".")
    if len(numbers) < 2 or not (numbers[0].isdigit() and numbers[1].isdigit()):
        raise NotEtcd(f"an etcd of unknown version {version!r}; 3.4 or newer is needed")
    if (int(numbers[0]), int(numbers[1])) < (3, 4):
        raise NotEtcd(f"an etcd {version}, which is too old: 3.4 or newer is needed")


def _object(body: bytes) -> Json | None:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):  # for example, nested 100,000 levels deep
        return None
    return data if isinstance(data, dict) else None
