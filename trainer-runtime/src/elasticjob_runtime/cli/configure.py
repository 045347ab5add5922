"""Builds the agent's configuration and its store from the parsed flags.

Settings whose field a flag or a key of --rdzv-conf declares (own_flags.py, rendezvous/config.py) come from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

from elasticjob_runtime.agent import AgentConfig
from elasticjob_runtime.cli import options, rendezvous_flags, script
from elasticjob_runtime.cli.own_flags import settings_from_flags
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd import Endpoint, EtcdClient, SoloStore, Store
from elasticjob_runtime.membership.crash_loop import CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.preflight import PreflightSettings
from elasticjob_runtime.membership.stragglers import StragglerSettings
from elasticjob_runtime.membership.view import MemberSettings
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.config import MemberConfig, RendezvousConf
from elasticjob_runtime.rendezvous.outside_hosts import outside_hosts
from elasticjob_runtime.workers.environment import GroupSpec


def configure(args: argparse.Namespace) -> tuple[AgentConfig, Store]:
    """Raises UsageError."""
    options.reject_unsupported(args)
    conf = rendezvous_flags.rendezvous_conf(args.rdzv_conf)
    settings = _member_settings(args, conf)
    command = script.command(args)
    preload = script.preload(args, command)
    script.check_replicas(settings.replica_size, command, preload)
    store, run_id, address = _store(args, conf, several=settings.max > 1)
    config = AgentConfig(
        member=MemberConfig(
            settings=settings,
            keys=Keys(conf.prefix, run_id),
            address=address,
            lease_ttl=conf.lease_ttl,
            join_timeout=conf.join_timeout,
            master_port=options.master_port(args.master_port),
            port_range=rendezvous_flags.port_range(args.port_range) or conf.port_range,
            outside_hosts=outside_hosts(os.environ, [(one.host, one.port) for one in _endpoints(store)]),
            **settings_from_flags(args, MemberConfig),
        ),
        group=GroupSpec(
            run_id=run_id,
            role=args.role,
            nproc=settings.nproc,
            max_restarts=settings.max_restarts,
            virtual_local_rank=args.virtual_local_rank,
            **settings_from_flags(args, GroupSpec),
        ),
        command=command,
        preload=preload,
        log_settings=options.log_settings(args),
        leave_on=options.leave_on(args.signals_to_handle),
        hang_limits=_hang_limits(args, conf),
        preflight=PreflightSettings(**settings_from_flags(args, PreflightSettings)),
        stragglers=StragglerSettings(**settings_from_flags(args, StragglerSettings)),
        **settings_from_flags(args, AgentConfig),
    )
    return config, store


def is_single_member(args: argparse.Namespace) -> bool:
    """Whether this is a plain `elasticrun train.py`: one member, and no rendezvous is configured."""
    least, most = options.min_max(args.nnodes)
    return args.rdzv_backend == "static" and not args.rdzv_endpoint and least == most == 1 and args.master_port is None


def _member_settings(args: argparse.Namespace, conf: RendezvousConf) -> MemberSettings:
    least, most = (1, 1) if args.standalone or is_single_member(args) else options.min_max(args.nnodes)
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts={args.max_restarts}: must be 0 or more")
    further = _values(args, conf, MemberSettings)
    options.check_replicas(args.replica_size, (least, most), in_place=args.in_place)
    if args.shutdown_timeout is not None:
        further["shutdown_grace"] = float(args.shutdown_timeout)
    return MemberSettings(
        me=options.member_id(os.environ),
        incarnation=secrets.token_hex(6),
        nproc=options.workers_per_member(args.nproc_per_node),
        min=least,
        max=most,
        max_restarts=args.max_restarts,
        crash_limits=CrashLimits(**_values(args, conf, CrashLimits)),
        **further,
    )


def _hang_limits(args: argparse.Namespace, conf: RendezvousConf) -> HangLimits:
    """At a terminal, a process that does nothing may wait for a person: in a debugger, or for input."""
    limits = HangLimits(**_values(args, conf, HangLimits))
    return dataclasses.replace(limits, restarts=False) if os.isatty(0) else limits


def _values(args: argparse.Namespace, conf: RendezvousConf, settings: type) -> dict[str, Any]:
    return {**conf.values_for(settings), **settings_from_flags(args, settings)}


def _store(args: argparse.Namespace, conf: RendezvousConf, *, several: bool) -> tuple[Store, str, str]:
    """Returns (store, run id, own address). `several`: the group may have more than one member."""
    if args.standalone or is_single_member(args):
        return SoloStore(), str(uuid.uuid4()), network.LOOPBACK
    store = rendezvous_flags.open_store(args.rdzv_endpoint, conf, os.environ)
    run_id = rendezvous_flags.run_id(args.rdzv_id, conf.prefix, several=several)
    return store, run_id, rendezvous_flags.address(args.local_addr, os.environ, store.endpoints, several=several)


def _endpoints(store: Store) -> Sequence[Endpoint]:
    return store.endpoints if isinstance(store, EtcdClient) else ()
