"""Converts the parsed flags to the agent's configuration. Pure, except where a flag depends on the machine: `auto`
counts devices, and files and programs must exist.

Raises UsageError, with one sentence for the person who typed the flag.
"""

from __future__ import annotations

import argparse
import errno
import glob
import importlib.util
import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elasticjob_runtime.cli.arguments import did_you_mean, parse_pairs
from elasticjob_runtime.contract import DEFAULT_PREFIX, Env, ExitCode
from elasticjob_runtime.etcd import CONF_KEYS, Endpoint
from elasticjob_runtime.membership.crash_loop import CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.config import (
    MIN_LEASE_TTL,
    MIN_READ_TIMEOUT,
    RENDEZVOUS_KEYS,
    SHORT_JOIN_TIMEOUT,
    RendezvousConf,
)
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.workers.logs import LogSettings, parse_std
from elasticjob_runtime.workers.process import Command
from elasticjob_runtime.workers.zygote.launcher import no_fork_reason

if TYPE_CHECKING:
    from elasticjob_runtime.telemetry.metrics_server import MetricsServer

logger = logging.getLogger(__name__)

IGNORED_KEYS = frozenset(
    {
        *(
            "timeout",
            "last_call_timeout",
            "close_timeout",
            "keep_alive_interval",
            "keep_alive_max_attempt",
            "heartbeat_timeout",
        ),
        *("is_host", "store_type", "use_libuv"),
    }
)
"""Keys of torch's backends that have no meaning here: there is no last call to wait for, failures are detected in other
ways, and no node hosts the rendezvous."""


class UsageError(Exception):
    """A flag is wrong. The message says which, and what to write instead."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


def rendezvous_conf(text: str) -> RendezvousConf:
    try:
        pairs = dict(parse_pairs(text))
    except ValueError as error:
        raise UsageError(str(error)) from error
    own: dict[str, float] = {}
    prefix = pairs.pop("prefix", DEFAULT_PREFIX)
    ports = port_range(pairs.pop("port_range", None), "--rdzv-conf: port_range")
    for key in [key for key in pairs if key in RENDEZVOUS_KEYS]:
        own[key] = _seconds(key, pairs.pop(key))
    join_timeout = own.get("join_timeout", SHORT_JOIN_TIMEOUT)
    if join_timeout < SHORT_JOIN_TIMEOUT and "read_timeout" not in pairs:
        pairs["read_timeout"] = str(max(MIN_READ_TIMEOUT, join_timeout / 2))
    unknown = sorted(set(pairs) - CONF_KEYS - IGNORED_KEYS)
    if unknown:
        known = sorted({*RENDEZVOUS_KEYS, *CONF_KEYS})
        raise UsageError(
            f"--rdzv-conf: unknown key {unknown[0]!r}{did_you_mean(unknown[0], known)}; valid keys: {', '.join(known)}"
        )
    return RendezvousConf(
        prefix=prefix,
        port_range=ports,
        connection={key: value for key, value in pairs.items() if key in CONF_KEYS},
        **own,
    )


def run_id(text: str, prefix: str, *, several: bool) -> str:
    """Checks --rdzv-id. `several`: the group may have more than one member."""
    if not text.strip() or "/" in text:
        raise UsageError(
            f"--rdzv-id={text}: must be a name without a slash, because the job's keys are below <prefix>/<rdzv-id>/"
        )
    if text != "none":
        return text
    if several and prefix == DEFAULT_PREFIX:
        raise UsageError(
            "no --rdzv-id: jobs without an id share the same keys in etcd and would join each other. Give each job its "
            "own id, the same for all its members; if your launcher has no such flag (accelerate launch), use "
            "--rdzv-conf=prefix=/NAME or PET_RDZV_ID"
        )
    logger.warning("no --rdzv-id: jobs without an id share the same keys in etcd")
    return text


def address(
    local_addr: str | None, environment: Mapping[str, str], endpoints: Sequence[Endpoint], *, several: bool
) -> str:
    """The address at which the others reach this member: --local-addr, else the one that the operator set, else
    detected."""
    given = local_addr or environment.get(Env.ADDRESS)
    if not given:
        return network.own_address(endpoints, several=several)
    try:
        return network.given_address(given, several=several)
    except OSError as error:
        name = "--local-addr" if local_addr else Env.ADDRESS
        raise UsageError(f"{name}={given}: {error}; give an IP address", ExitCode.UNAVAILABLE) from error


def port_range(text: str | None, flag: str = "--port-range") -> PortRange | None:
    if not text:
        return None
    try:
        return PortRange.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def refuse_unsupported(args: argparse.Namespace) -> None:
    """Rejects the torchrun flags that elasticrun cannot honour."""
    if args.numa_binding is not None:
        raise UsageError("--numa-binding is not supported by elasticrun; leave the flag out, or use torchrun")
    if args.logs_specs not in (None, "default"):
        raise UsageError(
            f"--logs-specs={args.logs_specs}: elasticrun supports only `default`; leave the flag out, or use torchrun"
        )
    if args.master_port is None:
        return
    if args.standalone:
        logger.warning(
            "--master-port has no effect with --standalone: elasticrun uses any free port, or one from --port-range"
        )
    else:
        raise UsageError(
            f"--master-port={args.master_port}: is for the static backend. With etcd-v3, every restart uses another "
            "port, so that no worker connects to an old store; choose the ports with --port-range=LOW-HIGH"
        )


def _seconds(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0) or (key == "lease_ttl" and value < MIN_LEASE_TTL):
        least = f" of at least {MIN_LEASE_TTL:g}" if key == "lease_ttl" else ""
        raise UsageError(f"--rdzv-conf: {key}={text} is not a number of seconds{least}")
    return value


def crash_limits(args: argparse.Namespace, conf: RendezvousConf) -> CrashLimits:
    most: int | None = args.max_stalled_restarts
    if most is not None and most < 0:
        raise UsageError(f"--max-stalled-restarts={most}: must be 0 or more")
    return CrashLimits(
        backoff=conf.restart_backoff,
        backoff_max=conf.restart_backoff_max,
        stable_time=conf.stable_time,
        max_stalled=most,
    )


def hang_limits(args: argparse.Namespace, conf: RendezvousConf) -> HangLimits:
    factor: float = args.hang_factor
    if not math.isfinite(factor) or 0 != factor < 1:
        raise UsageError(f"--hang-factor={factor:g}: must be 1 or more, or 0 to disable hang detection")
    return HangLimits(factor=factor, least=conf.hang_min)


def metrics_server(args: argparse.Namespace, metrics: Metrics) -> MetricsServer | None:
    """The server of --metrics-port; None if the flag is not set."""
    port: int = args.metrics_port
    if not port:
        return None
    from elasticjob_runtime.telemetry.metrics_server import (
        MetricsServer,  # only if requested: http.server costs 4 MB and 17 ms
    )

    try:
        return MetricsServer(port, metrics.text)
    except OverflowError as error:
        raise UsageError(f"--metrics-port={port}: not a TCP port") from error
    except OSError as error:
        raise UsageError(f"--metrics-port={port}: {error.strerror}") from error


def min_max(text: str) -> tuple[int, int]:
    """Parses --nnodes: `N` or `MIN:MAX`."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        raise UsageError(f"--nnodes={text}: write a number, or MIN:MAX such as 2:4")
    least, most = int(match[1]), int(match[2] or match[1])
    if not 0 < least <= most:
        hint = f" (did you mean {most}:{least}?)" if 0 < most < least else ""
        raise UsageError(f"--nnodes={text}: the minimum must be at least 1 and not above the maximum{hint}")
    return least, most


