"""A shared etcd with TLS and users: the operator's calls, and what a run's user may do, with etcd's own client too."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import urllib.error
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_operator.credentials import CredentialsUnusable, EtcdCredentials
from elasticjob_operator.etcd import RunUsers, RunWatches
from elasticjob_operator.names import NamespacedName, run_user
from elasticjob_operator.planning import ClearRun, PublishSpec, Target
from elasticjob_operator.state import Connectivity, RendezvousView
from elasticjob_runtime.contract import SpecValue
from elasticjob_runtime.etcd import Denied, Unavailable, connect
from elasticjob_runtime.etcd.protocol import encode

from hack.cluster.programs import programs_folder
from tests.contract.certificates import Pki
from tests.contract.etcd_servers import ROOT_PASSWORD, EtcdServer, enable_users, require_etcd
from tests.unit.operator.waiting import until

JOB, SECRET = ("ml", "digits"), ("elasticjob-system", "shared-etcd")
RUN, OTHER = "0000-1", "1111-1"
MINE, THEIRS = f"/elasticjob/{RUN}/", f"/elasticjob/{OTHER}/"
PASSWORD = "the run's own"


@pytest.fixture(scope="session")
def etcd_program() -> Path:
    """Debian's 3.4 does not keep users apart."""
    return require_etcd("3.6")


@pytest.fixture
def server(etcd_program: Path, tmp_path: Path, pki: Pki) -> Iterator[EtcdServer]:
    """`jane` may read and write the keys of all jobs, but create no users. Unused tokens expire after 2 s."""
    flags = ["--auth-token-ttl", "2", "--bcrypt-cost", "4"]
    server = EtcdServer(etcd_program, tmp_path, pki=pki, flags=flags).start()
    enable_users(server, {"jane": ("secret", "/elasticjob/"), "joe": ("secret", "/other/")})
    yield server
    server.stop()


def secret_data(pki: Pki, **keys: str) -> dict[str, str]:
    texts = {"ca.crt": Path(pki.ca).read_text(), "username": "root", "password": ROOT_PASSWORD, **keys}
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


