"""The configuration of one member, with every default of the rendezvous.

A default that a decision rule owns (MemberSettings, CrashLimits and HangLimits in membership) is read from that rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import DEFAULT_PREFIX, LEASE_TTL, Keys
from elasticjob_runtime.membership.crash_loop import CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.view import MemberSettings
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.rendezvous.witnesses import Witness

MIN_LEASE_TTL = 2.0
"""s. A lease is renewed three times per TTL; a shorter one would expire during a single slow call."""

MIN_READ_TIMEOUT = 0.1
"""s. The lower limit of a store call's timeout, however short the join timeout is."""

SHORT_JOIN_TIMEOUT = 10.0
"""s. If the join timeout is shorter, a store call gets half of it, so that an error can still be reported in time."""


def _default(rule: type[Any], field: str) -> float:
    default: Any = next(each.default for each in dataclasses.fields(rule) if each.name == field)
    return float(default)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousConf:
    """The keys of --rdzv-conf. Times are in seconds."""

    prefix: str = DEFAULT_PREFIX
    """etcd prefix of all jobs."""
    lease_ttl: float = LEASE_TTL
    """The time after which a silent member is removed; at least MIN_LEASE_TTL."""
    join_timeout: float = 600.0
    """The time to reach the store and get into a plan before the member gives up."""
    start_grace: float = _default(MemberSettings, "start_grace")
    join_delay: float = _default(MemberSettings, "join_delay")
    port_range: PortRange | None = None
    """TCP ports to listen on; None: any."""
    restart_backoff: float = 1.0
    """The delay before the fourth restart after the same crash without progress; doubles with each further one. 0: no
    delay. For elasticrun only: torchrun counts restarts itself, so the rule is off there (CrashLimits.backoff)."""
    restart_backoff_max: float = _default(CrashLimits, "backoff_max")
    stable_time: float = _default(CrashLimits, "stable_time")
    hang_min: float = _default(HangLimits, "least")
    connection: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The keys that configure the connection to etcd (etcd.CONF_KEYS)."""


RENDEZVOUS_KEYS = frozenset(field.name for field in dataclasses.fields(RendezvousConf)) - {"connection"}
"""Keys of --rdzv-conf, apart from those of the connection to etcd."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberConfig:
    """What one member of a job needs to know, whether the agent or torchrun starts its worker processes."""

    settings: MemberSettings
    keys: Keys
    address: str
    """The address at which the other members reach this one."""
    lease_ttl: float
    """s"""
    join_timeout: float
    """s"""
    port_range: PortRange | None = None
    """TCP ports to listen on; None: any."""
    witnesses: Sequence[Witness] = ()
    """Hosts to probe while etcd does not answer, to find out whether this group is cut off."""
