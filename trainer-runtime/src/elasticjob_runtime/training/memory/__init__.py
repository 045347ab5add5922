"""Snapshots of the training state in memory, which the agent holds: they survive a SIGKILL of all worker processes.

- `format`, `buffers`, `limits` and `policy` use the standard library only: what a snapshot is, its memory, how often
- `structure` and `copying` take a state apart and put it together, with torch
- `pair` is two buffers, written in turn; `agent_memory` is what a training uses

See docs/design/0023-memory-snapshots.md.
"""

from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training.memory.policy import Pace

if TYPE_CHECKING:
    from elasticjob_runtime.training.memory.agent_memory import AgentMemory, agent_memory_of_this_process
    from elasticjob_runtime.training.memory.pair import Recovered

__all__ = ["AgentMemory", "Pace", "Recovered", "agent_memory_of_this_process"]


def __getattr__(name: str) -> Any:
    """Imports torch only where it is needed: agents read the headers of snapshots."""
    if name in ("AgentMemory", "Recovered", "agent_memory_of_this_process"):
        from elasticjob_runtime.training.memory import agent_memory

        return getattr(agent_memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
