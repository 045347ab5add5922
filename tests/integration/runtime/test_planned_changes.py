"""A planned change gives worker processes that handle SIGTERM time to save, and costs none where the script does not.

test_save_requests.py has what is saved."""

from __future__ import annotations

from elasticjob_runtime.contract import SpecValue

from hack.support import eventually
from tests.integration.runtime.agents import WORKER, Agent, Job


def light(job: Job, names: str, *flags: str, at_sigterm: str) -> list[Agent]:
    return job.start_all(
        names, *flags, script=[str(WORKER), str(job.directory)], environment={"AT_SIGTERM": at_sigterm}
    )


def test_worker_processes_without_a_handler_keep_running_while_others_save(job: Job) -> None:
    """Only rank 0 has a handler; it may need the others until it has saved."""
    light(job, "a", at_sigterm="save")
    eventually(lambda: "a" in job.members, what="a is the first member")
    light(job, "b c", at_sigterm="default")
    before = job.wait_for_training(3)
    assert before[0].member == "a"
    eventually(lambda: job.members["a"].saves, what="the handler is reported")
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, draining=["c"], generation=1).to_json())
    after = job.wait_for_training(2, after=before)
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert {worker.restarts for worker in after} == {0}


def test_only_worker_processes_with_a_handler_get_the_signal(job: Job) -> None:
    """Of two worker processes of one member, the one without a handler keeps running while the other one saves."""
    agent = job.start("a", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    before = job.wait_for_training(1)
    eventually(lambda: job.members["a"].saves, what="the handler is reported")
    job.start("b", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    after = job.wait_for_training(2, after=before)
    assert {worker.restarts for worker in after} == {0}
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert "lost a peer" not in agent.output.split("time to save")[0]
