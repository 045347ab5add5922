"""`python -m hack.chaos`: see `--help`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich.console import Console

from hack.chaos.faults import FAULTS, Fault
from hack.chaos.processes import load
from hack.chaos.report import complaints, table
from hack.chaos.run import LOGS, Result, Stage, run_fault
from hack.chaos.storm import storm
from hack.cluster import ClusterError
from hack.demo import set_up
from hack.drivers import ClusterDriver, cluster_driver

CONSOLE = Console(highlight=False)


def main() -> int:
    arguments = _parse()
    if arguments.list:
        for fault in FAULTS:
            print(f"{fault.name:24} {fault.what}")
        return 0
    driver = cluster_driver()
    if driver.power is None:
        CONSOLE.print(f"chaos: {driver.no_power}", markup=False)
        return 2
    try:
        set_up(driver)
        return _run(driver, arguments)
    except ClusterError as error:
        CONSOLE.print(f"chaos: {error}", markup=False)
        return 1
    finally:
        if not arguments.keep:
            driver.down()


def _run(driver: ClusterDriver, arguments: argparse.Namespace) -> int:
    results: list[Result] = []
    end = time.monotonic() + arguments.minutes * 60
    with load(arguments.load, arguments.minutes * 60), Stage(driver) as stage:
        try:
            for fault, killed in _course(arguments):
                if time.monotonic() > end:
                    CONSOLE.print(
                        f"time limit of {arguments.minutes:g} minutes reached: the remaining faults are not run"
                    )
                    break
                results.append(_one(stage, driver, fault, killed))
            stage.end()
        except KeyboardInterrupt:
            CONSOLE.print("interrupted: results so far")
    text = f"{table(results)}\n"
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "results.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    wrong = [*complaints(results), *(f"left behind: {item}" for item in stage.left)]
    for line in wrong:
        CONSOLE.print(f"[bold red]✗[/] {line}", soft_wrap=True)
    CONSOLE.print(
        f"{len(results)} runs, {len(wrong)} broken promises; load average {os.getloadavg()[0]:.1f}; in {LOGS}"
    )
    return 1 if wrong or not results else 0


def _one(stage: Stage, driver: ClusterDriver, fault: Fault, killed: bool) -> Result:
    name = f"{fault.name}{' + operator killed' if killed else ''}"
    started = time.monotonic()
    result = run_fault(stage, driver, fault, killed)
    mark = "[bold red]✗[/]" if result.broken else "[bold green]✓[/]"
    figures = (
        f"pause {result.pause:.1f} s, {result.redone} steps redone, {result.restarts} restarts, "
        f"{result.deleted} pods replaced"
    )
    both = (
        f", two groups for {result.together:.1f} s, {result.extra_commits} extra commits" if result.together > 0 else ""
    )
    both += f", the earlier group continued for {result.continued:.0f} s" if fault.expect.ends_within or both else ""
    CONSOLE.print(f"{mark} {name:44} {figures}{both} [dim]({time.monotonic() - started:.0f} s)[/]", soft_wrap=True)
    for line in result.broken:
        CONSOLE.print(f"    {line}", soft_wrap=True, markup=False)
    return result


def _course(arguments: argparse.Namespace) -> list[tuple[Fault, bool]]:
    """All runs, grouped by layout."""
    chosen = [fault for fault in FAULTS if not arguments.faults or fault.name in arguments.faults]
    if arguments.smoke:
        chosen = [fault for fault in chosen if fault.smoke]
    layouts = list(dict.fromkeys(fault.layout for fault in chosen))
    chosen.sort(key=lambda fault: layouts.index(fault.layout))
    variants = (False, True) if arguments.nightly else (arguments.kill_operator,)
    runs = [(fault, killed) for fault in chosen for killed in variants for _ in range(arguments.runs)]
    seeds = range(arguments.seed, arguments.seed + arguments.storms)
    return [*runs, *((storm(seed, arguments.storm_seconds), False) for seed in seeds)]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hack.chaos",
        description="Injects faults into real pods, and audits a ledger of everything that was trained and saved. "
        "Needs root, because the nodes run on this machine.",
    )
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    parser.add_argument(
        "--faults", type=lambda text: text.split(","), default=[], help="only these faults, comma-separated"
    )
    parser.add_argument("--smoke", action="store_true", help="only the few faults that the end-to-end tests run")
    parser.add_argument("--runs", type=int, default=1, help="runs of each fault (1)")
    parser.add_argument("--kill-operator", action="store_true", help="kill the operator a second into each fault")
    parser.add_argument(
        "--nightly",
        action="store_true",
        help="each fault with and without killing the operator, then three random storms",
    )
    parser.add_argument("--storms", type=int, default=None, help="random schedules after the faults (0; nightly: 3)")
    parser.add_argument("--storm-seconds", type=float, default=120.0, help="duration of each random schedule (120)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first random schedule (1)")
    parser.add_argument(
        "--load", type=int, default=0, help="processes that burn CPU in the background, at low priority (0)"
    )
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no further fault after this time (60; nightly: 240)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    arguments = parser.parse_args()
    arguments.storms = arguments.storms if arguments.storms is not None else 3 if arguments.nightly else 0
    arguments.minutes = arguments.minutes if arguments.minutes is not None else 240.0 if arguments.nightly else 60.0
    unknown = set(arguments.faults) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; --list shows all")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
