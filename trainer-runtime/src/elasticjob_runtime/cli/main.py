"""`elasticrun`: reads the flags, connects to the store, runs the agent and returns its exit code.

Every usage error is reported in one sentence, with an exit code (contract.ExitCode); a traceback is shown only with
--debug.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import logging
import os
import secrets
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import elasticjob_runtime
from elasticjob_runtime.agent import Agent, AgentConfig, termination
from elasticjob_runtime.cli import options
from elasticjob_runtime.cli.arguments import build_parser, without_our_flags
from elasticjob_runtime.contract import Env, ExitCode, Keys, OutcomeState, OutcomeValue
from elasticjob_runtime.etcd import EtcdClient, MemoryStore, Store, connect
from elasticjob_runtime.membership.actions import (
    Exit,
)
from elasticjob_runtime.membership.view import (
    MemberSettings,
)
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.config import MemberConfig, RendezvousConf
from elasticjob_runtime.rendezvous.witnesses import witnesses
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.version import version_in
from elasticjob_runtime.workers import async_writer, descriptors
from elasticjob_runtime.workers.environment import RES_OPTIONS, GroupSpec

logger = logging.getLogger(__name__)

OWN_BACKEND = "etcd-v3"
TORCH_BACKENDS = ("c10d", "etcd-v2", "etcd", "static")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. `arguments`: without the program's name; None: those of the command line."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    args = build_parser().parse_args(argv)
    _set_up_logging(args.debug)
    _log_version()
    try:
        if _for_torchrun(args):
            return _hand_over(args, argv)
        return _run(args)
    except options.UsageError as error:
        if args.debug:
            raise
        termination.write(f"elasticrun: {error}", os.environ)
        async_writer.flush()
        print(f"elasticrun: {error}", file=sys.stderr)  # noqa: T201 - a command line tool's own error
        return error.code


def _log_version() -> None:
    """The first line of a worker container's log, unless the injected launcher has written it."""
    if Env.JOB_NAME in os.environ and Env.RUNTIME not in os.environ:
        folder = str(Path(elasticjob_runtime.__file__).parents[1])
        python = f"Python {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
        logger.info("runtime %s of the image (%s), %s", version_in(folder), folder, python)


def _for_torchrun(args: argparse.Namespace) -> bool:
    """Whether torchrun must run this job. Raises UsageError for an unknown backend."""
    if args.standalone or args.rdzv_backend == OWN_BACKEND:
        return False
    if args.rdzv_backend not in TORCH_BACKENDS:
        known = ", ".join((OWN_BACKEND, *TORCH_BACKENDS))
        raise options.UsageError(f"--rdzv-backend={args.rdzv_backend}: unknown backend; use one of {known}")
    return not _is_single_member(args)


def _is_single_member(args: argparse.Namespace) -> bool:
    """Whether this is a plain `elasticrun train.py`: one member, and no rendezvous is configured."""
    least, most = options.min_max(args.nnodes)
    return args.rdzv_backend == "static" and not args.rdzv_endpoint and least == most == 1 and args.master_port is None


