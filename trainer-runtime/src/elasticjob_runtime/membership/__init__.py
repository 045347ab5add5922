"""The decisions of the rendezvous: who trains, with which ranks, and what each agent does next. Pure.

`decide(view, now)` makes all of an agent's decisions; the agent observes, and carries them out.
"""

from elasticjob_runtime.membership.decide import decide
from elasticjob_runtime.membership.view import View

__all__ = ["View", "decide"]
