"""The flags that torchrun does not have, each declared once: its name, type, default, help, reference and the setting
that it sets.

`PET_<FLAG>`, the handover to torchrun and the table in docs/reference/elasticrun.md (`make generate`) follow from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shlex
from collections.abc import Callable
from typing import Any, TypeAlias

from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import MAX_REPLICA_SIZE, Env
from elasticjob_runtime.membership.crash_loop import DEFAULT_STALLED_RESTARTS, CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.preflight import CHECKS, PreflightSettings
from elasticjob_runtime.membership.stragglers import StragglerSettings
from elasticjob_runtime.membership.view import MemberSettings
from elasticjob_runtime.rendezvous.config import default_of
from elasticjob_runtime.workers.environment import GroupSpec

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
"""In Markdown."""

Check: TypeAlias = Callable[[Any], str | None]
"""Returns what is wrong with a value, as in `must be 0 or more`; None: nothing."""


def at_least_0(value: float | None) -> str | None:
    return None if value is None or value >= 0 else "must be 0 or more"


def factor_or_0(value: float) -> str | None:
    valid = math.isfinite(value) and (value == 0 or value >= 1)
    return None if valid else "must be 1 or more, or 0 for never"


def seconds_or_0(value: float) -> str | None:
    return None if math.isfinite(value) and value >= 0 else "must be a number of seconds, 0 or more"


def either(yes: str, no: str) -> Callable[[str], bool]:
    """Converts one of two words. The conversion raises ArgumentTypeError."""

    def convert(text: str) -> bool:
        if text not in (yes, no):
            raise argparse.ArgumentTypeError(f"must be {yes} or {no}, not {text}")
        return text == yes

    return convert


def above_0(value: float) -> str | None:
    return None if math.isfinite(value) and value > 0 else "must be a number of seconds above 0"


def names_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Converts names that are separated by commas. The conversion raises ArgumentTypeError."""

    def convert(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        if text and not names:
            raise argparse.ArgumentTypeError(f"must name at least one of {', '.join(known)}")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, not {unknown[0]}")
        return names

    return convert


def words(text: str) -> tuple[str, ...]:
    """Converts a command line. Raises ArgumentTypeError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a command line: {error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag."""

    name: str
    value: str = ""
    """The name of its value, for people; empty: the flag is a switch."""
    convert: Callable[[str], Any] = str
    default: Any = None
    variable: str = ""
    """An environment variable that replaces the default, besides PET_<FLAG>."""
    about: str
    """For docs/reference/elasticrun.md, in Markdown, and --help."""
    sets: tuple[type, str] | None = None
    """The dataclass of settings, and its field; None: the flag is read where it is used in cli/."""
    check: Check = lambda _value: None

    @property
    def dest(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def help(self) -> str:
        """`about` as plain text.

        >>> Flag(name="--x", about="see [Events](#events): `auto`").help
        'see Events: auto'
        """
        return _LINK.sub(r"\1", self.about).replace("`", "")

    @property
    def arguments(self) -> int:
        return 1 if self.value else 0


OWN_FLAGS = (
    Flag(
        name="--preload",
        value="MODULES",
        default="auto",
        about="further modules for the process that forks the worker processes, separated by commas. `auto` (default): "
        "what the script imports, from site-packages only, learned in the first seconds of a run and passed on to "
        "members that join later. A module that cannot be shared (it starts threads or processes, touches a GPU, "
        "opens a connection or creates a semaphore) is left out, and the log names it. A module that reads `RANK` "
        "or similar variables is imported by each waiting worker process, for the rank it will have",
    ),
    Flag(
        name="--in-place",
        value="auto|off",
        convert=either("auto", "off"),
        default=True,
        about="`auto` (default): worker processes whose script has an [ElasticSession](../explanation/in-place.md) "
        "continue when the group changes. `off`: they restart, as those of other scripts do",
        sets=(GroupSpec, "in_place"),
    ),
    Flag(
        name="--replica-size",
        value="MEMBERS",
        convert=int,
        default=default_of(MemberSettings, "replica_size"),
        about="members (agents) of each [replica](../explanation/in-place.md#replicas), whose worker processes are a "
        "world of their own: for sharded models, whose Python script has an ElasticSession. `--nnodes` must be "
        f"multiples of it, and it is at most {MAX_REPLICA_SIZE}. 0 (default): all worker processes are one world",
        sets=(MemberSettings, "replica_size"),
        check=at_least_0,
    ),
    Flag(
        name="--no-auto-progress",
        default=False,
        about="does not count the optimizer steps and backward passes of scripts that do not report their progress "
        "(see [Progress](#progress))",
        sets=(GroupSpec, "no_auto_progress"),
    ),
    Flag(
        name="--ack-timeout",
        value="SECONDS",
        convert=float,
        default=default_of(GroupSpec, "ack_timeout"),
        about="replaces a worker process that continues in place if it does not respond to a plan within this time; "
        f"0: never. Default: {default_of(GroupSpec, 'ack_timeout'):g}. A thread of its own responds, whatever the "
        "script does",
        sets=(GroupSpec, "ack_timeout"),
        check=seconds_or_0,
    ),
    Flag(
        name="--arrive-timeout",
        value="SECONDS",
        convert=float,
        default=default_of(GroupSpec, "arrive_timeout"),
        about="replaces a worker process that continues in place if it does not end its step, or what it does between "
        "two steps, within this time after a plan; 0: never. The others wait for it meanwhile. Default: "
        f"{default_of(GroupSpec, 'arrive_timeout'):g}. Set it above the time that your evaluation takes",
        sets=(GroupSpec, "arrive_timeout"),
        check=seconds_or_0,
    ),
    Flag(
        name="--stopped-timeout",
        value="SECONDS",
        convert=float,
        default=default_of(GroupSpec, "stopped_timeout"),
        about="treats a worker process as failed if a signal such as SIGSTOP has stopped it for this long; 0: never. "
        f"Default: {default_of(GroupSpec, 'stopped_timeout'):g}. A debugger's breakpoints are no such signal",
        sets=(GroupSpec, "stopped_timeout"),
        check=seconds_or_0,
    ),
    Flag(
        name="--events", value="FILE", about="writes every phase of every change as JSON lines (see [Events](#events))"
    ),
    Flag(
        name="--metrics-port",
        value="PORT",
        convert=int,
        default=0,
        variable=Env.METRICS_PORT,
        about=f"serves Prometheus metrics at `/metrics`; 0 (default): none. Also `{Env.METRICS_PORT}` "
        "(see [Metrics](#metrics))",
    ),
    Flag(
        name="--port-range",
        value="LOW-HIGH",
        about="TCP ports that the agent listens on (see [What listens](#what-listens)). Default: any. Same as "
        "`--rdzv-conf port_range=`",
    ),
    Flag(
        name="--max-stalled-restarts",
        value="N",
        convert=int,
        about="consecutive restarts without progress after which the job fails; 0: no limit. Default: "
        f"{DEFAULT_STALLED_RESTARTS} if the script reports steps, else 0",
        sets=(CrashLimits, "max_stalled"),
        check=at_least_0,
    ),
    Flag(
        name="--before-first-step",
        value="fail|restart",
        convert=either("fail", "restart"),
        default=True,
        about="`fail` (default): the job fails, with reason `ScriptFails`, if the script raises the same exception on "
        "the same line twice before it has trained: before it has reported a step or a checkpoint, or run for a "
        "minute. Errors that are known to be of the network, storage or peers do not count. `restart`: it is restarted "
        "as often as `--max-restarts` allows",
        sets=(CrashLimits, "fail_before_first_step"),
    ),
    Flag(
        name="--hang-factor",
        value="K",
        convert=float,
        default=default_of(HangLimits, "factor"),
        about="looks for a hang if worker processes take no step for K times the median, and `hang_min` seconds, "
        "except during pauses that they announce (see [Hangs](#hangs)); 0: never. "
        f"Default: {default_of(HangLimits, 'factor'):g}",
        sets=(HangLimits, "factor"),
        check=factor_or_0,
    ),
    Flag(
        name="--hang-action",
        value="restart|report",
        convert=either("restart", "report"),
        default=True,
        about="`restart` (default): restarts the worker processes if that helps. `report`: only says what hangs",
        sets=(HangLimits, "restarts"),
    ),
    Flag(
        name="--straggler-factor",
        value="K",
        convert=float,
        default=default_of(StragglerSettings, "factor"),
        about="names a rank as slow if its own time of a step is K times the median of the others, three times in a "
        "row (see [Ranks that are slow](../guides/slow-jobs.md#ranks-that-are-slow)); 0: never. "
        f"Default: {default_of(StragglerSettings, 'factor'):g}",
        sets=(StragglerSettings, "factor"),
        check=factor_or_0,
    ),
    Flag(
        name="--preflight",
        value="CHECKS",
        convert=names_of(CHECKS),
        default=(),
        about="checks of this machine before the agent joins, separated by commas: `Basic`, `Network` (see "
        "[Find what slows a job down](../guides/slow-jobs.md#check-machines-before-they-join)). Default: none. An "
        "agent whose machine fails one exits with 79, unless more than half of the machines fail it",
        sets=(PreflightSettings, "checks"),
    ),
    Flag(
        name="--preflight-command",
        value="COMMAND",
        convert=words,
        default=(),
        about="a check of your own before the agent joins, as a command line without a shell; its exit code must be 0",
        sets=(PreflightSettings, "command"),
    ),
    Flag(
        name="--preflight-timeout",
        value="SECONDS",
        convert=float,
        default=default_of(PreflightSettings, "timeout"),
        about="kills the preflight command after this time, which is a failure. "
        f"Default: {default_of(PreflightSettings, 'timeout'):g}",
        sets=(PreflightSettings, "timeout"),
        check=above_0,
    ),
    Flag(name="--debug", about="shows tracebacks and the details of the rendezvous"),
)


def settings_from_flags(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The fields of `settings` that own flags set, by name. Raises UsageError."""
    values: dict[str, Any] = {}
    for flag in OWN_FLAGS:
        if flag.sets is None or flag.sets[0] is not settings:
            continue
        value = getattr(args, flag.dest)
        if wrong := flag.check(value):
            text = f"{value:g}" if isinstance(value, float) else value
            raise UsageError(f"{flag.name}={text}: {wrong}")
        values[flag.sets[1]] = value
    return values


def reference() -> str:
    """The table of docs/reference/elasticrun.md."""
    rows = [f"| `{' '.join(filter(None, (flag.name, flag.value)))}` | {flag.about} |" for flag in OWN_FLAGS]
    return "\n".join(["| flag | meaning |", "|---|---|", *rows]) + "\n"
