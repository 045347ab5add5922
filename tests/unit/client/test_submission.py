"""From flags to manifests, and what is said about wrong ones."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elasticjob import ElasticJobClient
from elasticjob.decisions import flag_values as values
from elasticjob.decisions.foreign_flags import meant
from elasticjob.decisions.job_request import JobOptions, WorkerRange, check_name, manifest_of, options_of
from elasticjob.decisions.manifests import parse_manifests, with_flags
from elasticjob.errors import InvalidManifestError, UsageError
from elasticjob.sdk.function import command_of, script_of

KUEUE = "kueue.x-k8s.io/"


@pytest.mark.parametrize(
    ("value", "replicas", "expected"),
    [
        (3, None, (3, 3, 3)),
        ("3", None, (3, 3, 3)),
        ("2:4", None, (4, 2, 4)),
        ("2-4", 3, (3, 2, 4)),
        ((2, 4), 2, (2, 2, 4)),
        ("2..4", None, (4, 2, 4)),
    ],
)
def test_workers_are_a_number_or_a_range(value: Any, replicas: int | None, expected: tuple[int, int, int]) -> None:
    assert WorkerRange.of(value, replicas) == WorkerRange(*expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: WorkerRange.of("4:2"), "Did you mean --workers 2:4"),
        (lambda: WorkerRange.of("many"), "Write 4, or 2:4"),
        (lambda: WorkerRange.of(0), "at least one"),
        (lambda: WorkerRange.of("2:4", 5), "--replicas 5 is not between 2 and 4"),
        (lambda: check_name("My Job!"), "For example: my-job"),
        (lambda: check_name("a" * 60), "up to 47"),
        (lambda: check_name("7b-llama"), "For example: job-7b-llama"),
        (lambda: manifest_of(JobOptions("bert", "", ["python"])), "--image"),
        (lambda: manifest_of(JobOptions("bert", "train:1")), "-- python train.py"),
        (lambda: manifest_of(JobOptions("b", "i", ["x"], labels={f"{KUEUE}queue-name": "q"})), "Use --queue q"),
        (lambda: manifest_of(JobOptions("b", "i", ["x"], labels={f"{KUEUE}priority-class": "p"})), "Use --priority p"),
        (lambda: values.pairs("--env", ["LR"]), "--env LR: write NAME=VALUE"),
        (lambda: values.seconds("--since", "5 minutes"), "30s, 5m or 1h30m"),
        (lambda: values.claim_mount("data"), "CLAIM:/path"),
        (lambda: values.claim_mount("data:/data:readonyl"), "readonyl is not ro or rw"),
        (lambda: options_of("bert", "train:1", "x", {"gpu": 8}), "no option gpu.\nDid you mean gpus?"),
        (lambda: options_of("bert", "train:1", "x", {"num_workers": 4}), "no option num_workers"),
        (lambda: values.claim_mount("claimname=data,to=/d"), "to is not one of"),
        (lambda: values.nfs_mount("server=a,path=/b"), "mountpath= is missing"),
        (lambda: values.toleration("a b"), "KEY[=VALUE][:EFFECT]"),
        (lambda: values.port("container=http"), "8080"),
    ],
)
def test_wrong_values_are_explained(call: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)


def test_volumes_and_replicas_are_what_the_flags_say() -> None:
    mounts: list[str | values.Mount] = [
        "data:/data:readonly",
        values.claim_mount("claimname=out,path=/out"),
        values.host_mount("path=/mnt,mount=/host"),
        values.nfs_mount("server=nas,path=/export,mountpath=/nfs,readwrite"),
    ]
    request = JobOptions("bert", "train:1", ["python"], (2, 4), replica_size=2, volumes=mounts, shared_memory="8Gi")
    workers = manifest_of(request)["spec"]["workers"]
    assert workers["replicaSize"] == 2
    pod = workers["template"]["spec"]
    mounted = [(mount["mountPath"], mount.get("readOnly", False)) for mount in pod["containers"][0]["volumeMounts"]]
    assert mounted == [("/data", True), ("/out", False), ("/host", True), ("/nfs", False), ("/dev/shm", False)]
    assert pod["volumes"][3]["nfs"] == {"server": "nas", "path": "/export"}
    assert pod["volumes"][4]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_what_is_not_asked_for_is_left_to_the_api() -> None:
    assert manifest_of(JobOptions("bert", "train:1", ["python"])) == {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "bert"},
        "spec": {
            "workers": {
                "replicas": 1,
                "template": {"spec": {"containers": [{"name": "trainer", "image": "train:1", "command": ["python"]}]}},
            }
        },
    }


@pytest.mark.parametrize(
    ("flag", "similar", "said"),
    [
        ("--nnodes", [], "Did you mean --workers MIN:MAX?"),
        ("--project", [], "Did you mean --namespace?"),
        ("--imag", ["--image"], "Did you mean --image?"),
        ("--no-master", [], "Leave it out: all worker pods are alike."),
        ("--xyz", [], ""),
    ],
)
def test_flags_of_other_launchers_are_translated(flag: str, similar: list[str], said: str) -> None:
    assert meant(flag, similar) == said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "job.yaml:1:6"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v1", "elasticjob convert -f job.yaml"),
        ("kind: Pod\napiVersion: v1", "has Pod of v1, not an ElasticJob"),
        ("kind: ElasticJob\napiVersion: elasticjob.dev/v9", "reads elasticjob.dev/v1alpha1"),
        ("kind: ElasticJob\napiVersion: elasticjob.dev/v1alpha1\nmetadata: {}", "metadata.name is missing"),
        (
            "kind: ElasticJob\napiVersion: elasticjob.dev/v1alpha1\nmetadata: {name: a}\n"
            "spec: {workers: {replicas: 1, minReplicas: 2}}",
            "spec.workers.replicas (1) is below minReplicas (2)",
        ),
    ],
)
def test_wrong_manifests_are_explained(text: str, words: str) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        parse_manifests(text, "job.yaml")
    assert words in str(caught.value)


def test_several_documents_and_lists_are_read() -> None:
    one = "{kind: ElasticJob, apiVersion: elasticjob.dev/v1alpha1, metadata: {name: %s}}"
    text = f"{one % 'a'}\n---\nkind: List\napiVersion: v1\nitems:\n- {one % 'b'}\n---\n"
    assert [manifest["metadata"]["name"] for manifest in parse_manifests(text, "x")] == ["a", "b"]


def test_the_options_show_in_the_signature() -> None:
    parameters = inspect.signature(ElasticJobClient.submit).parameters
    assert {"image", "command", "workers", "gpus", "checkpoint_claim"} <= set(parameters)
    assert "options" not in parameters


def _manifest(**workers: Any) -> dict[str, Any]:
    trainer = {"name": "main", "image": "train:1", "env": [{"name": "LR", "value": "1"}, {"name": "A", "value": "b"}]}
    template = {"spec": {"containers": [{"name": "proxy"}, trainer]}}
    spec = {"workers": {"container": "main", "template": template, **workers}}
    return {"kind": "ElasticJob", "metadata": {"name": "bert"}, "spec": spec}


def test_flags_change_the_manifest_that_they_are_given_with() -> None:
    options = JobOptions("", "", env={"LR": "0.1"}, gpus=8, workers="2:4", queue="team", suspend=True)
    (changed,) = with_flags([_manifest(replicas=1, maxReplicas=1)], options, resize=True)
    workers = changed["spec"]["workers"]
    assert [workers[item] for item in ("replicas", "minReplicas", "maxReplicas")] == [4, 2, 4]
    proxy, trainer = workers["template"]["spec"]["containers"]
    assert proxy == {"name": "proxy"}
    assert trainer["env"] == [{"name": "A", "value": "b"}, {"name": "LR", "value": "0.1"}]
    assert trainer["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert changed["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert changed["spec"]["suspend"] is True


def test_a_manifest_keeps_its_size_unless_workers_says_another() -> None:
    elastic = _manifest(replicas=4, minReplicas=2, maxReplicas=8)
    (kept,) = with_flags([elastic], JobOptions("", "", gpus=1))
    assert [kept["spec"]["workers"][item] for item in ("replicas", "minReplicas", "maxReplicas")] == [4, 2, 8]
    (one,) = with_flags([elastic], JobOptions("", ""), resize=True)
    assert {name: one["spec"]["workers"].get(name) for name in ("replicas", "minReplicas")} == {
        "replicas": 1,
        "minReplicas": None,
    }


def test_flags_for_several_manifests_are_refused() -> None:
    assert with_flags([_manifest(), _manifest()], JobOptions("", "")) == [_manifest(), _manifest()]
    with pytest.raises(UsageError, match="There are 2 manifests"):
        with_flags([_manifest(), _manifest()], JobOptions("", "", gpus=8))


def train_with(lr: float, steps: int = 1) -> None:
    print(lr, steps)


def test_a_function_travels_with_its_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    script = script_of(train_with, {"lr": 0.5})
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102 as the pod runs it
    assert capfd.readouterr().out == "0.5 1\n"
    assert "pip install" in " ".join(command_of(script, packages=["numpy"]))


def test_a_script_travels_with_its_arguments(tmp_path: Path) -> None:
    """In the pod's command; here, `python3 -m elasticjob_runtime` is plain Python."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = command_of('import sys\nprint(sys.argv[1:], "it\'s")\nprint(__file__)', ["--lr", "0.1 x"])
    files = set[str]()
    for job in ({}, {"ELASTICJOB_UID": f"{uuid.uuid4()}"}, {"ELASTICJOB_UID": f"{uuid.uuid4()}"}):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **job}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said, file = done.stdout.splitlines()
        assert said == "['--lr', '0.1 x'] it's"
        files.add(file)
    assert len(files) == 3, "jobs on one machine have a file each"
    with pytest.raises(UsageError, match="too long"):
        command_of("#" * 100_001)


