"""`python -m benchmarks.random_run`: see `--help`. Exits with 1 if the training is not the undisturbed one."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import benchmarks.random_run
from benchmarks.etcd import Etcd
from benchmarks.random_run.faults import Kind
from benchmarks.random_run.run import AGENTS, START_LIMIT, Injected, RandomJob, undisturbed
from benchmarks.random_run.verdict import difference, history, lost_and_repeated, stalls
from benchmarks.recovery.job import JobError
from hack.cluster.output import ClusterError

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    arguments = _parse()
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-random-"))
    console.print(f"seed {arguments.seed}, load {os.getloadavg()[0]:.1f}, logs: {folder}")
    try:
        same = run(folder, arguments.seconds, arguments.every, random.Random(arguments.seed))
    except (JobError, ClusterError) as error:
        console.print(f"failed: {error}; logs: {folder}")
        return 1
    if same and not arguments.keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if same else 1


def run(folder: Path, seconds: float, every: float, chance: random.Random) -> bool:
    """Whether the training was the undisturbed one. Raises JobError."""
    injected: list[Injected] = []
    with Etcd(folder) as etcd, RandomJob(folder / "job", etcd.endpoint) as job:
        job.start(AGENTS)
        job.wait_training(AGENTS, START_LIMIT)
        for one in job.faults(chance, seconds, every):
            injected.append(one)
            console.print(f"{len(injected)}: at step {one.step}, {one.fault.kind.value} {' '.join(one.fault.members)}")
        job.finish()
        ledger = job.update()
    expected = undisturbed(folder / "undisturbed", int((folder / "job" / "epochs").read_text()))

    found = history(ledger.begun, ledger.commits)
    lost, repeated = lost_and_repeated(found, history(expected.begun, expected.commits))
    costs = stalls(found.first, [one.time for one in injected])
    console.print(table(injected, costs))
    console.print(
        f"{len(injected)} faults, {len(found.samples)} steps, of which {found.repeated} were taken again after some "
        f"process had committed them; samples lost: {lost}, repeated: {repeated}; load {os.getloadavg()[0]:.1f}"
    )
    differences = compare(folder)
    for name, what in differences.items():
        console.print(f"{name}: {what or 'weights, optimizers, scheduler and buffers equal to the undisturbed run'}")
    return not (lost or repeated or any(differences.values())) and bool(differences)


def table(injected: Sequence[Injected], costs: Sequence[float]) -> Table:
    """The stalls, by kind of fault."""
    result = Table("", "times", "stall: median", "longest")
    for name, kinds in [*((kind.value, [kind]) for kind in Kind), ("all", list(Kind))]:
        values = [cost for one, cost in zip(injected, costs, strict=True) if one.fault.kind in kinds]
        if values:
            figures = (f"{value * 1000:.0f} ms" for value in (statistics.median(values), max(values)))
            result.add_row(name, str(len(values)), *figures)
    return result


def compare(folder: Path) -> dict[str, str]:
    """Where the state of each process that trained to the end differs from the undisturbed one."""
    (expected,) = (folder / "undisturbed" / "states").iterdir()
    state = torch.load(expected)
    return {path.stem: difference(torch.load(path), state) for path in sorted((folder / "job" / "states").glob("*.pt"))}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_run",
        description=benchmarks.random_run.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="of faults (default: 240)")
    parser.add_argument("--every", type=float, default=5.0, help="s between two faults, on average (default: 5)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="what happens when (default: a random one)"
    )
    parser.add_argument("--keep-logs", action="store_true", help="also those of a run that succeeds")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
