"""Snapshots of the training state in memory, which the agent holds: they survive a SIGKILL of all worker processes.

- `format`, `buffers` and `policy` use the standard library only: what a snapshot is, the memory, and how often
- `outline` and `copying` take a state apart and put it together, with torch
- `pair` is two buffers, written in turn; `keeper` is what a training uses

See docs/design/0023-memory-snapshots.md.
"""

from elasticjob_runtime.training.memory.keeper import Keeper, keeper_of_this_process
from elasticjob_runtime.training.memory.pair import Recovered
from elasticjob_runtime.training.memory.policy import Pace

__all__ = ["Keeper", "Pace", "Recovered", "keeper_of_this_process"]
