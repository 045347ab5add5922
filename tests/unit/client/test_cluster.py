"""Kubeconfigs, credentials, and what error answers mean."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob.cluster.api_errors import ConflictError, ServerBusyError, api_error
from elasticjob.cluster.credentials import Credentials
from elasticjob.cluster.kubeconfig import ClusterAccess, find, in_cluster, paths, read, select
from elasticjob.errors import (
    ElasticJobError,
    ForbiddenError,
    InvalidManifestError,
    NotFoundError,
    NotInstalledError,
    UnreachableError,
    UsageError,
)


def config(name: str, server: str = "https://one", **user: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
        "users": [{"name": name, "user": user or {"token": "secret"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "ml"}}],
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def target(folder: Path, content: Any, context: str | None = None) -> ClusterAccess:
    """Of a kubeconfig with this content."""
    return select(read([write(folder / "c", content)], explicit=True), context, None)


def login(log: Path, code: str) -> dict[str, Any]:
    """A program that logs in by this code."""
    return {"command": sys.executable, "args": ["-c", code], "env": [{"name": "LOG", "value": str(log)}]}


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", config("one")), write(tmp_path / "b", config("two", "https://two/"))
    files = paths(None, {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}:{two}"})
    merged = read(files, explicit=False)
    assert select(merged, None, None).server == "https://one"
    target = select(merged, "two", "mine")
    assert (target.server, target.namespace, target.token) == ("https://two", "mine", "secret")
    assert target.ca_file == str(tmp_path / "ca.crt"), "relative to its file"


@pytest.mark.parametrize(
    ("content", "context", "words"),
    [
        (config("one"), "three", "There is no context 'three' in the kubeconfig.\nKnown contexts: one"),
        ({"contexts": []}, None, "no current context"),
        (config("one") | {"clusters": []}, None, "has no server"),
        (config("one", **{"client-key-data": "?"}), None, "not base64"),
        ("text", None, "is not a kubeconfig"),
        (None, None, "no current context"),
    ],
)
def test_wrong_kubeconfigs_are_explained(tmp_path: Path, content: Any, context: str | None, words: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        target(tmp_path, content, context)
    assert words in str(caught.value)


def test_a_kubeconfig_that_is_not_text_is_explained(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"\xff\xfe")
    with pytest.raises(UnreachableError, match="is not text in UTF-8"):
        read([tmp_path / "c"], explicit=True)


def test_without_a_cluster_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UnreachableError, match="no cluster to talk to") as caught:
        find(None, None, None)
    assert "KUBECONFIG" in caught.value.remedy


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("ml\n")
    target = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, None, tmp_path)
    assert target is not None
    assert (target.server, target.namespace) == ("https://[fd00::1]:443", "ml")
    assert Credentials(target).headers() == {"Authorization": "Bearer t"}


def test_a_program_logs_in_again_when_its_token_is_not_accepted(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    code = (
        "import json, pathlib, os; p = pathlib.Path(os.environ['COUNT']); n = len(p.read_text()) if p.exists() else 0; "
        "p.write_text('x' * (n + 1)); print(json.dumps({'status': {'token': f't{n}'}}))"
    )
    command = {"command": sys.executable, "args": ["-c", code], "env": [{"name": "COUNT", "value": str(counter)}]}
    credentials = Credentials(ClusterAccess("https://x", command=command))
    assert credentials.headers() == credentials.headers() == {"Authorization": "Bearer t0"}
    assert credentials.forget()
    assert credentials.headers() == {"Authorization": "Bearer t1"}
    assert not Credentials(ClusterAccess("https://x", token="fixed")).forget()


@pytest.mark.parametrize(
    ("user", "acting", "headers"),
    [
        ({"token": "t"}, {}, []),
        (
            {"as": "ann", "as-groups": ["ml", "dev"], "as-uid": "7", "as-user-extra": {"Team/X": ["a", "b"]}},
            {},
            [
                ("Impersonate-User", "ann"),
                ("Impersonate-Group", "ml"),
                ("Impersonate-Group", "dev"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Extra-team%2Fx", "a"),
                ("Impersonate-Extra-team%2Fx", "b"),
            ],
        ),
        ({"as": "ann"}, {"as-groups": ["ml"]}, [("Impersonate-User", "ann"), ("Impersonate-Group", "ml")]),
        (
            {"as": "ann", "as-groups": ["dev"], "as-uid": "7"},
            {"as": "eve", "as-groups": ["ml"]},
            [("Impersonate-User", "eve"), ("Impersonate-Group", "ml"), ("Impersonate-Uid", "7")],
        ),
    ],
)
def test_a_kubeconfig_may_act_as_another_user_and_each_flag_takes_precedence(
    user: dict[str, Any], acting: dict[str, Any], headers: list[tuple[str, str]], tmp_path: Path
) -> None:
    found = find(str(write(tmp_path / "c", config("one", **user))), None, None, acting)
    assert list(found.impersonate) == headers


def test_a_group_needs_a_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add --as USER"):
        find(str(write(tmp_path / "c", config("one"))), None, None, {"as-groups": ["ml"]})


@pytest.mark.parametrize(
    ("command", "run"),
    [("bin/login", "FOLDER/bin/login"), ("./login", "FOLDER/login"), ("login", "login"), ("/x", "/x")],
)
def test_the_relative_path_of_a_login_program_starts_where_the_kubeconfig_is(
    tmp_path: Path, command: str, run: str
) -> None:
    found = target(tmp_path, config("one", exec={"command": command}))
    assert found.command["command"] == run.replace("FOLDER", str(tmp_path))


def test_the_token_file_of_a_kubeconfig_comes_before_its_token(tmp_path: Path) -> None:
    user = {"token": "old", "tokenFile": str(tmp_path / "token")}
    found = target(tmp_path, config("one", **user))
    credentials = Credentials(found)
    assert credentials.headers() == {"Authorization": "Bearer old"}, "while there is no such file"
    (tmp_path / "token").write_text("new")
    assert Credentials(found).headers() == {"Authorization": "Bearer new"}


def test_a_login_program_is_told_the_cluster_if_it_asks(tmp_path: Path) -> None:
    code = (
        "import os; open(os.environ['LOG'], 'w').write(os.environ['KUBERNETES_EXEC_INFO']); print('{\"status\": {}}')"
    )
    log = tmp_path / "log"
    content = config("one", exec={**login(log, code), "provideClusterInfo": True})
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority"]
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "ml"}}
    cluster |= {"certificate-authority-data": "Y2E=", "tls-server-name": "api", "extensions": [extension]}
    Credentials(target(tmp_path, content)).headers()
    assert json.loads(log.read_text())["spec"]["cluster"] == {
        "server": "https://one",
        "tls-server-name": "api",
        "certificate-authority-data": "Y2E=",
        "config": {"audience": "ml"},
    }


def test_a_program_logs_in_once_for_many_threads(tmp_path: Path) -> None:
    code = "import json, os; open(os.environ['LOG'], 'a').write('x'); print(json.dumps({'status': {'token': 't'}}))"
    log = tmp_path / "log"
    credentials = Credentials(ClusterAccess("https://x", command=login(log, code)))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: credentials.headers(), range(8)))
    assert answers == [{"Authorization": "Bearer t"}] * 8
    assert log.read_text() == "x"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"command": "no-such-login", "installHint": "Install it from there."}, "Install it from there."),
        ({"command": "false"}, "false could not log in"),
        ({"command": "true"}, "true printed no credentials"),
        ({"command": "echo", "args": ['{"status": null}'], "env": [{"name": "A"}]}, "echo printed no credentials"),
    ],
)
def test_a_program_that_cannot_log_in_is_named(command: dict[str, Any], words: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        Credentials(ClusterAccess("https://x", command=command)).headers()
    assert words in str(caught.value)


JOB = "/apis/elasticjob.dev/v1alpha1/namespaces/ml/elasticjobs/bert"
FORBIDDEN = (
    'elasticjobs.elasticjob.dev is forbidden: User "ann" cannot create resource "elasticjobs" in API group '
    '"elasticjob.dev" in the namespace "ml"'
)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, {}, ForbiddenError, "does not accept your credentials"),
        (403, {"message": FORBIDDEN}, ForbiddenError, "User ann has no right to create elasticjobs in namespace ml."),
        (
            403,
            {"message": FORBIDDEN},
            ForbiddenError,
            "kubectl create rolebinding ann-edit --clusterrole=edit --user=ann",
        ),
        (403, {"message": "pods is forbidden: exceeded quota"}, ForbiddenError, "exceeded quota"),
        (404, {"details": {}}, NotInstalledError, "helm install elasticjob"),
        (
            404,
            {"details": {"name": "bert", "kind": "elasticjobs"}},
            NotFoundError,
            "no ElasticJob bert in namespace ml",
        ),
        (404, {"details": {"name": "ml", "kind": "namespaces"}}, NotFoundError, "There is no namespace ml."),
        (409, {"reason": "Conflict", "message": "changed"}, ConflictError, "changed"),
        (
            422,
            {"details": {"causes": [{"field": "spec.workers", "message": "wrong"}]}},
            InvalidManifestError,
            "  spec.workers: wrong",
        ),
        (503, {"message": "starting"}, ServerBusyError, "cannot answer now: starting"),
        (418, {"message": "teapot"}, ElasticJobError, "teapot"),
    ],
)
def test_error_answers_are_explained(
    status: int, body: dict[str, Any], kind: type[ElasticJobError], words: str
) -> None:
    error = api_error(status, json.loads(json.dumps(body)), JOB, "ml", "https://x")
    assert type(error) is kind or isinstance(error, kind)
    assert words in str(error)


def test_only_what_is_in_a_namespace_is_said_to_be_missing_there() -> None:
    body = {"details": {"name": "all", "kind": "clusterqueues"}}
    error = api_error(404, body, "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/all", "ml", "https://x")
    assert str(error) == "There is no ClusterQueue all."
