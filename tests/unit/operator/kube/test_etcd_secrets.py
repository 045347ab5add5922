"""Reading credentials, and creating a run's user with its Secret, however often that is interrupted."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from elasticjob_operator.credentials import CredentialsUnusable
from elasticjob_operator.kube.client import ApiError, ConflictError, NotFoundError, RejectedError
from elasticjob_operator.kube.etcd_secrets import EtcdSecrets
from elasticjob_operator.planning import CreateRunUser
from elasticjob_runtime.etcd import Unavailable

from tests.unit.operator.builders import make_job

SHARED = ("elasticjob-system", "shared-etcd")
USER, NAME = "elasticjob-u-1", "digits-rendezvous-u-1"
ACTION = CreateRunUser(
    body={"metadata": {"name": NAME}},
    user=USER,
    run_id="u-1",
    credentials=SHARED,
    earlier_user="elasticjob-u-0",
    reason="test",
)


class KilledError(BaseException):
    """The operator is killed."""


class World:
    """The API server's Secrets and etcd's users; `left` writes are made before the operator is killed."""

    def __init__(self) -> None:
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.shared: Mapping[str, str] | Exception = {"username": "root", "password": "top", "ca.crt": "CA"}
        self.passwords: dict[str, str] = {}
        self.complete: set[str] = set()
        self.left = 1000
        self.writes = 0

    def write(self) -> None:
        if not self.left:
            raise KilledError
        self.left -= 1
        self.writes += 1

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if method == "GET":
            if isinstance(self.shared, Exception):
                raise self.shared
            data = {key: base64.b64encode(text.encode()).decode() for key, text in self.shared.items()}
            return {"data": data}
        if method == "POST":
            if body["metadata"]["name"] in self.secrets:
                raise ConflictError(409, "AlreadyExists", "exists")
            if not (query or {}).get("dryRun"):
                self.write()
                self.secrets[body["metadata"]["name"]] = body["stringData"]
            return {}
        if name not in self.secrets:
            raise NotFoundError(404, "NotFound", "not found")
        self.write()
        del self.secrets[name]
        return {}

    async def is_complete(self, _: tuple[str, str], user: str) -> bool:
        return user in self.complete

    async def create(self, _: tuple[str, str], user: str, password: str, run_id: str) -> None:
        assert run_id == "u-1"
        self.write()
        assert user not in self.passwords, "as etcd says: user name already exists"
        self.passwords[user] = password
        self.write()
        self.complete.add(user)

    async def remove(self, _: tuple[str, str], user: str) -> None:
        if user in self.passwords:
            self.write()
            del self.passwords[user]
            self.complete.discard(user)

    @property
    def usable(self) -> bool:
        """Worker pods can log in."""
        secret = self.secrets.get(NAME, {})
        return USER in self.complete and secret.get("password") == self.passwords.get(USER)


def secrets_of(world: World) -> EtcdSecrets:
    return EtcdSecrets(world, SHARED, world)  # type: ignore[arg-type]


async def test_a_run_gets_a_user_and_a_secret_that_has_nothing_of_the_operators() -> None:
    world = World()
    assert await secrets_of(world).create_run_user(make_job(), ACTION)
    assert world.usable
    assert world.secrets[NAME] == {"ca.crt": "CA", "username": USER, "password": world.passwords[USER]}
    before = world.passwords[USER]
    assert not await secrets_of(world).create_run_user(make_job(), ACTION), "another reconciliation"
    assert world.passwords[USER] == before


async def test_worker_pods_get_the_certificate_that_is_meant_for_them() -> None:
    world = World()
    world.shared = {
        "username": "root",
        "password": "top",
        "tls.crt": "own",
        "tls.key": "own key",
        "worker.crt": "theirs",
        "worker.key": "their key",
    }
    await secrets_of(world).create_run_user(make_job(), ACTION)
    found = {key: text for key, text in world.secrets[NAME].items() if key.startswith("tls")}
    assert found == {"tls.crt": "theirs", "tls.key": "their key"}


async def _killed_after(world: World, writes: int) -> bool:
    world.left = writes
    try:
        await secrets_of(world).create_run_user(make_job(), ACTION)
    except KilledError:
        return True
    finally:
        world.left = 1000
    return False


@pytest.mark.parametrize("damage", ["none", "Secret deleted", "user deleted", "an incomplete user", "an earlier run"])
async def test_an_operator_that_is_killed_at_any_write_leaves_a_run_that_the_next_one_mends(damage: str) -> None:
    for writes in range(20):
        world = World()
        match damage:
            case "Secret deleted" | "user deleted":
                await secrets_of(world).create_run_user(make_job(), ACTION)
                if damage == "user deleted":
                    await world.remove(("", ""), USER)
                else:
                    del world.secrets[NAME]
            case "an incomplete user":
                world.passwords[USER] = "lost"
            case "an earlier run":
                world.passwords["elasticjob-u-0"] = "old"
                world.complete.add("elasticjob-u-0")
        killed = await _killed_after(world, writes)
        await secrets_of(world).create_run_user(make_job(), ACTION)
        assert world.usable, f"killed after {writes} writes"
        assert set(world.passwords) == {USER}
        if not killed:
            return
    raise AssertionError("more writes than expected")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (NotFoundError(404, "NotFound", "x"), CredentialsUnusable, "Secret ml/mine does not exist: create it"),
        (RejectedError(403, "Forbidden", "x"), CredentialsUnusable, r"may not read Secret ml/mine: .*jobSecretNames"),
        (ApiError(500, "InternalError", "x"), Unavailable, "Secret ml/mine cannot be read"),
        (ConnectionError("refused"), Unavailable, "Secret ml/mine cannot be read: refused"),
        ({}, CredentialsUnusable, "Secret ml/mine has none of the keys ca.crt, tls.crt, tls.key, username, password"),
        ({"worker.crt": "x", "worker.key": "x"}, CredentialsUnusable, "has none of the keys"),
        ({"username": "x"}, CredentialsUnusable, "Secret ml/mine has the key username without password: add it"),
    ],
)
async def test_an_unusable_secret_is_named_with_the_remedy(answer: Any, kind: type[Exception], words: str) -> None:
    world = World()
    world.shared = answer
    with pytest.raises(kind, match=words):
        await secrets_of(world).read(("ml", "mine"))


async def test_the_shared_secret_must_have_a_user() -> None:
    """Never silently an etcd in which all jobs have the same rights."""
    world = World()
    world.shared = {"ca.crt": "CA", "tls.crt": "c", "tls.key": "k"}
    assert (await secrets_of(world).read(("ml", "mine"))).certificate == "c"
    with pytest.raises(CredentialsUnusable, match=r"has no keys username and password: .*the role root"):
        await secrets_of(world).read(SHARED)


async def test_secrets_appear_in_no_representation() -> None:
    world = World()
    world.shared = {"username": "root", "password": "hunter2", "tls.crt": "c", "tls.key": "hunter2"}
    assert "hunter2" not in repr(await secrets_of(world).read(SHARED))
