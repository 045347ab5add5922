"""Which state of a training is newer, wherever it is: in a file, a manifest, or the memory of an agent. Pure.

Fencing tokens order the groups of one job. Those of different jobs say nothing about each other, and neither do the
clocks of their machines. So each state also has the number of the claim of the directory (see `claims`) that it comes
after: a file that was saved under a later claim was not there when the state in memory began.
"""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.contract import Fence

NO_FENCE = Fence(0, 0, 0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    step: int
    """-1: there is none."""
    job: str = ""
    """`Writer.owner` of the group that saved it; empty: without an agent, or unknown."""
    fence: Fence = NO_FENCE
    """Of that group."""
    claim: int = 0
    """Of a file: under which it was saved. Of memory: of the newest file that was there when its process began."""
    chosen: bool = False
    """A person has made it the newest."""

    def precedence(self, job: str) -> tuple[bool, bool, Fence, int]:
        """For `job`, the highest of states of several machines is the newest. What a later group has is newer, even at
        an earlier step. What another job has left on a machine is older than anything of this job's."""
        ours = self.job == job
        return self.step >= 0, ours, self.fence if ours else NO_FENCE, self.step


NOTHING = State(step=-1)


def why_older(memory: State, file: State) -> str | None:
    """Why `memory` does not count with `file`, the newest in its directory; None: it does."""
    if file.step < 0:
        return None
    if file.chosen and file.claim > memory.claim:
        return f"a person has chosen step {file.step} since"
    if file.job != memory.job:
        return f"another job has saved step {file.step} since" if file.claim > memory.claim else None
    if file.fence > memory.fence:
        return f"a later worker group has saved step {file.step}"
    if (file.fence, file.step) > (memory.fence, memory.step):
        return f"step {file.step} is newer"
    return None
