"""Which checks a member fails before it joins, and whether they are to be trusted. Pure.

A check fails by itself, such as a command with another exit code than 0, or because what it measured is far from what
the other members have measured. One that more than half of the machines fail says more about the check than about
them, so it is distrusted. Where all members are on one machine, more than half of the members.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.contract import PreflightValue

BASIC, NETWORK = "Basic", "Network"
CHECKS = (BASIC, NETWORK)
"""What `--preflight` may name."""
COMPUTE, ROUND_TRIP, ACCELERATORS, BANDWIDTH = "compute", "etcd", "accelerators", "network"
"""Measured: s, s, a number and MB/s."""
ROUNDS = 3
"""Of transfers between pairs of members."""
MIN_OTHERS = 2
"""With fewer other members, there is nothing to compare with."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreflightSettings:
    checks: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    timeout: float = 60.0
    """Seconds that the command may take."""

    @property
    def enabled(self) -> bool:
        return bool(self.checks or self.command)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreflightOutcome:
    """What is known of this member."""

    failed: Mapping[str, str]
    """Trusted checks that it fails: what each of them found."""
    distrusted: Mapping[str, str]
    """Checks that it fails like most of the others."""


def _too_slow(value: float, median: float, least: float) -> bool:
    return value > 3 * median and value - median > least


def _megabytes(speed: float) -> str:
    """
    >>> _megabytes(2820.4), _megabytes(1.7345)
    ('2820 MB/s', '1.73 MB/s')
    """
    return f"{speed:.0f} MB/s" if speed >= 100 else f"{speed:.3g} MB/s"


_COMPARED: Mapping[str, tuple[Callable[[float, float], bool], Callable[[float], str]]] = {
    COMPUTE: (lambda value, median: _too_slow(value, median, 0.05), lambda value: f"{value:.3g} s"),
    ROUND_TRIP: (lambda value, median: _too_slow(value, median, 0.1), lambda value: f"{value:.3g} s"),
    BANDWIDTH: (lambda value, median: 3 * value < median, _megabytes),
    ACCELERATORS: (lambda value, median: value < median, lambda value: f"{value:g}"),
}
"""By check: whether a value is bad, given the median of the others, and how it is shown."""


def judge(me: str, reports: Mapping[str, PreflightValue]) -> PreflightOutcome:
    """`reports`: by member, this one included."""
    findings = {member: _findings(member, reports) for member in reports}
    failed, distrusted = {}, {}
    groups, unit = _by_machine(reports), "machines"
    if len(groups) in (1, len(reports)):
        groups, unit = [[member] for member in reports], "members"
    for check, found in findings[me].items():
        count = sum(all(check in findings[member] for member in group) for group in groups)
        if len(groups) > 1 and 2 * count > len(groups):
            distrusted[check] = f"{found}; {count} of {len(groups)} {unit} fail this check, so it is ignored"
        else:
            failed[check] = found
    return PreflightOutcome(failed=failed, distrusted=distrusted)


def _by_machine(reports: Mapping[str, PreflightValue]) -> list[list[str]]:
    """The members on each, those that have ended included."""
    found: dict[str, list[str]] = {}
    for member, report in reports.items():
        found.setdefault(report.machine or f"of {member}", []).append(member)
    return list(found.values())


def _findings(member: str, reports: Mapping[str, PreflightValue]) -> dict[str, str]:
    """The checks that a member fails."""
    own = reports[member]
    found = dict(own.failed)
    for check, (is_bad, show) in _COMPARED.items():
        others = _measured(check, [report for name, report in reports.items() if name != member])
        value = own.measured.get(check)
        if value is None or len(others) < MIN_OTHERS or check in found:
            continue
        median = statistics.median(others)
        if is_bad(value, median):
            found[check] = f"{show(value)}, median of the others {show(median)}"
    return found


def _measured(check: str, reports: Sequence[PreflightValue]) -> list[float]:
    return [report.measured[check] for report in reports if check in report.measured]


def deal(speeds: Mapping[str, float | None], round_number: int) -> list[tuple[str, str]]:
    """The pairs of members that transfer data in this round, from 1. `speeds`: the best of each in the rounds before,
    MB/s; None: unknown.

    In the first round, neighbours by name are a pair. In the second, the slower ones are with the faster ones, which
    clears a member that was only slow because its partner is. Of an odd number, the last by name waits for the third
    round, for the fastest.
    """
    names = sorted(speeds)
    last = names.pop() if len(names) % 2 else ""
    by_speed = sorted(names, key=lambda name: (speeds[name] or 0.0, name))
    match round_number:
        case 1:
            return list(zip(names[::2], names[1::2], strict=True))
        case 2:
            half = len(names) // 2
            return list(zip(by_speed[:half], reversed(by_speed[half:]), strict=True))
        case _:
            return [(by_speed[-1], last)] if last and names else []


def partner(me: str, pairs: Sequence[tuple[str, str]]) -> str | None:
    return next((one if me == other else other for one, other in pairs if me in (one, other)), None)


def waits(me: str, reports: Mapping[str, PreflightValue], least: int) -> bool:
    """Whether to wait for further reports: others still transfer data, and this member's speed is compared with theirs;
    or a check fails, and too few members have run it to trust that. `least`: the
    fewest members that train."""
    if any(report.endpoint for name, report in reports.items() if name != me) and BANDWIDTH in reports[me].measured:
        return True
    return len(reports) < max(1, least) and bool(judge(me, reports).failed)


def describe(failed: Mapping[str, str]) -> str:
    """
    >>> describe({"command": "exit code 3: no link", "compute": "3.1 s, median of the others 0.9 s"})
    'command: exit code 3: no link; compute: 3.1 s, median of the others 0.9 s'
    """
    return "; ".join(f"{check}: {found}" for check, found in sorted(failed.items()))
