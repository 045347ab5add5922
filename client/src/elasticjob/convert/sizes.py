"""How many worker pods and processes, and how many restarts: from fields, from flags of the launcher, and within the
bounds that an ElasticJob has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from elasticjob_api.spec import MAX_SIZES, MAX_WORKERS

from elasticjob.convert.command import Launch, Style, Word
from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path
from elasticjob.convert.table import ConvertError

MAX_RESTARTS, MAX_GRACE, MAX_PROCS = 1_000_000, 86_400, 1024
REPLICAS, MIN, MAX = "spec.workers.replicas", "spec.workers.minReplicas", "spec.workers.maxReplicas"
ALLOWED, PROCS = "spec.workers.allowedReplicas", "spec.workers.procsPerWorker"
RESTARTS, GRACE = "spec.failurePolicy.maxRestarts", "spec.lifecycle.gracefulShutdownSeconds"
RULES = "spec.failurePolicy.rules"

Bounds = tuple[int | None, int | None]
"""The fewest and the most worker pods. None: a job of a fixed size."""


def set_sizes(draft: Draft, replicas: int, at: Path, bounds: Bounds, launch: Launch) -> None:
    """`at`: where the number of replicas is in the input, for the notes."""
    low, high = _with_nnodes(draft, bounds, launch.settings.get("nnodes"))
    low, high = low or high, high or low
    if low is not None and high is not None and low > high:
        raise ConvertError(f"the fewest replicas, {low}, are more than the most, {high}: correct either")
    if replicas == 0:
        draft.set("spec.suspend", True)
        draft.changed(at, "no replicas means a suspended job", "resume it with spec.suspend: false")
    wanted = max(low or 1, min(replicas, high or MAX_WORKERS))
    if replicas not in (0, wanted):
        why = f"{replicas} worker pods are outside of the job's bounds, so it starts with {wanted}"
        draft.changed(at, why, to=REPLICAS)
    draft.set(REPLICAS, wanted)
    if (low, high) not in ((None, None), (wanted, wanted)):
        draft.set(MIN, low)
        draft.set(MAX, high)
    _set_allowed(draft, launch.settings.get("node_unit"))


def _with_nnodes(draft: Draft, bounds: Bounds, nnodes: Word | None) -> Bounds:
    """The bounds of `--nnodes MIN:MAX`, if no field gives any."""
    if nnodes is None:
        return bounds
    match = re.fullmatch(r"(\d+):(\d+)", nnodes.text)
    flag = (int(match[1]), int(match[2])) if match else (0, 0)
    given = bounds[0] or bounds[1]
    if all(flag) and not given:
        draft.carried(nnodes.path, "the launcher's range of nodes", to=f"{MIN} and {MAX}")
        return flag
    why = "the number of worker pods is a field of the ElasticJob"
    if match and given and flag != bounds:
        why += f", and the job's own bounds, {bounds[0]} to {bounds[1]}, take precedence"
        draft.changed(nnodes.path, why, "correct minReplicas and maxReplicas if you meant the flag's")
    else:
        draft.irrelevant(nnodes.path, why)
    return bounds


def _set_allowed(draft: Draft, unit: Word | None) -> None:
    """The multiples of a number of worker pods."""
    if unit is None:
        return
    step = int(unit.text) if unit.text.isdecimal() else 0
    low = draft.get(MIN) or draft.get(REPLICAS)
    if step < 1 or low % step:
        why = f"the fewest worker pods, {low}, are not a multiple of {unit.text}"
        draft.lost(unit.path, why, f"set a minReplicas that fits, and {ALLOWED}")
        return
    sizes = range(low, (draft.get(MAX) or low) + 1, step)
    if len(sizes) > MAX_SIZES:
        draft.lost(unit.path, f"{len(sizes)} sizes are more than {MAX_SIZES}", f"list those that you use in {ALLOWED}")
        return
    if step == 1 or len(sizes) == 1:
        draft.irrelevant(unit.path, "it excludes no number of worker pods")
        return
    draft.set(ALLOWED, list(sizes))
    draft.carried(unit.path, "worker pods train in multiples of this number", to=ALLOWED)


def set_procs(
    draft: Draft, launch: Launch, *, default: int | str | None, fields: Mapping[Path, Any] | None = None
) -> None:
    """`default`: processes per node if nothing says how many; None: ElasticJob's own, auto. `fields`: those of the job
    that give a number for torchrun; the last one counts.

    A script that is started with python runs once in each pod, whatever number is set for torchrun.
    """
    given = {path: value for path, value in (fields or {}).items() if value is not None}
    flag, auto = launch.settings.get("nproc_per_node"), launch.settings.get("auto_config")
    if launch.style is Style.SCRIPT:
        for path in (*given, *([flag.path] if flag else [])):
            why = "python runs the script once in each pod; this number is for torchrun"
            draft.changed(path, why, f"set {PROCS} if each worker pod should run several", to=PROCS)
        draft.set(PROCS, 1)
        return
    if flag:
        for path in given:
            draft.irrelevant(path, "the launcher's own flag takes precedence")
        given = {flag.path: flag.text}
    for path, value in given.items():
        _set_procs(draft, value, path)
    if auto:
        draft.carried(auto.path, "one process for each GPU", to=PROCS)
        draft.set(PROCS, "auto")
    if draft.get(PROCS) is None and default is not None:
        draft.set(PROCS, default)


def _set_procs(draft: Draft, value: Any, path: Path) -> None:
    """`8`, also as text, or auto, cpu, gpu."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if value in ("auto", "cpu", "gpu") or (is_number and 1 <= number <= MAX_PROCS):
        draft.set(PROCS, number)
        draft.carried(path, "processes in each worker pod", to=PROCS)
    else:
        why = f"{value!r} is neither auto, cpu, gpu nor a number from 1 to {MAX_PROCS}"
        draft.lost(path, why, f"set {PROCS}")


