"""Checks of this machine before the agent joins a job: `check` runs them, and says why not to join."""

from elasticjob_runtime.agent.preflight.network import NetworkCheck
from elasticjob_runtime.agent.preflight.run import check

__all__ = ["NetworkCheck", "check"]
