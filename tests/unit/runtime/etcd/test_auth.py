"""When the client logs in to etcd."""

from __future__ import annotations

import base64
import json
import threading
import time
from pathlib import Path

import pytest
from elasticjob_runtime.etcd import Denied, EtcdCredentials, Unavailable
from elasticjob_runtime.etcd.auth import TokenCache, renewal_time
from elasticjob_runtime.etcd.responses import AuthDisabled


def jwt(expires: object) -> str:
    def part(data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256'})}.{part({'exp': expires, 'username': 'job>?'})}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("HbXhZpowLYkYFffy.21", float("inf")),
        (jwt(2000), 1800.0),
        (jwt(1000), 1000.0),
        (jwt(500), 1000.0),
        (jwt("never"), float("inf")),
        ("a.b.c", float("inf")),
        ("a.bm8ganNvbg.c", float("inf")),
    ],
    ids=["simple", "JWT", "JWT that ends now", "JWT in the past", "no time", "no base64", "no JSON"],
)
def test_the_renewal_time_depends_on_the_token(token: str, expected: float) -> None:
    assert renewal_time(token, 1000.0) == expected


class Logins:
    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.count = 0

    def __call__(self, user: str, password: str) -> str:
        assert (user, password) == ("job", "secret")
        self.count += 1
        return self.tokens.pop(0)


def test_a_token_is_used_until_the_server_rejects_it() -> None:
    tokens, login = TokenCache(EtcdCredentials("job", "secret")), Logins("one", "two")
    assert [tokens.token(login, 1) for _ in range(3)] == ["one"] * 3
    tokens.forget("something older")
    assert tokens.token(login, 1) == "one"
    tokens.forget("one")
    tokens.forget("one")
    assert [tokens.token(login, 1) for _ in range(3)] == ["two"] * 3


def test_a_jwt_is_renewed_before_it_expires() -> None:
    now = [1000.0]
    tokens, login = TokenCache(EtcdCredentials("job", "secret"), clock=lambda: now[0]), Logins(jwt(1100), jwt(1200))
    first = tokens.token(login, 1)
    now[0] = 1079.0
    assert tokens.token(login, 1) == first
    now[0] = 1081.0
    assert tokens.token(login, 1) != first


def test_concurrent_threads_log_in_once() -> None:
    login = Logins("one", "two")

    def slow(user: str, password: str) -> str:
        time.sleep(0.05)
        return login(user, password)

    tokens = TokenCache(EtcdCredentials("job", "secret"))
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(tokens.token(slow, 10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["one"] * 8


def test_waiting_for_another_threads_login_has_a_deadline() -> None:
    tokens, entered, leave = TokenCache(EtcdCredentials("job", "secret")), threading.Event(), threading.Event()

    def stuck(_user: str, _password: str) -> str:
        entered.set()
        leave.wait(10)
        return "late"

    thread = threading.Thread(target=tokens.token, args=(stuck, 10))
    thread.start()
    entered.wait(10)
    with pytest.raises(Unavailable, match="logging in takes too long"):
        tokens.token(stuck, 0.05)
    leave.set()
    thread.join()


def test_a_user_is_not_taken_to_a_server_that_accepts_every_client() -> None:
    """Never a silent fall-back: who gives a user expects that others are kept out."""

    def disabled(_user: str, _password: str) -> str:
        raise AuthDisabled("authentication is not enabled")

    tokens = TokenCache(EtcdCredentials("job", "secret"))
    with pytest.raises(Denied, match=r"user 'job': authentication is not enabled .*etcdctl auth enable"):
        tokens.token(disabled, 1)
    assert tokens.token(Logins("one"), 1) == "one"


def test_without_credentials_there_is_no_login() -> None:
    assert TokenCache(None).token(Logins(), 1) == ""


class RejectingLogin:
    """A server that expects another password."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _user: str, password: str) -> str:
        self.count += 1
        if password == "new":
            return "token"
        raise Denied("authentication failed, invalid user ID or password")


def test_a_rejected_login_is_retried_with_delays(tmp_path: Path) -> None:
    """Each login takes etcd a tenth of a second, and every agent of a job needs one for its lease, its watch and its
    calls."""
    file = tmp_path / "password"
    file.write_text("old")
    now = [1000.0]
    tokens, login = TokenCache(EtcdCredentials("job", password_file=str(file)), clock=lambda: now[0]), RejectingLogin()
    for _ in range(600):
        with pytest.raises(Denied, match="authentication failed"):
            tokens.token(login, 1)
        now[0] += 0.25
    assert login.count <= 12, "in 150 s"
    file.write_text("new")
    assert tokens.token(login, 1) == "token", "a new password is tried at once"
