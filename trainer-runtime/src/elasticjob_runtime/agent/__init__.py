"""The agent: supervises the local workers and meets the other agents over the store."""

from elasticjob_runtime.agent.agent import Agent
from elasticjob_runtime.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig"]
