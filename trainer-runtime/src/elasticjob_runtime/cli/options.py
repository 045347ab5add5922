"""Converts flags of torchrun to the agent's settings. Pure, except where a flag depends on the machine: `auto` counts
devices, and the log directory must be writable.

Raises UsageError, with one sentence for the person who typed the flag.
"""

from __future__ import annotations

import argparse
import errno
import glob
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticjob_runtime.cli.arguments import DEFAULT_MASTER_ADDR
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import MAX_REPLICA_SIZE, Env
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.workers.logs import LogSettings, parse_std

if TYPE_CHECKING:
    from elasticjob_runtime.telemetry.metrics_server import MetricsServer

logger = logging.getLogger(__name__)


def reject_unsupported(args: argparse.Namespace) -> None:
    """Rejects the torchrun flags that elasticrun cannot honour."""
    if args.numa_binding is not None:
        raise UsageError("--numa-binding is not supported by elasticrun; leave the flag out, or use torchrun")
    if args.logs_specs not in (None, "default"):
        raise UsageError(
            f"--logs-specs={args.logs_specs}: elasticrun supports only `default`; leave the flag out, or use torchrun"
        )
    if args.master_addr != DEFAULT_MASTER_ADDR:
        logger.warning(
            "--master-addr=%s has no effect: MASTER_ADDR is the address of the member with rank 0, which may change; "
            "set this member's with --local-addr",
            args.master_addr,
        )


def master_port(port: int | None) -> int | None:
    """--master-port. Raises UsageError."""
    last = 65535 - network.STORE_PORTS + 1
    if port is not None and not 1 <= port <= last:
        raise UsageError(
            f"--master-port={port}: write a TCP port from 1 to {last}; "
            f"the {network.STORE_PORTS - 1} after it are used too"
        )
    return port


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


def check_replicas(size: int, nnodes: tuple[int, int], *, in_place: bool) -> None:
    """--replica-size. Raises UsageError."""
    if size and any(number % size for number in nnodes):
        least, most = nnodes
        raise UsageError(
            f"--replica-size={size}: the members must be whole replicas, but --nnodes is "
            f"{least if least == most else f'{least}:{most}'}; write multiples of {size}"
        )
    if size > MAX_REPLICA_SIZE:
        raise UsageError(f"--replica-size={size}: a replica has at most {MAX_REPLICA_SIZE} members")
    if size and not in_place:
        raise UsageError(f"--replica-size={size}: replicas train together in place only; remove --in-place=off")


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