RATE = 0.1


def complete() -> None:
    """All that it reads is in it, or is Python's."""
    import os as system

    class Reader:
        size = 2
        half = size // 2

    def count(left: int) -> int:
        return left and 1 + count(left - 1)

    print([system.sep * number for number in range(count(Reader.half))], __name__)


def test_a_function_that_imports_what_it_uses_travels() -> None:
    assert "def complete" in script_of(complete, {})


def test_functions_that_cannot_travel_are_rejected() -> None:
    outside = input = 3  # noqa: A001

    def closure() -> None:
        print(outside)

    def counter() -> None:
        nonlocal outside
        outside += 1

    def like_a_builtin() -> None:
        print(input)

    def reader() -> None:
        print([json.dumps(os.environ.get(item)) for item in "a"])

    def with_default(lr: float = RATE) -> None:
        print(lr)

    for function, args, words in (
        (closure, {}, "lack: outside"),
        (counter, {}, "lack: outside"),
        (like_a_builtin, {}, "lack: input"),
        (reader, {}, "lack: os.\nImport modules inside the function"),
        (with_default, {}, "lack: RATE"),
        (train_with, {"rate": 1}, "cannot be called"),
        (train_with, {"lr": object()}, "cannot be called"),
        (len, {}, "source"),
    ):
        with pytest.raises(UsageError, match=words):
            script_of(function, args)
