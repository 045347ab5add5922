"""Turns torchrun's flags into a member's configuration. Functions raise UsageError with one sentence for the user."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.cli import rendezvous_flags
from elasticjob_runtime.cli.options import member_id
from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd import CONF_KEYS, Endpoint
from elasticjob_runtime.membership.view import MemberSettings
from elasticjob_runtime.rendezvous.config import MemberConfig, RendezvousConf
from elasticjob_runtime.rendezvous.outside_hosts import outside_hosts

logger = logging.getLogger(__name__)

UNCOUNTED = 0
"""`nproc` of a member under torchrun: torch's agents exchange how many workers they start. A member under elasticrun
never has 0, and all members of a plan have the same `nproc`, so the two launchers never train together by accident."""


def read_conf(config: Mapping[str, Any]) -> RendezvousConf:
    """Reads --rdzv-conf as torch has parsed it."""
    connection = {key: str(value) for key, value in config.items() if key in CONF_KEYS}
    rest = ",".join(f"{key}={value}" for key, value in config.items() if key not in CONF_KEYS)
    return dataclasses.replace(rendezvous_flags.rendezvous_conf(rest), connection=connection)


def member_config(
    conf: RendezvousConf,
    *,
    endpoints: Sequence[Endpoint],
    run_id: str,
    least: int,
    most: int,
    local_addr: str | None,
    environment: Mapping[str, str] = os.environ,
) -> MemberConfig:
    """`least`, `most`: the two numbers of --nnodes."""
    run_id = rendezvous_flags.run_id(run_id, conf.prefix, several=most > 1)
    return MemberConfig(
        settings=MemberSettings(
            me=member_id(environment),
            incarnation=secrets.token_hex(6),
            nproc=UNCOUNTED,
            min=least,
            max=most,
            max_restarts=sys.maxsize,  # each torch agent counts its own restarts
            **conf.values_for(MemberSettings),
        ),
        keys=Keys(conf.prefix, run_id),
        address=rendezvous_flags.address(local_addr, environment, endpoints, several=most > 1),
        port_range=conf.port_range,
        lease_ttl=conf.lease_ttl,
        join_timeout=conf.join_timeout,
        outside_hosts=outside_hosts(environment, [(one.host, one.port) for one in endpoints]),
    )
