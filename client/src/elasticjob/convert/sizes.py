"""How many worker pods and processes, and how many restarts: from fields, from flags of the launcher, and within the
bounds that an ElasticJob has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from elasticjob_api.spec import MAX_WORKERS

from elasticjob.convert.command import Launch, Setting, Style
from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path
from elasticjob.convert.table import ConvertError, Outcome, RejectedValue
from elasticjob.convert.values import procs_per_worker

MAX_RESTARTS = 1_000_000
MAX_GRACE = 86_400
REPLICAS, MIN, MAX = "spec.workers.replicas", "spec.workers.minReplicas", "spec.workers.maxReplicas"
STEP, PROCS = "spec.workers.replicaStep", "spec.workers.procsPerWorker"
RESTARTS, GRACE = "spec.restartPolicy.maxRestarts", "spec.lifecycle.gracefulShutdownSeconds"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The fewest and the most worker pods. None: a job of a fixed size."""

    low: int | None = None
    high: int | None = None


def set_sizes(draft: Draft, replicas: int, at: Path, bounds: Bounds, launch: Launch) -> None:
    """`at`: where the number of replicas is in the input, for the notes."""
    bounds = _with_nnodes(draft, bounds, launch.settings.get("nnodes"))
    low, high = bounds.low or bounds.high, bounds.high or bounds.low
    if low is not None and high is not None and low > high:
        raise ConvertError(f"the fewest replicas, {low}, are more than the most, {high}: correct either")
    if replicas == 0:
        draft.set("spec.lifecycle.suspend", True)
        draft.changed(at, "no replicas means a suspended job", "resume it with lifecycle.suspend: false")
    wanted = max(low or 1, min(replicas, high or MAX_WORKERS))
    if replicas not in (0, wanted):
        draft.changed(
            at, f"{replicas} worker pods are outside of the job's bounds, so it starts with {wanted}", to=REPLICAS
        )
    draft.set(REPLICAS, wanted)
    if (low, high) not in ((None, None), (wanted, wanted)):
        draft.set(MIN, low)
        draft.set(MAX, high)
    _set_step(draft, launch.settings.get("node_unit"))


def _with_nnodes(draft: Draft, bounds: Bounds, nnodes: Setting | None) -> Bounds:
    """The bounds of `--nnodes MIN:MAX`, if no field gives any."""
    if nnodes is None:
        return bounds
    match = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes.value)
    given = bounds.low or bounds.high
    if match and match[2] and not given and int(match[1]) and int(match[2]):
        draft.note(
            nnodes.path, Outcome.CARRIED, "the launcher's range of nodes", to=f"{MIN} and {MAX}", also=nnodes.also
        )
        return Bounds(int(match[1]), int(match[2]))
    why = "the number of worker pods is a field of the ElasticJob"
    if given and match and match[2] and (int(match[1]), int(match[2])) != (bounds.low, bounds.high):
        why += f", and the job's own bounds, {bounds.low} to {bounds.high}, take precedence"
        draft.note(
            nnodes.path,
            Outcome.CHANGED,
            why,
            "correct minReplicas and maxReplicas if you meant the flag's",
            also=nnodes.also,
        )
    else:
        draft.note(nnodes.path, Outcome.IRRELEVANT, why, also=nnodes.also)
    return bounds


def _set_step(draft: Draft, unit: Setting | None) -> None:
    if unit is None:
        return
    step = int(unit.value) if unit.value.isdecimal() else 0
    low = draft.get(MIN) or draft.get(REPLICAS)
    if step < 1 or low % step:
        why = f"the fewest worker pods, {low}, are not a multiple of {unit.value}"
        draft.note(unit.path, Outcome.LOST, why, f"set {STEP} and a minReplicas that fits", also=unit.also)
        return
    if step > 1:
        draft.set(STEP, step)
    draft.note(unit.path, Outcome.CARRIED, "worker pods train in multiples of this number", to=STEP, also=unit.also)


