"""Commands that messages suggest reach the same cluster."""

from __future__ import annotations

import pytest
from elasticjob.decisions.commands import addressed
from elasticjob.decisions.flag_values import job_name
from elasticjob.decisions.stacks import command_in
from elasticjob.decisions.waiting import Target, target_of
from elasticjob.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Delete it: elasticjob delete bert", "Delete it: elasticjob delete -n ml --context my\\ prod bert"),
        ("See: elasticjob logs bert -n other", "See: elasticjob logs --context my\\ prod bert -n other"),
        ("All: elasticjob list -A", "All: elasticjob list --context my\\ prod -A"),
        ("Run: kubectl cordon n1", "Run: kubectl --context my\\ prod cordon n1"),
        ("Ask your cluster administrator: kubectl get nodes", "Ask your cluster administrator: kubectl get nodes"),
        ("elasticjob is not installed", "elasticjob is not installed"),
        ("a: elasticjob suspend a\nb", "a: elasticjob suspend -n ml --context my\\ prod a\nb"),
    ],
)
def test_suggested_commands_carry_what_the_user_gave(text: str, expected: str) -> None:
    expected = expected.replace("my\\ prod", "'my prod'")
    assert addressed(text, [("-n", "ml"), ("--context", "my prod"), ("--kubeconfig", "")]) == expected
    assert addressed(text, []) == text


@pytest.mark.parametrize(
    "given", ["bert", "ej/bert", "elasticjobs/bert", "elasticjob.elasticjob.dev/bert", "ElasticJob/bert"]
)
def test_a_job_is_named_as_kubectl_prints_it(given: str) -> None:
    assert job_name(given) == "bert"


@pytest.mark.parametrize("given", ["", "a b", "../pods", "a/../../b", "pod/bert", "bert?x=1", "Bert"])
def test_what_cannot_be_the_name_of_a_job_is_asked_of_no_server(given: str) -> None:
    with pytest.raises(UsageError):
        job_name(given)


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("Succeeded", Target.SUCCEEDED),
        ("condition=Running", Target.RUNNING),
        ("condition=failed=true", Target.FAILED),
        ("delete", Target.DELETED),
        ("deleted", Target.DELETED),
    ],
)
def test_states_are_named_as_kubectl_names_them(given: str, target: Target) -> None:
    assert target_of(given) is target
    with pytest.raises(UsageError):
        target_of("condition=Great")


def test_the_stacks_are_read_by_the_python_that_started_the_runtime() -> None:
    injected = {"name": "trainer", "command": ["/opt/conda/bin/python", "/opt/elasticjob/launch.py", "train.py"]}
    own = {"name": "other", "command": ["train.sh"]}
    pod = {"spec": {"containers": [injected, own]}}
    assert command_in(pod, "trainer")[0] == "/opt/conda/bin/python"
    assert command_in(pod, "other")[0] == command_in({}, "none")[0] == "python3"