def set_restarts(draft: Draft, launch: Launch) -> None:
    """From the launcher's flags, where no field of the job has set them yet."""
    for name, to, most in (("max_restarts", RESTARTS, MAX_RESTARTS), ("shutdown_timeout", GRACE, MAX_GRACE)):
        flag = launch.settings.get(name)
        if flag is None:
            continue
        there = draft.get(to)
        if not flag.text.isdecimal() or int(flag.text) > most:
            draft.lost(flag.path, f"{flag.text} is not a number from 0 to {most}", f"set {to}")
        elif there is None:
            draft.set(to, int(flag.text))
            draft.carried(flag.path, "", to=to)
        elif there == int(flag.text):
            draft.irrelevant(flag.path, f"a field of the job sets it too, to {there}")
        else:
            draft.changed(flag.path, f"a field of the job sets it too, to {there}", to=to)


def set_backoff_limit(draft: Draft, limit: Any, path: Path) -> None:
    """A limit of retries that is not the one of the launcher, if there is one."""
    budget = draft.get(RESTARTS)
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_RESTARTS:
        draft.lost(path, f"{limit!r} is not a number from 0 to {MAX_RESTARTS}", f"set {RESTARTS}")
    elif budget is None:
        draft.set(RESTARTS, limit)
    else:
        why = f"an ElasticJob has one budget of restarts, which is already set to {budget}"
        draft.lost(path, why, f"raise {RESTARTS} if you relied on retries of pods too")


EXIT_CODES_THAT_FAIL = [list(range(1, 65)), list(range(65, 128))]
"""1 to 127, in lists as long as a rule may have."""


def set_restart_policy(draft: Draft, policy: object, at: Path, launch: Launch) -> None:
    """The restartPolicy of a replica, after the numbers of restarts are known."""
    budget = draft.get(RESTARTS)
    if policy in ("OnFailure", "Always"):
        why = "the whole group restarts, and only as often as spec.failurePolicy.maxRestarts allows"
        most = 10 if budget is None else budget
        draft.changed(at, why, f"raise maxRestarts ({most}) if failures are frequent", to=RESTARTS)
    elif policy == "Never" and budget is None:
        draft.set(RESTARTS, 0)
        draft.changed(at, "a failure ends the job, but lost and preempted worker pods are replaced", to=RESTARTS)
    elif policy == "Never":
        draft.changed(at, f"failures restart the whole group, up to {budget} times", f"set {RESTARTS}", to=RESTARTS)
    elif policy == "ExitCode" and launch.style is Style.LAUNCHER:
        why = "the launcher ends with exit code 1 whatever happened, so exit codes of the script never counted"
        draft.changed(at, why, f"add {RULES} with action Fail for exit codes that must end the job", to=RESTARTS)
    elif policy == "ExitCode":
        draft.set(RULES, [{"exitCodes": codes, "action": "Fail"} for codes in EXIT_CODES_THAT_FAIL])
        draft.carried(at, "exit codes 1 to 127 end the job, others restart it", to=RULES)
    elif policy is not None:
        draft.lost(at, f"{policy!r} is none of Always, OnFailure, Never, ExitCode", "set spec.failurePolicy")
