"""`stacks`: what every rank is doing now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob.cli.options import AllWorkers, JobName, Rank, Replica, Worker, check_choice, chosen, connect
from elasticjob.errors import ElasticJobError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticjob.sdk.client import ElasticJobClient
    from elasticjob.state import JobState

AT_ONCE = 16
"""Worker pods that are asked at the same time."""


def stacks(
    name: JobName,
    rank: Rank = None,
    replica: Replica = None,
    worker: Worker = None,
    everything: AllWorkers = False,
) -> None:
    """Show the stacks of all worker processes, which go on; after a hang has ended the job, those of then."""
    from concurrent.futures import ThreadPoolExecutor

    from elasticjob.cli.output import say
    from elasticjob.cluster.kubectl import execute
    from elasticjob.decisions.log_selection import Selection, choose_workers
    from elasticjob.decisions.stacks import command_in
    from elasticjob.state import job_state, worker_states

    if chosen.get("local"):
        raise UsageError("stacks needs worker pods, which jobs on this machine do not have.")
    check_choice(rank, replica, worker, everything=everything)
    client = connect()
    job = job_state(client.cluster.job(name, client.namespace))
    pods = {pod["metadata"]["name"]: pod for pod in client.cluster.workers(name, client.namespace)}
    selection = Selection(rank=rank, replica=replica, worker=worker, everything=everything)
    running = [pod for pod in choose_workers(job, worker_states(pods.values()), selection) if pod.phase == "Running"]
    if not running:
        say(_kept(job))
        return
    flags = _kubectl_flags(client)
    commands = {pod.name: command_in(pods[pod.name], job.container) for pod in running}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = list(pool.map(lambda pod: execute(flags, pod, job.container, commands[pod]), commands))
    for pod, output in zip(running, outputs, strict=True):
        say(f"{pod.name}{f' on {pod.node}' if pod.node else ''}\n{output.text.rstrip() or f'  {output.error}'}\n")
    if not any(output.text for output in outputs):
        raise ElasticJobError(
            f"No worker pod of {name} has given its stacks.",
            "It needs the right to create pods/exec, and worker processes that have begun: see above.",
        )


def _kept(job: JobState) -> str:
    """Of the last failure. Raises NotFoundError."""
    message = job.failure.message if job.failure is not None else ""
    if "Stacks of rank" not in message:
        raise NotFoundError(
            f"{job.name} has no worker pod that runs, and its last failure has no stacks.",
            f"What is known of it: elasticjob describe {job.name}",
        )
    return message


def _kubectl_flags(client: ElasticJobClient) -> Sequence[str]:
    """That name the same cluster, user and namespace."""
    flags = [f"--namespace={client.namespace}"]
    for flag, key in (("context", "context"), ("kubeconfig", "kubeconfig"), ("as", "as_user"), ("as-uid", "as_uid")):
        flags += [f"--{flag}={chosen[key]}"] if chosen.get(key) else []
    return [*flags, *(f"--as-group={group}" for group in chosen.get("as_group") or ())]