def set_procs(draft: Draft, launch: Launch, *, default: int | str | None, fields: Iterable[Path] = ()) -> None:
    """`default`: processes per node if nothing says how many; None: ElasticJob's own, auto. `fields`: those of the job
    that give a number for torchrun.

    A script that is started with python runs once in each pod, whatever number is set for torchrun.
    """
    flag = launch.settings.get("nproc_per_node")
    if launch.style is Style.SCRIPT:
        draft.set(PROCS, 1)
        for path in (*fields, *([flag.path] if flag else [])):
            why = "python runs the script once in each pod; this number is for torchrun"
            draft.changed(path, why, f"set {PROCS} if each worker pod should run several", to=PROCS)
        return
    if flag is not None:
        for path in fields:
            draft.irrelevant(path, "the launcher's own flag takes precedence")
        _set_from(draft, flag, PROCS, "processes in each worker pod")
    if "auto_config" in launch.settings:
        auto = launch.settings["auto_config"]
        draft.note(auto.path, Outcome.CARRIED, "one process for each GPU", to=PROCS)
        draft.set(PROCS, "auto")
    if draft.get(PROCS) is None and default is not None:
        draft.set(PROCS, default)


def _set_from(draft: Draft, setting: Setting, to: str, why: str) -> None:
    try:
        draft.set(to, procs_per_worker(setting.value))
    except RejectedValue as rejected:
        draft.note(setting.path, Outcome.LOST, rejected.why, rejected.instead, also=setting.also)
    else:
        draft.note(setting.path, Outcome.CARRIED, why, to=to, also=setting.also)


def set_restarts(draft: Draft, launch: Launch) -> None:
    """From the launcher's flags, where no field of the job has set them yet."""
    for name, to, most in (("max_restarts", RESTARTS, MAX_RESTARTS), ("shutdown_timeout", GRACE, MAX_GRACE)):
        flag = launch.settings.get(name)
        if flag is None:
            continue
        if not flag.value.isdecimal() or int(flag.value) > most:
            draft.note(
                flag.path, Outcome.LOST, f"{flag.value} is not a number from 0 to {most}", f"set {to}", also=flag.also
            )
        elif draft.get(to) is None:
            draft.set(to, int(flag.value))
            draft.note(flag.path, Outcome.CARRIED, "", to=to, also=flag.also)
        else:
            why = f"a field of the job sets it too, to {draft.get(to)}"
            outcome = Outcome.IRRELEVANT if draft.get(to) == int(flag.value) else Outcome.CHANGED
            draft.note(flag.path, outcome, why, to=to, also=flag.also)


EXIT_CODES_THAT_FAIL = [list(range(1, 65)), list(range(65, 128))]
"""1 to 127, in lists as long as a rule may have."""


def set_restart_policy(draft: Draft, policy: object, at: Path, launch: Launch) -> None:
    """The restartPolicy of a replica, after the numbers of restarts are known."""
    if policy is None:
        return
    budget = draft.get(RESTARTS)
    if policy in ("OnFailure", "Always"):
        why = "the whole group restarts, and only as often as spec.restartPolicy.maxRestarts allows"
        draft.changed(
            at, why, f"raise maxRestarts ({10 if budget is None else budget}) if failures are frequent", to=RESTARTS
        )
    elif policy == "Never" and budget is None:
        draft.set(RESTARTS, 0)
        draft.changed(at, "a failure ends the job, but lost and preempted worker pods are replaced", to=RESTARTS)
    elif policy == "Never":
        draft.changed(at, f"failures restart the whole group, up to {budget} times", f"set {RESTARTS}", to=RESTARTS)
    elif policy == "ExitCode" and launch.style is Style.LAUNCHER:
        why = "the launcher ends with exit code 1 whatever happened, so exit codes of the script never counted"
        draft.changed(
            at, why, "add spec.restartPolicy.rules with action Fail for exit codes that must end the job", to=RESTARTS
        )
    elif policy == "ExitCode":
        rules = [{"exitCodes": codes, "action": "Fail"} for codes in EXIT_CODES_THAT_FAIL]
        draft.set("spec.restartPolicy.rules", rules)
        draft.note(
            at, Outcome.CARRIED, "exit codes 1 to 127 end the job, others restart it", to="spec.restartPolicy.rules"
        )
    else:
        draft.lost(at, f"{policy!r} is none of Always, OnFailure, Never, ExitCode", "set spec.restartPolicy")
