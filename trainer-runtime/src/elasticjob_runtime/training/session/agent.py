"""What a session needs from its agent, over the agent's socket.

    worker: {"type": "hello", "in_place": true, "local_rank": 0, "pid": 123}
            it can continue under another plan
    agent:  {"type": "plan", "in_place": true, "round": 3, "attempt": "...", "step_grace": 0.0,
             "evaluation_grace": 0.0,
             "environment": {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": ..., "MASTER_PORT": ...,
                             "ELASTICJOB_ROUND": "3", "ELASTICJOB_FENCE": ...},
             "replicas": {"place": 0, "count": 3, "store": "10.0.0.7:29400"}}
            with --replica-size: this replica's place among those of the plan, how many they are, and where they meet;
            else null. The environment is that of the replica's own world then.
            it continues under this plan; environment null: it is not in the plan, and waits for the next one. Then
            "others": how many replicas are in the plan; 0 without --replica-size
    worker: {"type": "plan-state", "state": "heard", "round": 3, "attempt": "...", "local_rank": 0,
             "time": 1767225600.0}
            sent at once by a thread of its own, whatever the training does
    worker: {"type": "plan-state", "state": "arrived", ...}
            its training has left the world before, and waits for the other processes of the plan
    worker: {"type": "plan-state", "state": "waiting", ...}
            it is in no world, and waits for a plan that includes it
    worker: {"type": "plan-state", "state": "formed", ...}
            it has the process group of the new world
    worker: {"type": "plan-state", "state": "entered", ..., "committed": 120}
            the new world is formed, and this process has the agreed state
    worker: {"type": "plan-state", "state": "failed", ..., "why": "..."}
            it could not be formed; the process waits for another plan

    worker: {"type": "saves-at-end", "local_rank": 0}
            it saves before its last world ends
    agent:  {"type": "plan", ..., "environment": null, "ends": true, "saves": true}
            all members leave, and this is the end of its last world; with `saves`, this process saves for all. It says
            that it waits afterwards, and is killed

A plan without `in_place` is ignored: the agent restarts the processes.
"""

from __future__ import annotations

import os
import time
from typing import Any

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.channel import own_local_rank
from elasticjob_runtime.training.link import AgentLink, NoAgentError
from elasticjob_runtime.training.session.world import World


class SessionAgent:
    """`hello` and `next_world` are called by one thread, `report` by any."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link

    def hello(self) -> None:
        """Says that this process can continue in place."""
        self._link.tell({"type": "hello", "in_place": True, "local_rank": own_local_rank(), "pid": os.getpid()})

    def saves_at_end(self) -> None:
        """Says that this process saves before its last world ends. Any thread."""
        self._link.tell({"type": "saves-at-end", "local_rank": own_local_rank()})

    def next_world(self, timeout: float) -> World | None:
        """The next plan; None if none arrives within `timeout` seconds. Raises NoAgentError."""
        message = self._link.next_plan(timeout)
        return World.parse(message) if message is not None and message.get("in_place") else None

    def report(self, state: str, world: World, **fields: Any) -> None:
        """How far this process is with a plan: `heard`, `arrived`, `formed`, `entered`, `waiting` or `failed`. Never
        blocks."""
        self._link.tell({
            "type": "plan-state", "state": state, "round": world.round, "attempt": world.attempt,
            "local_rank": own_local_rank(), "time": time.time(), **fields,
        })  # fmt: skip


def connect() -> SessionAgent | None:
    """None: no agent started this process, or one that restarts it at every change."""
    if os.environ.get(Env.IN_PLACE) != "1":
        return None
    try:
        return SessionAgent(AgentLink())
    except NoAgentError:
        return None
