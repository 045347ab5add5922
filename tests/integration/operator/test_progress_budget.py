"""Progress that the budget of all jobs keeps out of the status."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.support import eventually
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents


@pytest.fixture
def operator(start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(ELASTICJOB_PROGRESS_STATUS_WRITES="0")


def test_progress_beyond_the_budget_is_beside_the_job_until_its_state_changes(
    ns: Namespace, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=2)
    agents.progress(100)
    eventually(lambda: ns.status("digits").get("progress", {}).get("step") == 100, what="the first progress")
    for step in (120, 140):
        agents.progress(step, last_checkpoint_step=100, metrics={"loss": 0.25})

        def beside(step: int = step) -> bool:
            found = ns.all("elasticjobprogresses").get("digits")
            return found is not None and found["progress"]["step"] == step

        eventually(beside, what="the newest progress beside the job")
    found = ns.all("elasticjobprogresses")["digits"]
    assert (found["progress"]["lastCheckpointStep"], found["progress"]["metrics"]) == (100, {"loss": "0.25"})
    assert found["metadata"]["ownerReferences"][0]["uid"] == ns.job("digits")["metadata"]["uid"]
    assert ns.status("digits")["progress"]["step"] == 100
    ns.scale("digits", 3)
    eventually(lambda: ns.status("digits").get("desiredReplicas") == 3, what="a change of state")
    assert ns.status("digits")["progress"]["step"] == 140, "which has the progress of that moment"