class Operator:
    """Its watch of one run, with credentials from a Secret."""

    def __init__(self, endpoint: str, data: dict[str, str]) -> None:
        self.data = data
        self.watches = RunWatches(lambda _: None, read_secret=self._read)
        self.users = RunUsers(self.watches.call)
        self.target = Target(endpoint=endpoint, run_id=RUN, secret=SECRET, user=run_user(RUN))

    async def _read(self, secret: NamespacedName) -> EtcdCredentials:
        return EtcdCredentials.parse(f"Secret {'/'.join(secret)}", self.data)

    @property
    def view(self) -> RendezvousView:
        return self.watches.view(JOB)

    async def is_connected(self) -> None:
        await until(lambda: self.view.connectivity is Connectivity.REACHABLE)

    async def publish(self) -> None:
        await self.watches.execute(JOB, PublishSpec(spec=SpecValue(min=1, max=1), reason="test"))

    async def has_published(self) -> None:
        """Retries as the reconciler does, while the operator reconnects."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.publish()
                return
            await asyncio.sleep(0.1)


StartOperator = Callable[..., Awaitable[Operator]]


@pytest.fixture
async def start_operator(server: EtcdServer, pki: Pki) -> AsyncIterator[StartOperator]:
    started: list[Operator] = []

    async def start(endpoint: str = "", **keys: str) -> Operator:
        operator = Operator(endpoint or server.url, secret_data(pki, **keys))
        started.append(operator)
        await operator.watches.follow(JOB, operator.target)
        return operator

    yield start
    for item in started:
        await item.watches.close()


@pytest.fixture
async def operator(start_operator: StartOperator) -> Operator:
    """Connected, with its user."""
    operator = await start_operator()
    await operator.is_connected()
    return operator


StartEtcd = Callable[..., EtcdServer]


@pytest.fixture
def start_etcd(tmp_path: Path, pki: Pki) -> Iterator[StartEtcd]:
    """Starts another one."""
    started: list[EtcdServer] = []

    def start(version: str = "3.6", own_pki: Pki = pki) -> EtcdServer:
        folder = tmp_path / f"etcd-{len(started)}"
        folder.mkdir()
        started.append(EtcdServer(require_etcd(version), folder, pki=own_pki, flags=["--bcrypt-cost", "4"]).start())
        return started[-1]

    yield start
    for item in started:
        item.stop()


def etcdctl(server: EtcdServer, pki: Pki, user: str, *words: str) -> str:
    """Output and errors of etcd's own client."""
    flags = [f"--endpoints={server.url}", f"--cacert={pki.ca}", f"--user={user}", "--command-timeout=5s"]
    command = [str(programs_folder() / "etcdctl"), *flags, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    return done.stdout + done.stderr


async def test_a_run_may_access_its_own_keys_and_no_others(operator: Operator, server: EtcdServer, pki: Pki) -> None:
    user = run_user(RUN)
    assert not await operator.users.is_complete(JOB, user)
    await operator.users.create(JOB, user, PASSWORD, RUN)
    assert await operator.users.is_complete(JOB, user)
    login = f"{user}:{PASSWORD}"

    assert "OK" in await asyncio.to_thread(etcdctl, server, pki, login, "put", f"{MINE}plan", "1")
    assert "1" in await asyncio.to_thread(etcdctl, server, pki, login, "get", "--prefix", MINE)
    refused: list[tuple[str, ...]] = [
        ("put", f"{THEIRS}plan", "1"),
        ("get", f"{THEIRS}plan"),
        ("get", "--prefix", "/elasticjob/"),
        ("del", "--prefix", THEIRS),
        ("watch", "--prefix", THEIRS),
        ("user", "list"),
        ("role", "grant-permission", user, "readwrite", THEIRS),
        ("auth", "disable"),
    ]
    for words in refused:
        assert "permission denied" in await asyncio.to_thread(etcdctl, server, pki, login, *words), words


def answer(server: EtcdServer, path: str, request: dict[str, Any], token: str = "") -> str:
    """What the gateway says, an error or not."""
    try:
        return json.dumps(server.call(path, request, token))
    except urllib.error.HTTPError as error:
        return error.read().decode()


def token_of(server: EtcdServer, user: str, password: str) -> str:
    return str(server.call("/v3/auth/authenticate", {"name": user, "password": password})["token"])


def nested(**operation: dict[str, Any]) -> dict[str, Any]:
    return {"success": [{"requestTxn": {"success": [operation]}}]}


LEASE = 4711
THEIR_PLAN, MY_PLAN = encode(f"{THEIRS}plan"), encode(f"{MINE}plan")
TRICKS: dict[str, tuple[str, dict[str, Any]]] = {
    "read in a nested transaction": ("kv/txn", nested(requestRange={"key": THEIR_PLAN})),
    "write in one": ("kv/txn", nested(requestPut={"key": THEIR_PLAN, "value": "MQ=="})),
    "delete in one": ("kv/txn", nested(requestDeleteRange={"key": THEIR_PLAN})),
    "use their lease in one": ("kv/txn", nested(requestPut={"key": MY_PLAN, "value": "MQ==", "lease": LEASE})),
    "renew their lease": ("lease/keepalive", {"ID": LEASE}),
    "revoke their lease": ("lease/revoke", {"ID": LEASE}),
    "list the keys of their lease": ("lease/timetolive", {"ID": LEASE, "keys": True}),
    "list all leases": ("lease/leases", {}),
    "raise an alarm": ("maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE"}),
    "copy the store": ("maintenance/snapshot", {}),
    "compact the store": ("kv/compaction", {"revision": 1}),
}


async def test_a_runs_user_passes_its_role_by_no_nested_transaction_lease_or_alarm(
    operator: Operator, server: EtcdServer
) -> None:
    await operator.users.create(JOB, run_user(RUN), PASSWORD, RUN)
    root = await asyncio.to_thread(token_of, server, "root", ROOT_PASSWORD)
    server.call("/v3/lease/grant", {"ID": LEASE, "TTL": 60}, root)
    server.call("/v3/kv/put", {"key": THEIR_PLAN, "value": "MQ==", "lease": LEASE}, root)
    token = await asyncio.to_thread(token_of, server, run_user(RUN), PASSWORD)
    said = {trick: answer(server, f"/v3/{path}", request, token) for trick, (path, request) in TRICKS.items()}
    assert {trick: text for trick, text in said.items() if "permission denied" not in text} == {}


