"""The agent: supervises the local worker processes and takes part in the rendezvous with the other agents."""

from elasticjob_runtime.agent.agent import Agent
from elasticjob_runtime.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig"]
