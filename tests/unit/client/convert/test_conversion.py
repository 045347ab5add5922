"""Which inputs are converted, which stay, and what is said about those that cannot be converted."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob.convert import ConvertError, convert_all
from elasticjob.convert.table import Outcome

from tests.unit.client.convert.goldens import GOLDEN, converted
from tests.unit.client.convert.test_accounting import inputs

Object = dict[str, Any]
OURS: Object = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "x"}, "spec": {}}

TF_JOB: Object = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}


def pytorch_job(**changes: Any) -> Object:
    """A small one. `changes`: of its spec."""
    container = {"name": "pytorch", "image": "a", "command": ["torchrun", "a.py"]}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}, **changes}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}, "spec": spec}


def with_name(name: str) -> Object:
    return pytorch_job() | {"metadata": {"name": name}}


def with_policy(**policy: Any) -> Object:
    return pytorch_job(elasticPolicy=policy)


def workers(job: Object, **options: Any) -> Any:
    return convert_all([job], **options)[0].manifest["spec"]["workers"]


IMPOSSIBLE = {
    "an ElasticJob of ours": ([OURS], "is an ElasticJob of elasticjob.dev/v1alpha1 already"),
    "a kind that is no job": ([{"apiVersion": "v1", "kind": "Pod"}], "cannot convert Pod (v1)"),
    "a runtime alone": ([inputs("trainjob-simple")[1]], "cannot convert ClusterTrainingRuntime"),
    "another operator's job": ([pytorch_job(), TF_JOB], "TFJob/? (kubeflow.org/v1) cannot"),
    "an unknown version": ([pytorch_job(), {**OURS, "apiVersion": "a.io/v9"}], "ElasticJob/x (a.io/v9) cannot"),
    "a TrainJob without its runtime": ([inputs("trainjob-simple")[0]], "--runtime runtime.yaml"),
    "no replica specs": ([pytorch_job(pytorchReplicaSpecs={})], "neither Worker nor Master"),
    "replica specs of a wrong type": ([pytorch_job(pytorchReplicaSpecs=[1])], "is [1], which is not an object"),
    "no template": ([pytorch_job(pytorchReplicaSpecs={"Worker": {}})], "template is missing"),
    "no containers": ([pytorch_job(pytorchReplicaSpecs={"Worker": {"template": {"spec": {}}}})], "no containers"),
    "bounds the wrong way round": ([with_policy(minReplicas=4, maxReplicas=2)], "4, are more than the most, 2"),
    "a number in quotes": ([with_policy(minReplicas="4")], "minReplicas is '4', which is not a number"),
    "a name that is too long": ([with_name("a" * 48)], "--name"),
    "a name that is no Service's": ([with_name("1st")], "--name"),
    "no name": ([pytorch_job() | {"metadata": {}}], "metadata.name is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_input_that_cannot_be_converted_is_refused_in_a_sentence(documents: list[Object], words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        convert_all(documents)
    assert words in str(caught.value)


def test_an_elasticjob_of_ours_stays_as_it_is_next_to_a_job_that_is_converted() -> None:
    assert next(item.manifest for item in convert_all([OURS, pytorch_job()])) == OURS


def test_a_name_can_be_given() -> None:
    (found,) = convert_all([with_name("a" * 60)], name="short")
    assert found.manifest["metadata"]["name"] == "short"
    with pytest.raises(ConvertError, match="2"):
        convert_all([pytorch_job(), pytorch_job()], name="short")


def test_a_runtime_can_come_from_another_file() -> None:
    job, runtime = inputs("trainjob-simple")
    assert convert_all([job], [runtime])[0].manifest == converted("trainjob-simple")[0].manifest
    assert (GOLDEN / "trainjob-elastic" / "runtime.yaml").exists()


def test_a_runtime_for_something_else_than_torch_is_refused() -> None:
    job, runtime = inputs("trainjob-simple")
    runtime["spec"]["mlPolicy"] = {"numNodes": 2, "mpi": {"numProcPerNode": 2}}
    with pytest.raises(ConvertError, match="trains with mpi"):
        convert_all([job, runtime])


@pytest.mark.parametrize(
    ("policy", "replicas", "expected"),
    [
        (None, 2, (2, None, None)),
        ({}, 2, (2, None, None)),
        ({"minReplicas": 1, "maxReplicas": 3}, 2, (2, 1, 3)),
        ({"maxReplicas": 3}, 2, (3, None, None)),
        ({"minReplicas": 1}, 2, (1, None, None)),
        ({"minReplicas": 3, "maxReplicas": 5}, 1, (3, 3, 5)),
        ({"minReplicas": 1, "maxReplicas": 2}, 9, (2, 1, 2)),
        ({"minReplicas": 2, "maxReplicas": 2}, 2, (2, None, None)),
    ],
)
def test_sizes_are_those_that_the_training_operator_would_use(
    policy: Object | None, replicas: int, expected: tuple[int | None, ...]
) -> None:
    job = pytorch_job(elasticPolicy=policy)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
    found = workers(job)
    assert (found["replicas"], found.get("minReplicas"), found.get("maxReplicas")) == expected


@pytest.mark.parametrize(
    ("flags", "replicas", "allowed", "outcome"),
    [
        pytest.param("--nnodes=2:8 --node_unit=2", 4, [2, 4, 6, 8], Outcome.CARRIED, id="multiples within the bounds"),
        pytest.param("--nnodes=2:8 --node_unit=1", 4, None, Outcome.IRRELEVANT, id="every number"),
        pytest.param("--node_unit=2", 4, None, Outcome.IRRELEVANT, id="a job of a fixed size"),
        pytest.param("--nnodes=3:8 --node_unit=2", 4, None, Outcome.LOST, id="bounds that do not fit"),
        pytest.param("--nnodes=2:1000 --node_unit=2", 4, None, Outcome.LOST, id="more sizes than a job lists"),
    ],
)
def test_a_node_unit_becomes_a_list_of_sizes(
    flags: str, replicas: int, allowed: list[int] | None, outcome: Outcome
) -> None:
    container = {"name": "main", "image": "a", "command": ["dlrover-run", *flags.split(), "a.py"]}
    worker = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "j"},
        "spec": {"replicaSpecs": {"worker": worker}},
    }
    (found,) = convert_all([job])
    assert found.manifest["spec"]["workers"].get("allowedReplicas") == allowed
    flag = next(note for note in found.notes if note.path[-1] == len(flags.split()))
    assert flag.outcome is outcome


def test_no_replicas_suspend_the_job() -> None:
    job = pytorch_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    (found,) = convert_all([job])
    assert found.manifest["spec"]["suspend"] is True
    assert found.manifest["spec"]["workers"]["replicas"] == 1


def test_metrics_of_a_job_of_a_fixed_size_are_reported() -> None:
    (found,) = convert_all([pytorch_job(elasticPolicy={"metrics": [{"type": "Resource"}]})])
    assert "scaling" not in found.manifest["spec"]
    assert [note.path[-1] for note in found.notes if note.outcome == "lost"] == ["metrics"]


def test_a_script_under_python_runs_once_in_each_pod() -> None:
    job = pytorch_job(nprocPerNode="8")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "a.py"]
    assert workers(job)["procsPerWorker"] == 1


@pytest.mark.parametrize(
    ("given", "becomes"), [("auto", "auto"), ("4", 4), (4, 4), ("cpu", "cpu"), ("xpu", None), ("0", None)]
)
def test_processes_per_node_are_a_number_or_a_kind_of_device(given: Any, becomes: Any) -> None:
    assert workers(pytorch_job(nprocPerNode=given)).get("procsPerWorker") == becomes


@pytest.mark.parametrize("policy", [{"ttlSecondsAfterFinished": "7"}, {"suspend": 0}, {"cleanPodPolicy": True}])
def test_a_value_of_a_wrong_type_is_reported_rather_than_carried_over(policy: Object) -> None:
    (found,) = convert_all([pytorch_job(runPolicy=policy)])
    assert "lifecycle" not in found.manifest["spec"]
    assert [note.path for note in found.notes if note.outcome == "lost"] == [("spec", "runPolicy", *policy)]
