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
from elasticjob_runtime.rendezvous.outside_hosts import OutsideHost

MIN_LEASE_TTL = 2.0
"""s. A lease is renewed three times per TTL; a shorter one would expire during a single slow call."""

MIN_READ_TIMEOUT = 0.1
"""s. The lower limit of a store call's timeout, however short the join timeout is."""

SHORT_JOIN_TIMEOUT = 10.0
"""s. If the join timeout is shorter, a store call gets half of it, so that an error can still be reported in time."""


def default_of(settings: type[Any], field: str) -> Any:
    """The default of one field of a dataclass.

    >>> default_of(HangLimits, "least")
    60.0
    """
    return next(known.default for known in dataclasses.fields(settings) if known.name == field)


_DEFAULT_OF_FIELD: Any = object()


def _sets(settings: type[Any], field: str, default: float = _DEFAULT_OF_FIELD) -> Any:
    """A key of --rdzv-conf that sets one field of a decision rule's settings, and has its default unless `default` is
    given."""
    value = default_of(settings, field) if default is _DEFAULT_OF_FIELD else default
    return dataclasses.field(default=value, metadata={"sets": (settings, field)})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousConf:
    """The keys of --rdzv-conf. Times are in seconds."""

    prefix: str = DEFAULT_PREFIX
    """etcd prefix of all jobs."""
    lease_ttl: float = LEASE_TTL
    """The time after which a silent member is removed; at least MIN_LEASE_TTL."""
    join_timeout: float = 600.0
    """The time to reach the store and get into a plan before the member gives up."""
    start_grace: float = _sets(MemberSettings, "start_grace")
    join_delay: float = _sets(MemberSettings, "join_delay")
    join_backoff: float = _sets(MemberSettings, "join_backoff")
    port_range: PortRange | None = None
    """TCP ports to listen on; None: any."""
    restart_backoff: float = _sets(CrashLimits, "backoff", 1.0)
    """The delay before the fourth restart after the same crash without progress; doubles with each further one. 0: no
    delay. For elasticrun only: torchrun counts restarts itself, so the rule is off there (CrashLimits.backoff)."""
    restart_backoff_max: float = _sets(CrashLimits, "backoff_max")
    stable_time: float = _sets(CrashLimits, "stable_time")
    hang_min: float = _sets(HangLimits, "least")
    connection: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The keys that configure the connection to etcd (etcd.CONF_KEYS)."""

    def values_for(self, settings: type[Any]) -> dict[str, Any]:
        """The fields of `settings` that keys set, by name."""
        targets = {known.name: known.metadata["sets"] for known in dataclasses.fields(self) if "sets" in known.metadata}
        return {field: getattr(self, name) for name, (owner, field) in targets.items() if owner is settings}


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
    master_port: int | None = None
    """The first of the ports of this member's worker stores; None: from `port_range`."""
    outside_hosts: Sequence[OutsideHost] = ()
    """Hosts to probe while etcd does not answer, to find out whether this group is cut off."""