async def test_an_etcd_that_does_not_keep_users_apart_is_refused(
    start_etcd: StartEtcd, start_operator: StartOperator
) -> None:
    old = start_etcd("3.4")
    old.call("/v3/kv/put", {"key": THEIR_PLAN, "value": encode("theirs")})
    enable_users(old, {"thief": ("secret", MINE)})
    thief = await asyncio.to_thread(token_of, old, "thief", "secret")
    read, request = TRICKS["read in a nested transaction"]
    assert encode("theirs") in answer(old, f"/v3/{read}", request, thief)
    operator = await start_operator(old.url)
    await until(lambda: operator.view.connectivity is Connectivity.DENIED)
    assert "it is etcd 3.4." in operator.view.error
    assert "upgrade it to 3.4.44, 3.5.30, 3.6.11 or newer" in operator.view.error


async def test_the_operator_publishes_and_removes_a_run_with_its_user_and_role(
    operator: Operator, server: EtcdServer, pki: Pki
) -> None:
    await operator.publish()
    await operator.users.create(JOB, run_user(RUN), PASSWORD, RUN)
    await until(lambda: operator.view.spec is not None)
    await operator.watches.execute(JOB, ClearRun(reason="the job has finished"))
    root = f"root:{ROOT_PASSWORD}"
    assert run_user(RUN) not in await asyncio.to_thread(etcdctl, server, pki, root, "user", "list")
    assert run_user(RUN) not in await asyncio.to_thread(etcdctl, server, pki, root, "role", "list")
    assert await asyncio.to_thread(etcdctl, server, pki, root, "get", "--prefix", MINE) == ""
    await operator.watches.execute(JOB, ClearRun(reason="again, after an operator was killed"))


async def test_the_operator_logs_in_again_when_its_token_expires(operator: Operator, server: EtcdServer) -> None:
    await asyncio.sleep(5)  # simple tokens live for 2 s here
    await operator.publish()
    server.kill()
    server.start_guarded()
    await asyncio.wait_for(operator.has_published(), 30)  # tokens are lost in a restart


REJECTED = {
    "wrong password": ({"password": "guessed"}, Connectivity.DENIED, "authentication failed"),
    "unknown user": ({"username": "stranger"}, Connectivity.DENIED, "authentication failed"),
    "no rights on the prefix": ({"username": "joe", "password": "secret"}, Connectivity.DENIED, "permission denied"),
    "no user": ({"username": "", "password": ""}, Connectivity.DENIED, "user name is empty"),
    "password without a user": ({"username": ""}, Connectivity.NO_CREDENTIALS, "has the key password without username"),
    "no PEM": ({"ca.crt": "x"}, Connectivity.NO_CREDENTIALS, "ca.crt is not a certificate in PEM format"),
    "no key": ({"tls.crt": "x"}, Connectivity.NO_CREDENTIALS, "has the key tls.crt without tls.key"),
}


@pytest.mark.parametrize("case", REJECTED)
async def test_bad_credentials_are_named_and_mended_without_a_restart(
    start_operator: StartOperator, pki: Pki, case: str
) -> None:
    keys, connectivity, words = REJECTED[case]
    operator = await start_operator(**keys)
    await until(lambda: operator.view.connectivity is connectivity and words in operator.view.error)
    assert "guessed" not in operator.view.error
    operator.data = secret_data(pki)
    await until(lambda: operator.view.connectivity is Connectivity.REACHABLE, seconds=30)


async def test_an_etcd_of_another_authority_is_not_trusted(start_operator: StartOperator, tmp_path: Path) -> None:
    operator = await start_operator(**_texts({"ca.crt": Pki(tmp_path / "stranger").ca}))
    await until(lambda: operator.view.connectivity is Connectivity.UNTRUSTED)
    assert "its certificate is not trusted" in operator.view.error


async def test_a_password_is_never_sent_without_tls(etcd_server: EtcdServer, pki: Pki) -> None:
    operator = Operator(etcd_server.url, secret_data(pki))
    await operator.watches.follow(JOB, operator.target)
    await until(lambda: "a password is sent over TLS only" in operator.view.error)
    await operator.watches.close()


