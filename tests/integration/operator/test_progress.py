"""What a script reports by Kubeflow's progress protocol is in the job's status: agent, etcd, operator, API server."""

from __future__ import annotations

from hack.support import eventually
from tests.integration.operator.shared import operator
from tests.integration.operator.test_with_real_agents import Training, training

__all__ = ["operator", "training"]

SCRIPT = """
import json, os, pathlib, sys, time, urllib.request

def report(**status):
    token = pathlib.Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"trainerStatus": status}).encode()
    request = urllib.request.Request(
        os.environ["KUBEFLOW_TRAINER_SERVER_URL"], data=body, headers=headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.status == 200

step, stop = 0, pathlib.Path(sys.argv[1])
while not stop.exists():
    step = min(99, step + 1)
    metrics = {"loss": 1 / step, "current_step": step, "total_steps": 100}
    if os.environ["RANK"] == "0":
        report(
            progressPercentage=step,
            estimatedRemainingSeconds=100 - step,
            metrics=[{"name": name, "value": str(value)} for name, value in metrics.items()],
        )
    time.sleep(0.2)
if os.environ["RANK"] == "0":
    report(progressPercentage=100, estimatedRemainingSeconds=0, metrics=[{"name": "train_loss", "value": "0.5"}])
"""
"""Reports as transformers.integrations.KubeflowCallback (5.23) does, and more often."""


def test_a_script_that_reports_to_kubeflow_trainer_shows_its_progress_in_the_status(training: Training) -> None:
    training.script.write_text(SCRIPT, encoding="utf-8")
    training.start(2)
    progress = training.ns.status("digits")["progress"]
    assert 0 < progress["percent"] == progress["step"] == 100 - progress["remainingSeconds"]
    assert progress["totalSteps"] == 100
    assert set(progress["metrics"]) == {"loss"}
    training.stop.touch()
    eventually(lambda: training.ns.is_true("digits", "Succeeded"), what="Succeeded", timeout=60)
    end = training.ns.status("digits")["progress"]
    assert (end["percent"], end["remainingSeconds"], end["metrics"]["train_loss"]) == (100, 0, "0.5")
    assert end["step"] > 0, "the last report names no step"