def workers_per_member(text: str) -> int:
    """Parses --nproc-per-node: a number, or a kind of device to count on this machine."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text == "cpu" or (text == "auto" and not _has_accelerator()):
        return os.cpu_count() or 1
    if text in ("auto", "gpu", "xpu"):
        return _ask_torch(text)
    raise UsageError(f"--nproc-per-node={text}: write a number of at least 1, or auto, cpu, gpu or xpu")


def _has_accelerator() -> bool:
    return any(glob.glob(pattern) for pattern in ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel*"))


_COUNT = {
    "gpu": "torch.cuda.device_count()",
    "xpu": "torch.xpu.device_count()",
    "auto": "(torch.accelerator.device_count() if hasattr(torch, 'accelerator') and torch.accelerator.is_available()"
    " else torch.cuda.device_count() or __import__('os').cpu_count())",
}


def _ask_torch(kind: str) -> int:
    """Counts devices in a separate process, because this one must not touch a GPU."""
    script = f"import torch; print({_COUNT[kind]})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    count = int(result.stdout) if result.returncode == 0 and result.stdout.strip().isdigit() else 0
    if not count:
        why = result.stderr.strip().rsplit("\n", 1)[-1] or "torch sees none on this machine"
        raise UsageError(f"--nproc-per-node={kind}: no such device found: {why}")
    return count


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


def leave_on(text: str) -> frozenset[int]:
    """Parses --signals-to-handle."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if not name.startswith("SIG") or name not in signal.Signals.__members__]:
        raise UsageError(
            f"--signals-to-handle={text}: {unknown[0]!r} is not a signal; write names such as SIGTERM,SIGINT"
        )
    return frozenset(signal.Signals[name] for name in names)


def log_settings(args: argparse.Namespace) -> LogSettings:
    values = {}
    for flag in ("redirects", "tee"):
        try:
            values[flag] = parse_std(getattr(args, flag))
        except ValueError as error:
            raise UsageError(f"--{flag}: {error}") from error
    ranks: frozenset[int] | None = None
    if args.local_ranks_filter:
        if not re.fullmatch(r"\d+(,\d+)*", args.local_ranks_filter):
            raise UsageError(f"--local-ranks-filter={args.local_ranks_filter}: write local ranks such as 0,1")
        ranks = frozenset(int(part) for part in args.local_ranks_filter.split(","))
    if args.log_dir is not None:
        _check_folder("--log-dir", args.log_dir)
    prefix = args.log_line_prefix_template or os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "")
    return LogSettings(
        directory=args.log_dir,
        redirects=values["redirects"],
        tee=values["tee"],
        ranks_filter=ranks,
        prefix_template=prefix,
        stdout_filters=tuple(args.duplicate_stdout_filters),
        stderr_filters=tuple(args.duplicate_stderr_filters),
    )


def _check_folder(flag: str, path: str) -> None:
    """Creates the folder now, so that an error is reported before the first worker starts."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"{flag}={path}: {error.strerror}") from error


def member_id(environment: Mapping[str, str]) -> str:
    return environment.get(Env.MEMBER_ID) or f"{socket.gethostname()}-{secrets.token_hex(3)}"