def _hand_over(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Replaces this process with torchrun. Raises OSError if that fails; never returns."""
    logger.warning(
        "--rdzv-backend=%s is torchrun's own: handing over to torchrun, without elasticrun's recovery",
        args.rdzv_backend,
    )
    async_writer.flush()
    script = len(argv) - 1 - len(args.training_script_args)
    command = [sys.executable, "-m", "torch.distributed.run", *without_our_flags(argv, script)]
    os.execv(sys.executable, command)  # noqa: S606 - deliberately no shell


def _run(args: argparse.Namespace) -> int:
    config, store = _configure(args)
    metrics = Metrics()
    server = options.metrics_server(args, metrics)
    try:
        timeline = EventLog(config.member.settings.me, Path(args.events) if args.events else None)
    except OSError as error:
        raise options.UsageError(f"--events={args.events}: {error.strerror}") from error
    descriptors.raise_limit()  # before anything is opened or started; workers get the original limit
    environment = {"RES_OPTIONS": RES_OPTIONS, **os.environ, "TORCHELASTIC_SIGNALS_TO_HANDLE": args.signals_to_handle}
    try:
        agent = Agent(config, store, environment, timeline, metrics)
    except OSError as error:  # the temporary folder is full, no descriptors are left, or the interpreter may not be run
        hint = (
            "; set TMPDIR to use another temporary directory"
            if error.errno in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)
            else ""
        )
        reason = f"the agent cannot start on this machine: {descriptors.explain(error)}{hint}"
        raise options.UsageError(reason, ExitCode.UNAVAILABLE) from error
    if server is not None:
        server.start()  # starts a thread, so only after the agent has forked
    exit_ = agent.run()
    timeline.close()
    if server is not None:
        server.close()
    _report(exit_, agent.outcome)
    return exit_.code


def _configure(args: argparse.Namespace) -> tuple[AgentConfig, Store]:
    """Builds the configuration and the store from the flags. Raises UsageError."""
    least, most = (1, 1) if args.standalone or _is_single_member(args) else options.min_max(args.nnodes)
    if args.max_restarts < 0:
        raise options.UsageError(f"--max-restarts={args.max_restarts}: must be 0 or more")
    options.refuse_unsupported(args)
    conf = options.rendezvous_conf(args.rdzv_conf)
    command = options.command(args)
    preload = options.preload(args, command)
    store, run_id, address = _store(args, conf, several=most > 1)
    me = options.member_id(os.environ)
    nproc = options.workers_per_member(args.nproc_per_node)
    settings = MemberSettings(
        me=me,
        incarnation=secrets.token_hex(6),
        nproc=nproc,
        min=least,
        max=most,
        max_restarts=args.max_restarts,
        start_grace=conf.start_grace,
        join_delay=conf.join_delay,
        crash_limits=options.crash_limits(args, conf),
    )
    if args.shutdown_timeout is not None:
        settings = dataclasses.replace(settings, shutdown_grace=float(args.shutdown_timeout))
    config = AgentConfig(
        member=MemberConfig(
            settings=settings,
            keys=Keys(conf.prefix, run_id),
            address=address,
            lease_ttl=conf.lease_ttl,
            join_timeout=conf.join_timeout,
            port_range=options.port_range(args.port_range) or conf.port_range,
            witnesses=witnesses(
                os.environ, [(one.host, one.port) for one in store.endpoints] if isinstance(store, EtcdClient) else []
            ),
        ),
        group=GroupSpec(
            run_id=run_id,
            role=args.role,
            nproc=nproc,
            max_restarts=args.max_restarts,
            virtual_local_rank=args.virtual_local_rank,
        ),
        command=command,
        preload=preload,
        log_settings=options.log_settings(args),
        leave_on=options.leave_on(args.signals_to_handle),
        hang_limits=options.hang_limits(args, conf),
    )
    return config, store


def _store(args: argparse.Namespace, conf: RendezvousConf, *, several: bool) -> tuple[Store, str, str]:
    """Returns (store, run id, own address). `several`: the group may have more than one member."""
    if args.standalone or _is_single_member(args):
        return MemoryStore(), str(uuid.uuid4()), network.LOOPBACK
    endpoint: str = args.rdzv_endpoint
    if not endpoint:
        raise options.UsageError("--rdzv-backend=etcd-v3 needs --rdzv-endpoint=HOST:PORT of an etcd")
    run_id = options.run_id(args.rdzv_id, conf.prefix, several=several)
    try:
        store = connect(endpoint, conf.connection)
    except (ValueError, OSError) as error:
        raise options.UsageError(str(error)) from error
    return store, run_id, options.address(args.local_addr, os.environ, store.endpoints, several=several)


def _report(exit_: Exit, outcome: OutcomeValue | None) -> None:
    if exit_.code not in (ExitCode.SUCCEEDED, ExitCode.TERMINATED, ExitCode.INTERRUPTED):
        logger.error("%s", exit_.reason)
        termination.write(termination.message(exit_.reason, outcome), os.environ)
    if outcome is None or outcome.state is not OutcomeState.FAILED:
        return
    failure = outcome.failure or {}
    if traceback := failure.get("traceback"):
        logger.error("first failure, rank %s on %s:\n%s", failure.get("rank"), failure.get("member"), traceback)


def _set_up_logging(debug: bool) -> None:
    name = os.environ.get(Env.MEMBER_ID, "")
    handler = async_writer.LogHandler()
    prefix = f"[elasticrun {name}]" if name else "[elasticrun]"
    handler.setFormatter(logging.Formatter(f"{prefix} %(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger("elasticjob_runtime")
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    root.propagate = False
