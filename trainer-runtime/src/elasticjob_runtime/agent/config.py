"""What one agent is told when it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from elasticjob_runtime.agent import signals
from elasticjob_runtime.contract import Keys
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.view import (
    MemberSettings,
)
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.rendezvous.witnesses import Witness
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.logs import LogSettings


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """What one agent is told by its flags."""

    settings: MemberSettings
    group: GroupSpec
    command: Command
    keys: Keys
    address: str
    preload: Sequence[str] | None
    """What the zygote imports beyond the usual; None: no zygote, workers are spawned."""
    log_settings: LogSettings
    lease_ttl: float = 5.0
    port_range: PortRange | None = None
    """Where its TCP ports are taken from; None: any."""
    join_timeout: float = 600.0
    """s to reach the store at all, and then to be in a plan, before the agent gives up."""
    leave_on: Collection[int] = frozenset(signals.LEAVE)
    """Signals that make the agent leave."""
    hang_limits: HangLimits = dataclasses.field(default_factory=HangLimits)
    """When workers that report no steps any more count as failed."""
    witnesses: Sequence[Witness] = ()
    """Who tells, while etcd does not answer, whether this group is cut off."""
