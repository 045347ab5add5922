"""Who trains, in which order, and what an agent does about it: pure decisions over data.

`decide(view, now)` is the whole of an agent's judgement; `next_plan(view, now)` the part that only the planner uses.
The agent (elasticjob_runtime.agent) observes and executes.
"""

from elasticjob_runtime.membership.decide import decide
from elasticjob_runtime.membership.view import (
    View,
)

__all__ = ["View", "decide"]
