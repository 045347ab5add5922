"""The environment of a worker process: torchrun's variables and ElasticJob's own.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py (`_start_workers`) and
elastic/multiprocessing/api.py of torch 2.15. A test compares the two for the installed torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from elasticjob_runtime.contract import Env, Fence, PlanValue, ReplicaValue
from elasticjob_runtime.membership.view import Plan

RES_OPTIONS = "timeout:1 attempts:2"
"""For glibc's resolver (resolv.conf(5)) in the zygote, store host and workers, unless set otherwise. torch resolves the
name of the store that it connects to, only to log it: while DNS does not answer, every restart would wait for the
resolver's default timeout of 10 s."""

ACK_TIMEOUT = 2.0
"""s for a worker process to say that it has heard of a plan. A thread of its own does that, whatever the training does:
a process that does not is frozen."""

ARRIVE_TIMEOUT = 30.0
"""s for a worker process to end or interrupt its step and meet the others, which wait for it. Longer: an evaluation
between two steps may take longer. Shorter: one that is stuck in a kernel holds up the others for less."""

STOPPED_TIMEOUT = 2.0
"""s that a worker process may be stopped. Tools that stop a process to look at it take less."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GroupSpec:
    """What all worker processes of one agent have in common, in all rounds."""

    run_id: str
    role: str
    nproc: int
    max_restarts: int
    master_port: int | None = None
    """Set by flag; None: use the plan's."""
    virtual_local_rank: bool = False
    in_place: bool = True
    """Worker processes may continue under another plan."""
    no_auto_progress: bool = False
    """The optimizer steps of the worker processes are not counted."""
    ack_timeout: float = ACK_TIMEOUT
    """s for a worker process to acknowledge a plan under which it continues; 0: no limit."""
    arrive_timeout: float = ARRIVE_TIMEOUT
    """s for it to end or interrupt its step then; 0: no limit."""
    stopped_timeout: float = STOPPED_TIMEOUT
    """s that a signal may stop a worker process before it counts as failed; 0: no limit."""


def worker_environment(
    base: Mapping[str, str],
    group: GroupSpec,
    plan: PlanValue,
    group_rank: int,
    local_rank: int,
    *,
    error_file: str,
    agent_socket: str,
    replica: ReplicaValue | None = None,
    without_libuv: bool = False,
    alone: bool = False,
) -> dict[str, str]:
    """The complete environment of one worker process: `base`, which is the agent's, and variables of the plan.

    `replica`: it is in the replica's own world, whatever the plan. `without_libuv`: this torch has no libuv, and its
    TCPStore must not use it. `alone`: without a replica, it begins in a world of its own, and enters the plan's later.
    """
    environment = {
        **base,
        "LOCAL_RANK": str(local_rank),
        "ROLE_NAME": group.role,
        "LOCAL_WORLD_SIZE": str(group.nproc),
        **_plan_world(group, plan, group_rank, local_rank),
        "TORCHELASTIC_RESTART_COUNT": str(plan.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(group.max_restarts),
        "TORCHELASTIC_RUN_ID": group.run_id,
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        Env.AGENT_SOCKET: agent_socket,
        Env.LOCAL_RANK: str(local_rank),
        Env.ROUND: str(plan.round),
        Env.FENCE: str(fencing_token(base, plan)),
    }
    if group.nproc > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    if without_libuv:
        environment.setdefault("USE_LIBUV", "0")
    if group.virtual_local_rank:
        environment.update(_virtual_local_rank(base, local_rank))
    if group.in_place and plan.agent_store:
        environment[Env.IN_PLACE] = "1"
    if replica is not None:
        return {**environment, **_replica_world(group, replica, local_rank), Env.REPLICA: str(replica.index)}
    return {**environment, **ALONE} if alone else environment


def _plan_world(group: GroupSpec, plan: PlanValue, group_rank: int, local_rank: int) -> dict[str, str]:
    """The world of all worker processes of a plan."""
    port = group.master_port or plan.master_port
    world = _world(group_rank * group.nproc + local_rank, plan.world_size, group_rank, plan.size)
    return {**world, **_store(plan.master_addr, port, agent=plan.agent_store)}


def _replica_world(group: GroupSpec, replica: ReplicaValue, local_rank: int) -> dict[str, str]:
    """The world of a replica's worker processes, which lasts over plans."""
    members, ordinal = len(replica.members), replica.ordinal
    world = _world(ordinal * group.nproc + local_rank, members * group.nproc, ordinal, members)
    return {**world, **_store(replica.master_addr, replica.master_port, agent=replica.agent_store)}


def _world(rank: int, size: int, group_rank: int, members: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "GROUP_RANK": str(group_rank), "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(size), "GROUP_WORLD_SIZE": str(members), "ROLE_WORLD_SIZE": str(size),
    }  # fmt: skip


def _store(address: str, port: int, *, agent: bool) -> dict[str, str]:
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(agent)}


ALONE = {**_world(0, 1, 0, 1), **_store("127.0.0.1", 0, agent=False)}
"""The variables of a process in a world of its own, which hosts its store on any free port. What concerns this machine
stays: the local rank selects the device."""


def fencing_token(base: Mapping[str, str], plan: PlanValue) -> Fence:
    """Greater than the token of any earlier worker group of the run. Runs are numbered by the operator, or without one
    by the time of their first plan."""
    run = base.get(Env.RUN, "")
    return Fence(int(run) if run.isascii() and run.isdigit() else plan.run_began, plan.store_generation, plan.round)


def _virtual_local_rank(base: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Each worker sees one GPU, as device 0. Raises ValueError if there are fewer visible GPUs than workers."""
    variable = "HIP_VISIBLE_DEVICES" if base.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    visible = base.get(variable)
    device = str(local_rank)
    if visible is not None:
        devices = visible.split(",")
        if local_rank >= len(devices):
            raise ValueError(f"--virtual-local-rank: local rank {local_rank} has no GPU in {variable}={visible}")
        device = devices[local_rank].strip()
    result = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
    if variable == "HIP_VISIBLE_DEVICES":
        result[variable] = device
    return result


def group_rank(plan: Plan) -> int:
    """The member's place in the world of its worker processes. 0 for a member that is not in the plan: its workers are
    in worlds of their own."""
    if plan.replica is not None:
        return plan.replica.ordinal
    return plan.rank.group_rank if plan.rank is not None else 0
