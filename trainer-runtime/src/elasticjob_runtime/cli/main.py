"""`elasticrun`: reads the flags, connects to the store, runs the agent and returns its exit code.

Every usage error is reported in one sentence, with an exit code (contract.ExitCode); a traceback is shown only with
--debug.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import elasticjob_runtime
from elasticjob_runtime.agent import Agent, AgentConfig, preflight, termination
from elasticjob_runtime.cli import options
from elasticjob_runtime.cli.arguments import build_parser, without_own_flags
from elasticjob_runtime.cli.configure import configure, is_single_member
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import Env, ExitCode, OutcomeState, OutcomeValue
from elasticjob_runtime.etcd import Store
from elasticjob_runtime.membership.actions import Exit
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.version import version_in
from elasticjob_runtime.workers import async_writer, descriptors
from elasticjob_runtime.workers.environment import RES_OPTIONS

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
    except UsageError as error:
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
        raise UsageError(f"--rdzv-backend={args.rdzv_backend}: unknown backend; use one of {known}")
    return not is_single_member(args)


def _hand_over(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Replaces this process with torchrun. Raises OSError if that fails, and UsageError; never returns."""
    if args.replica_size:
        raise UsageError(
            f"--replica-size={args.replica_size}: --rdzv-backend={args.rdzv_backend} is torchrun's own, and has no "
            "replicas; use --rdzv-backend=etcd-v3, or --standalone on one machine"
        )
    logger.warning(
        "--rdzv-backend=%s is torchrun's own: handing over to torchrun, without elasticrun's recovery",
        args.rdzv_backend,
    )
    async_writer.flush()
    script = len(argv) - 1 - len(args.training_script_args)
    command = [sys.executable, "-m", "torch.distributed.run", *without_own_flags(argv, script)]
    os.execv(sys.executable, command)  # noqa: S606 - deliberately no shell


def _run(args: argparse.Namespace) -> int:
    config, store = configure(args)
    metrics = Metrics()
    server = options.metrics_server(args, metrics)
    try:
        event_log = EventLog(config.member.settings.me, Path(args.events) if args.events else None)
    except OSError as error:
        raise UsageError(f"--events={args.events}: {error.strerror}") from error
    descriptors.raise_limit()  # before anything is opened or started; workers get the original limit
    environment = {"RES_OPTIONS": RES_OPTIONS, **os.environ, "TORCHELASTIC_SIGNALS_TO_HANDLE": args.signals_to_handle}
    if why := _preflight(config, store, environment):
        termination.write(why, environment)
        logger.error("%s", why)
        return ExitCode.SUSPECT
    try:
        agent = Agent(config, store, environment, event_log, metrics)
    except OSError as error:  # the temporary folder is full, no descriptors are left, or the interpreter may not be run
        hint = (
            "; set TMPDIR to use another temporary directory"
            if error.errno in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)
            else ""
        )
        why = error.strerror if error.errno == errno.EADDRINUSE else descriptors.explain(error)
        reason = f"the agent cannot start on this machine: {why}{hint}"
        raise UsageError(reason, ExitCode.UNAVAILABLE) from error
    if server is not None:
        server.start()  # starts a thread, so only after the agent has forked
    exit_ = agent.run()
    event_log.close()
    if server is not None:
        server.close()
    _report(exit_, agent.outcome)
    return exit_.code


def _preflight(config: AgentConfig, store: Store, environment: Mapping[str, str]) -> str | None:
    """Why this member must not join; None: it may."""
    member, settings = config.member, config.member.settings
    network = preflight.NetworkCheck(
        store, member.keys, settings.me, address=member.address, ports=member.port_range, most=settings.max
    )
    return preflight.check(config.preflight, store, member.keys, settings.me, settings.min, environment, network)


def _report(exit_: Exit, outcome: OutcomeValue | None) -> None:
    if exit_.code.is_failure:
        logger.error("%s", exit_.reason)
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
