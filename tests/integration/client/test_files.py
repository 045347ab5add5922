"""init, plot, submit -f and shell completion: what is written and read."""

from __future__ import annotations

import datetime
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from elasticjob.cli.app import run
from elasticjob.errors import Exit

from tests.integration.client.conftest import Operator, Result
from tests.integration.operator.kube import Kube, Namespace

Cli = Callable[..., Result]


def test_the_starter_is_accepted_by_the_api_server(cli: Cli, tmp_path: Path, ns: Namespace) -> None:
    folder = tmp_path / "My project"
    assert run(["init", str(folder), "--image", "me/train:1"]) == Exit.OK
    result = cli("submit", "-f", str(folder / "job.yaml"))
    assert result.code == Exit.OK, result.err
    container = ns.job("my-project")["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["command"]) == ("me/train:1", ["python3", "train.py"])
    assert "No volume" not in result.err, "checkpoints outlive the worker pods"
    (claim,) = yaml.safe_load_all((folder / "checkpoints.yaml").read_text())
    volume = ns.job("my-project")["spec"]["checkpoint"]["volume"]
    assert volume == {"persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert ns.create("persistentvolumeclaims", claim)


def test_the_starter_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("mine")
    assert run(["init", str(tmp_path), "--name", "a"]) == Exit.ERROR
    assert "has train.py already" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == "mine"
    assert run(["init", str(tmp_path), "--name", "a", "--force"]) == Exit.OK


def trained(folder: Path, *words: str, epochs: int) -> str:
    """What the starter's script has printed."""
    environment = {**os.environ, "EPOCHS": str(epochs), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_the_starter_s_script_trains_and_continues_from_its_checkpoint(tmp_path: Path) -> None:
    run(["init", str(tmp_path), "--name", "a"])
    for epochs, first in ((4, "epoch 0, step 10,"), (5, "epoch 3, step 210,")):
        launcher = ("-m", "elasticjob_runtime", "--standalone", "--nproc-per-node=2")
        said = trained(tmp_path, *launcher, "train.py", epochs=epochs)
        assert said.startswith(first), said
    assert (tmp_path / "checkpoints" / "best.pt").exists()


@pytest.mark.nightly
@pytest.mark.torch
def test_the_starter_s_script_stops_early(tmp_path: Path) -> None:
    run(["init", str(tmp_path), "--name", "a"])
    assert "finished after step" in trained(tmp_path, "train.py", epochs=1000)


def test_a_job_whose_checkpoints_are_lost_with_its_pods_is_warned_of(cli: Cli) -> None:
    submitted = cli("submit", "bert", "--image", "train:1", "--", "python3", "train.py")
    assert "No volume outlives the worker pods" in submitted.err
    assert "--checkpoint-claim" in submitted.err
    assert "No volume outlives the worker pods" in cli("describe", "bert").out
    assert "No volume outlives the worker pods" in cli("doctor", "bert").out
    kept = cli("submit", "kept", "--image", "train:1", "--checkpoint-claim", "c", "--", "python3", "train.py")
    assert "No volume" not in kept.err + cli("describe", "kept").out


def test_a_manifest_of_another_namespace_is_not_submitted(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    metadata = {"name": "a", "namespace": "theirs"}
    path.write_text(
        yaml.safe_dump({"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": metadata})
    )
    result = cli("submit", "-f", str(path))
    assert result.code == Exit.USAGE
    assert "says namespace theirs" in result.err


def history(now: datetime.datetime) -> dict[str, object]:
    def at(seconds: int) -> str:
        return (now + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    changes = [
        {"time": at(0), "type": "Round", "reason": "Start", "round": 1, "worldSize": 4, "resumeSeconds": 5.0},
        {
            "time": at(60),
            "type": "Round",
            "reason": "MemberLost",
            "message": "Lost <bert-worker-1>",
            "round": 2,
            "worldSizeBefore": 4,
            "worldSize": 3,
            "stepsLost": 7,
            "resumeSeconds": 1.5,
        },
        {"time": at(120), "type": "Succeeded", "reason": "WorkersSucceeded", "worldSizeBefore": 3},
    ]
    samples = [f"{at(second)} {second * 3} 4 3" for second in range(0, 120, 10)]
    return {"changes": changes, "samples": samples}


def test_a_history_is_drawn_after_the_end_of_the_job(
    cli: Cli, submitted: str, operator: Operator, tmp_path: Path
) -> None:
    now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=5)
    operator.conditions(submitted, "Succeeded")
    operator.status(submitted, history=history(now), round=2, restarts={"total": 1, "byCause": {"NodeLost": 1}})
    file = tmp_path / "report.html"
    assert cli("plot", submitted, "--file", str(file)).code == Exit.OK
    page = file.read_text()
    for words in ("Round 2, MemberLost", "Lost &lt;bert-worker-1&gt;", "4 → 3", "NodeLost", "goodput", "1.5 s"):
        assert words in page
    assert "<script src=" not in page, "self-contained"
    image = tmp_path / "report.svg"
    assert cli("plot", submitted, "--file", str(image)).code == Exit.OK
    shown = ElementTree.fromstring(image.read_text())  # noqa: S314 our own
    assert len(shown.findall(".//{*}polyline")) == 3
    assert "Round 2, MemberLost" in image.read_text()
    picture = tmp_path / "report.png"
    assert cli("plot", submitted, "--file", str(picture)).code == Exit.OK
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (2 * int(shown.attrib["width"]), 2 * int(shown.attrib["height"]))
    again = cli("plot", submitted, "--file", str(file))
    assert again.code == Exit.ERROR
    assert "exists already" in again.err
    assert "MemberLost" in cli("describe", submitted).out


def test_a_job_without_a_history_is_said(cli: Cli, submitted: str, tmp_path: Path) -> None:
    result = cli("plot", submitted, "--file", str(tmp_path / "x.html"))
    assert result.code == Exit.ERROR
    assert "bert has no history yet" in result.err
    assert cli("plot", submitted, "--file", str(tmp_path / "x.docx")).code == Exit.USAGE


@pytest.fixture
def kubeconfig(control_plane: Path, ns: Namespace) -> str:
    """With the namespace of this test as the default."""
    config = yaml.safe_load(control_plane.read_text())
    config["contexts"][0]["context"]["namespace"] = ns.name
    path = control_plane.parent / f"{ns.name}.conf"
    path.write_text(yaml.safe_dump(config))
    return str(path)


COMPLETED = [("elasticjob get b", "bert"), ("elasticjob logs --fo", "--follow")]


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_the_shell_completes_names_of_jobs(submitted: str, kubeconfig: str, words: str, expected: str) -> None:
    environment = {
        "_ELASTICJOB_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert submitted
    assert expected in output([sys.executable, "-m", "elasticjob"], KUBECONFIG=kubeconfig, **environment)


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_kubectl_completes_the_words_of_its_plugin(submitted: str, kubeconfig: str, words: str, expected: str) -> None:
    plugin = Path(sys.executable).with_name("kubectl_complete-elasticjob")
    assert submitted
    found = output([str(plugin), *words.split()[1:]], KUBECONFIG=kubeconfig)
    assert expected in found
    assert found[-1] == ":4", "and no names of files"


def output(command: list[str], **environment: str) -> list[str]:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_each_document_goes_where_it_says_before_any_is_waited_for(
    cli: Cli, ns: Namespace, kube: Kube, kubeconfig: str, tmp_path: Path
) -> None:
    """Of two files, one names another namespace; the other job is created in the context's own."""
    files, there = [], f"/apis/elasticjob.dev/v1alpha1/namespaces/default/elasticjobs/{ns.name}"
    for name, namespace in ((ns.name, ["-n", "default"]), ("here", [])):
        flags = ["--image", "train:1", "--dry-run", *namespace]
        (tmp_path / name).write_text(cli("submit", name, *flags, "--", "python", namespace="").out)
        files += ["-f", str(tmp_path / name)]
    try:
        result = cli("submit", *files, "--kubeconfig", kubeconfig, "--wait", "--timeout", "0s", namespace="")
        assert result.code == Exit.TIMEOUT, result.err
        assert ns.job("here")["metadata"]["namespace"] == ns.name
        assert kube.call("GET", there)["metadata"]["name"] == ns.name
    finally:
        kube.call("DELETE", there)
