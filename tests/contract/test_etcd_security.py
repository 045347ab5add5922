"""TLS, certificates, users and tokens on a real etcd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.etcd import (
    Delete,
    Denied,
    EtcdClient,
    EtcdCredentials,
    Get,
    KeyRange,
    NotEtcd,
    Put,
    Unavailable,
    connect,
)

from hack.support import eventually
from tests.contract.backends import Collector, OpenClient, present, watched
from tests.contract.certificates import Pki
from tests.contract.etcd_servers import EtcdServer, enable_users
from tests.contract.proxy import Proxy

JOB = "/jobs/one/"


@pytest.fixture
def guarded_server(etcd_program: Path, tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd with authentication: `job` may read and write under /jobs/one/. Unused tokens expire after 2 s."""
    server = EtcdServer(etcd_program, tmp_path, flags=["--auth-token-ttl", "2", "--bcrypt-cost", "4"]).start()
    enable_users(server, {"job": ("secret", JOB)})
    yield server
    server.stop()


def test_tls_works_with_a_client_certificate_without_a_common_name(etcd_program: Path, tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki", client_auth=True)
    server = EtcdServer(etcd_program, tmp_path, pki=pki).start()
    enable_users(server, {"job": ("secret", "/a")})
    conf = {"protocol": "https", "cacert": pki.ca, "cert": pki.certificate("client"), "key": pki.key("client")}
    conf |= {"user": "job", "password": "secret"}
    client = connect(f"localhost:{server.port}", conf)
    try:
        seen = watched(client, KeyRange.prefix("/a/"), KeyRange("/a"))
        lease = client.lease(2, lambda _: None)
        first = lease.expires_at
        revision = client.put("/a", "x" * 100_000, lease=lease.id)
        eventually(lambda: seen.revisions == [revision])
        eventually(lambda: lease.expires_at > first)
        lease.revoke()
        eventually(lambda: seen.revisions == [revision, revision + 1])

        def failure(**changed: str) -> str:
            other = connect(f"https://127.0.0.1:{server.port}", {**conf, **changed})
            try:
                with pytest.raises(Denied) as caught:
                    other.get("/a", timeout=3)
                return str(caught.value)
            finally:
                other.close()

        assert "common name (CN)" in failure(cert=pki.certificate("named"), key=pki.key("named"))
        assert "client certificate" in failure(cert="", key="")
        stranger = Pki(tmp_path / "stranger")
        assert "certificate is not accepted" in failure(cacert=stranger.ca)
        assert "client certificate" in failure(cert=stranger.certificate("client"), key=stranger.key("client"))
    finally:
        client.close()
        server.stop()


def test_a_certificate_for_another_host_is_rejected(etcd_program: Path, tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    pki.sign("server", "/O=etcd", "subjectAltName=DNS:somewhere-else")
    server = EtcdServer(etcd_program, tmp_path, pki=pki)
    server.launch()
    client = connect(f"127.0.0.1:{server.port}", {"protocol": "https", "cacert": pki.ca})
    seen = Collector()
    try:
        eventually(lambda: isinstance(_error_of(client), Denied))
        with pytest.raises(Denied, match=r"certificate is not accepted: .*127\.0\.0\.1"):
            client.get("/a")
        client.watch([KeyRange("/a")], 1, seen)
        eventually(lambda: seen.failures and isinstance(seen.failures[-1], Denied))
    finally:
        client.close()
        server.stop()


def _error_of(client: EtcdClient) -> Exception | None:
    try:
        client.get("/a", timeout=1)
    except (Unavailable, Denied, NotEtcd) as error:
        return error
    return None


def test_a_wrong_protocol_is_named_in_the_error(etcd_program: Path, tmp_path: Path, pki: Pki) -> None:
    plain = EtcdServer(etcd_program, tmp_path, name="plain").start()
    secure = EtcdServer(etcd_program, tmp_path, name="tls", pki=pki).start()
    try:
        # etcd only closes the connection, as a server that shuts down also does, so the client retries until the
        # deadline.
        with pytest.raises(Unavailable, match=r"TLS handshake broke off: .*if it speaks no TLS: protocol=http"):
            connect(f"127.0.0.1:{plain.port}", {"protocol": "https", "cacert": pki.ca}).get("/a", timeout=1)
        with pytest.raises(Unavailable, match=r"if it wants TLS: protocol=https"):
            connect(f"127.0.0.1:{secure.port}").get("/a", timeout=1)
    finally:
        plain.stop()
        secure.stop()


def test_a_user_has_access_to_its_prefix_only_and_hears_what_it_lacks(
    guarded_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(guarded_server.url, credentials=EtcdCredentials("job", "secret"))
    lease = client.lease(60, lambda _: None)
    assert client.put(JOB + "a", "1", lease=lease.id) > 1
    assert len(client.range(Get(KeyRange.prefix(JOB))).kvs) == 1
    for forbidden in (
        lambda: client.get("/jobs/two/a"),
        lambda: client.put("/jobs/two/a", ""),
        lambda: client.range(Get(KeyRange.prefix("/jobs/"))),
        lambda: client.txn((), (Put(JOB + "a", ""), Delete(KeyRange("/jobs/two/a")))),
    ):
        with pytest.raises(Denied, match=r"etcd refuses to .*/jobs/.*: permission denied: give user 'job' a role with"):
            forbidden()
    seen, other = Collector(), Collector()
    client.watch([KeyRange.prefix(JOB)], 2, seen)
    client.watch([KeyRange.prefix(JOB), KeyRange("/jobs/two/a")], 2, other)
    eventually(lambda: seen.events)
    eventually(lambda: other.failures)
    assert isinstance(other.failures[0], Denied)
    assert "/jobs/two/a" in str(other.failures[0])
    lease.revoke()


def test_wrong_or_missing_credentials_give_a_clear_error_without_the_password(
    guarded_server: EtcdServer, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    wrong = open_client(guarded_server.url, credentials=EtcdCredentials("job", "hunter2"))
    with pytest.raises(Denied, match=r"user 'job': authentication failed") as caught:
        wrong.get(JOB + "a")
    assert "hunter2" not in f"{caught.value} {wrong!r} {caplog.text}"
    with pytest.raises(Denied, match="wants a user and a password"):
        open_client(guarded_server.url).put(JOB + "a", "")
    seen = watched(wrong, KeyRange(JOB + "a"))
    eventually(lambda: seen.failures)
    assert isinstance(seen.failures[0], Denied)


def test_an_expired_token_is_renewed_and_no_write_is_repeated(
    guarded_server: EtcdServer, open_client: OpenClient
) -> None:
    proxy = Proxy(guarded_server.port)
    client = open_client(proxy.url, credentials=EtcdCredentials("job", "secret"), probe_interval=60)
    first = client.put(JOB + "a", "1")
    seen = watched(client, KeyRange.prefix(JOB), start=first)
    time.sleep(5)
    second = client.put(JOB + "a", "2")
    assert (present(client, JOB + "a").version, second) == (2, first + 1)
    eventually(lambda: seen.revisions == [first, second], what="the watch outlives the token that it started with")
    assert seen.failures == []
    assert b"invalid auth token" in proxy.answers, "the token had expired"
    proxy.close()


def test_tokens_lost_in_a_restart_are_renewed_by_calls_watches_and_leases(
    guarded_server: EtcdServer, open_client: OpenClient
) -> None:
    lost: list[str] = []
    client = open_client(guarded_server.url, credentials=EtcdCredentials("job", "secret"))
    lease = client.lease(30, lost.append)
    first = client.put(JOB + "a", "1", lease=lease.id)
    seen = watched(client, KeyRange.prefix(JOB), start=first)
    eventually(lambda: seen.events)
    guarded_server.kill()
    guarded_server.start_guarded()
    second = client.put(JOB + "a", "2", lease=lease.id)
    eventually(lambda: seen.revisions == [first, second])
    lease.revoke()
    eventually(lambda: seen.revisions == [first, second, second + 1])
    assert lost == []


def test_a_watch_that_reconnects_with_an_expired_token_logs_in_again(
    guarded_server: EtcdServer, open_client: OpenClient
) -> None:
    proxy = Proxy(guarded_server.port)
    other = open_client(guarded_server.url, credentials=EtcdCredentials("job", "secret"))
    client = open_client(proxy.url, credentials=EtcdCredentials("job", "secret"), probe_interval=60)
    revisions = [other.put(JOB + "a", "1")]
    seen = watched(client, KeyRange.prefix(JOB), KeyRange(JOB + "b"), start=revisions[0])
    eventually(lambda: seen.revisions == revisions)
    time.sleep(5)
    proxy.cut()
    revisions.append(other.put(JOB + "a", "2"))
    eventually(lambda: seen.revisions == revisions)
    assert [f for f in seen.failures if isinstance(f, Denied)] == []
    assert b"invalid auth token" in proxy.answers, "the token had expired"
    proxy.close()


def test_a_password_file_is_read_at_every_login(
    guarded_server: EtcdServer, open_client: OpenClient, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    client = open_client(guarded_server.url, credentials=EtcdCredentials("job", password_file=str(file)))
    client.put(JOB + "a", "")
    guarded_server.change_password("job", "new secret")
    file.write_text("new secret\n")
    eventually(lambda: client.put(JOB + "a", "") > 0)
    file.unlink()
    guarded_server.change_password("job", "newest")
    with pytest.raises(Denied, match=r"password_file .*cannot be read"):
        client.put(JOB + "a", "")
