"""Converts the flags that describe what each worker runs."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shutil
import sys
from pathlib import Path

from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.workers.process import Command
from elasticjob_runtime.workers.zygote.launcher import no_fork_reason

logger = logging.getLogger(__name__)


def command(args: argparse.Namespace) -> Command:
    """The command that each worker runs. Raises UsageError if the script does not exist."""
    script: str = args.training_script
    if args.no_python:
        if args.module:
            raise UsageError(
                "--no-python and --module cannot be used together: the first runs a program, the second a Python module"
            )
        if shutil.which(script) is None:
            raise UsageError(f"{script}: no such program, or it is not executable", ExitCode.NO_SCRIPT)
        return Command(arguments=[script, *args.training_script_args])
    if not args.module and not Path(script).exists():
        raise UsageError(f"{script}: no such script (in {Path.cwd()})", ExitCode.NO_SCRIPT)
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if args.module and python == sys.executable and _is_missing(script):
        raise UsageError(f"-m {script}: no such module (in {Path.cwd()} and sys.path)", ExitCode.NO_SCRIPT)
    return Command(program=[python, "-u"], module=args.module, arguments=[script, *args.training_script_args])


def _is_missing(module: str) -> bool:
    """Whether a module certainly does not exist. Looks for its top-level package only, because a deeper lookup would
    import that."""
    if sys.flags.no_site or sys.flags.isolated:
        return False  # the workers' interpreter searches more places
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]


def preload(args: argparse.Namespace, command: Command) -> list[str] | None:
    """The modules that the zygote imports; None: no zygote."""
    if args.start_method != "zygote":
        return None
    if problem := no_fork_reason(command):
        logger.info("workers are spawned: %s", problem)
        return None
    return [name for name in args.preload.split(",") if name]


def check_replicas(size: int, command: Command, preload: list[str] | None) -> None:
    """--replica-size. The zygote forks the process that hosts the store in which the replicas meet. Raises
    UsageError."""
    if size and preload is None:
        why = no_fork_reason(command) or "--start-method is not zygote"
        raise UsageError(f"--replica-size={size}: replicas need a Python script that is forked, and {why}")