async def test_an_etcd_without_authentication_is_rejected_until_it_is_enabled(
    start_etcd: StartEtcd, start_operator: StartOperator
) -> None:
    """Its users would protect nothing."""
    open_etcd = start_etcd()
    operator = await start_operator(open_etcd.url)
    await until(lambda: operator.view.connectivity is Connectivity.DENIED)
    assert "authentication is not enabled" in operator.view.error
    enable_users(open_etcd, {})
    await until(lambda: operator.view.connectivity is Connectivity.REACHABLE, seconds=30)


async def test_an_operator_without_the_role_root_says_that_it_needs_it(start_operator: StartOperator) -> None:
    operator = await start_operator(username="jane", password="secret")
    await operator.is_connected()
    with pytest.raises(Denied, match=r"permission denied.*the operator's user needs the role root"):
        await operator.users.create(JOB, run_user(RUN), PASSWORD, RUN)


async def test_a_missing_secret_is_named(server: EtcdServer) -> None:
    async def read(_: NamespacedName) -> EtcdCredentials:
        raise CredentialsUnusable("Secret ml/etcd does not exist: create it")

    watches = RunWatches(lambda _: None, read_secret=read)
    await watches.follow(JOB, Target(endpoint=server.url, run_id=RUN, secret=SECRET))
    await until(lambda: watches.view(JOB).connectivity is Connectivity.NO_CREDENTIALS)
    assert watches.view(JOB).error == "Secret ml/etcd does not exist: create it"
    await watches.close()


async def test_an_agent_works_with_the_mounted_secret_of_its_run(
    operator: Operator, server: EtcdServer, tmp_path: Path
) -> None:
    await operator.users.create(JOB, run_user(RUN), PASSWORD, RUN)
    with contextlib.closing(connect(server.url, {"credentials": str(await mounted(operator, tmp_path))})) as agent:
        lease = agent.lease(5, lambda _: None)
        agent.put(f"{MINE}members/a", "1", lease=lease.id)
        with pytest.raises(Denied, match=r"permission denied: give user 'elasticjob-0000-1' a role"):
            agent.put(f"{THEIRS}members/a", "1")
        lease.revoke()


async def test_an_etcd_that_demands_certificates_gets_one_of_the_operator_and_one_of_the_run(
    start_etcd: StartEtcd, tmp_path: Path, start_operator: StartOperator
) -> None:
    """They grant no rights: those of the users apply."""
    pki = Pki(tmp_path / "pki", client_auth=True)
    strict = start_etcd(own_pki=pki)
    enable_users(strict, {})
    without = {"ca.crt": pki.ca}
    operator = await start_operator(strict.url, **_texts(without))
    await until(lambda: operator.view.connectivity is Connectivity.UNTRUSTED)
    assert "does not accept the operator's certificate" in operator.view.error
    own = {"tls.crt": pki.certificate("client"), "tls.key": pki.key("client")}
    workers = {"worker.crt": pki.certificate("client"), "worker.key": pki.key("client")}
    operator.data = secret_data(pki, **_texts({**without, **own, **workers}))
    await until(lambda: operator.view.connectivity is Connectivity.REACHABLE, seconds=30)
    await operator.users.create(JOB, run_user(RUN), PASSWORD, RUN)
    folder = await mounted(operator, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"ca.crt", "tls.crt", "tls.key", "username", "password"}
    await asyncio.to_thread(_write_as_agent, strict.url, folder)


async def mounted(operator: Operator, path: Path) -> Path:
    """A folder with what the worker pods of the run get."""
    folder = path / "pod"
    folder.mkdir()
    for name, text in (await operator._read(SECRET)).for_worker_pods(run_user(RUN), PASSWORD).items():
        (folder / name).write_text(text)
    return folder


def _texts(paths: dict[str, str]) -> dict[str, str]:
    return {name: Path(path).read_text() for name, path in paths.items()}


def _write_as_agent(endpoint: str, folder: Path) -> None:
    agent = connect(endpoint, {"credentials": str(folder)})
    agent.put(f"{MINE}members/a", "1")
    agent.close()
