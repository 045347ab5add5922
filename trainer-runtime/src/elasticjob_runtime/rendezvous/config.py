"""The configuration of one member, with every default of the rendezvous.

A default that a decision rule owns (MemberSettings, CrashLimits and HangLimits in membership) is read from that rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys
from elasticjob_runtime.membership.crash_loop import CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.view import MemberSettings
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.rendezvous.witnesses import Witness

MIN_LEASE_TTL = 2.0
"""s. Each third of its time a lease is renewed: a shorter one expires over a single slow call."""

MIN_READ_TIMEOUT = 0.1
"""s that one call to the store gets at least, however short the join timeout is."""

SHORT_JOIN_TIMEOUT = 10.0
"""s. With a shorter one, a call to the store gets half of it, so that an error can be reported in time."""


def _default(rule: type[Any], field: str) -> float:
    default: Any = next(each.default for each in dataclasses.fields(rule) if each.name == field)
    return float(default)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousConf:
    """The keys of --rdzv-conf. Times are in seconds."""

    prefix: str = DEFAULT_PREFIX
    """etcd prefix of all jobs."""
    lease_ttl: float = 5.0
    """After which a silent member is gone; at least MIN_LEASE_TTL."""
    join_timeout: float = 600.0
    """To reach the store and get into a plan before the member gives up."""
    start_grace: float = _default(MemberSettings, "start_grace")
    join_delay: float = _default(MemberSettings, "join_delay")
    port_range: PortRange | None = None
    """TCP ports to listen on; None: any."""
    restart_backoff: float = 1.0
    """Before the same crash is restarted a fourth time without progress; doubles each time. 0: no wait. Only for
    elasticrun: torchrun counts its restarts itself, so there the rule is off (CrashLimits.backoff)."""
    restart_backoff_max: float = _default(CrashLimits, "backoff_max")
    stable_time: float = _default(CrashLimits, "stable_time")
    hang_min: float = _default(HangLimits, "least")
    connection: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The keys that configure the connection to etcd (etcd.CONF_KEYS)."""


RENDEZVOUS_KEYS = frozenset(field.name for field in dataclasses.fields(RendezvousConf)) - {"connection"}
"""Keys of --rdzv-conf, apart from those of the connection to etcd."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberConfig:
    """What one member of a job needs to know, whoever starts its workers."""

    settings: MemberSettings
    keys: Keys
    address: str
    """At which the other members reach this one."""
    lease_ttl: float
    """s"""
    join_timeout: float
    """s"""
    port_range: PortRange | None = None
    """TCP ports to listen on; None: any."""
    witnesses: Sequence[Witness] = ()
    """Hosts that show, while etcd does not answer, whether this group is cut off."""
