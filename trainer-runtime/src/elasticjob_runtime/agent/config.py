"""The configuration of one agent, from its flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from elasticjob_runtime.agent import signals
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.preflight import PreflightSettings
from elasticjob_runtime.membership.stragglers import StragglerSettings
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.logs import LogSettings
from elasticjob_runtime.workers.process import Command


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    member: MemberConfig
    group: GroupSpec
    command: Command
    preload: Sequence[str] | None
    """What the zygote imports beyond the usual modules; None: there is no zygote, and workers are spawned."""
    log_settings: LogSettings
    leave_on: Collection[int] = frozenset(signals.LEAVE)
    """Signals that make the agent leave."""
    hang_limits: HangLimits = dataclasses.field(default_factory=HangLimits)
    """When workers that have stopped reporting steps count as failed."""
    preflight: PreflightSettings = dataclasses.field(default_factory=PreflightSettings)
    """What is checked before this member joins."""
    stragglers: StragglerSettings = dataclasses.field(default_factory=StragglerSettings)
    """Which ranks are called slow."""
