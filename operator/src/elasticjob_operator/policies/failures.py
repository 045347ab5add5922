"""Why a worker pod failed, and what that costs: the table of pod failures.

    how the pod ended                                    counts as a restart   replaced
    application exit, signal                             yes                   at once; with a backoff in a crash loop
    init container of the template: exit, signal         yes                   like an application exit
    OOMKilled                                            yes                   like an application exit
    evicted, preempted, node shutdown (DisruptionTarget) no                    at once
    evicted because it exceeded its storage limits       yes                   like an application exit
    SIGTERM that Kubernetes did not send                 yes                   like an application exit
    SIGTERM or SIGKILL on a node that is, or a moment    no                    at once
    ago was, cut off: its kubelet ends what was replaced
    agent fenced or replaced (lost its membership)       no                    at once
    agent could not reach the rendezvous                 no                    after a delay: an outage must not count
    its worker processes failed again and again before   no                    after a delay, elsewhere if possible
    their first step with the others
    its machine failed a check before it joined          no                    after a delay, elsewhere if possible
    the runtime could not be copied into the pod         no                    after a delay
    rejected by the kubelet (OutOfcpu, NodeAffinity ...) no                    after a delay: it may get the same node
    unknown (node restarted, container vanished)         no                    at once
    the injected runtime cannot run in the image         yes                   like an application exit; a job that has
                                                                               never trained fails

A failure is free (does not count) only if its cause is outside the pod: Kubernetes says so (DisruptionTarget, a
deletion), or the node, the network or the operator itself caused it. Free replacements of one index that follow each
other within minutes wait longer and longer (free_ends.py), so that no loop of them is fast.

`spec.failurePolicy.rules` take precedence over the last two columns: Restart makes a failure count, Ignore makes it
free (with a delay if the pod had only just started), Fail ends the job.

Pods that cannot start (image, config) do not fail: they stay Pending, and the kubelet retries with its own backoff.
The condition Running shows them, and the operator never deletes them.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections.abc import Callable, Iterable

from elasticjob_api import FailureRule, Reason, RuleAction
from elasticjob_runtime.contract import ExitCode

from elasticjob_operator import names
from elasticjob_operator.state import ContainerEnd, Pod

STEADY_SECONDS = 60.0
"""A pod that ran for this long is not in a crash loop, in seconds."""

_OOM_KILLED = "OOMKilled"
_VANISHED = "ContainerStatusUnknown"
_UNKNOWN_REASONS = frozenset({"Unknown", ""})
_UNKNOWN_CODE = 255
"""Exit code that containerd reports for a container that vanished when its node restarted."""
_DISRUPTED = frozenset({"Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""Values of status.reason that the kubelet and the node controller set on pods that they disrupt."""

_LONGEST_DETAIL = 300
"""Characters of an exit code with the last line that a container wrote."""
_NOT_STARTED = 128
"""Exit code that the kubelet reports for a container that could not be started."""
_MISSING_PROGRAM = re.compile(r'exec: \\?"([^"\\]+)\\?": (?:executable file not found|stat \S+: no such file)')
"""In the kubelet's message: runc and crun say it in the same words."""
_OTHER_ARCHITECTURE = "exec format error"
SIGNAL_BASE, _LAST_SIGNAL = 128, 64


class Cost(enum.Enum):
    COUNTS = "counts"
    FREE = "free"
    FREE_BUT_WAIT = "free, after a delay"
    IGNORED = "free by a rule"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PodFailure:
    """Why a pod failed."""

    reason: str
    """CamelCase, for status and metrics."""
    detail: str
    """Human-readable."""
    cost: Cost
    time: datetime.datetime
    """When the pod ended, to the best of our knowledge."""
    exit_code: int | None = None
    """Negative: the number of the signal, as in subprocess."""
    ends_job: bool = False
    """By a rule."""
    before_training: bool = False
    """An init container failed, so the training container never ran."""


_OF_AGENT: dict[int, tuple[str, str, Cost]] = {
    ExitCode.TERMINATED: (
        "Terminated",
        "SIGTERM, although the pod was not deleted: from a liveness probe or a process in the pod",
        Cost.COUNTS,
    ),
    ExitCode.INTERRUPTED: (
        "Terminated",
        "SIGINT, although the pod was not deleted: from a process in the pod",
        Cost.COUNTS,
    ),
    ExitCode.RESTARTABLE: ("Fenced", "lost its membership", Cost.FREE),
    ExitCode.UNAVAILABLE: ("RendezvousUnavailable", "could not reach the rendezvous", Cost.FREE_BUT_WAIT),
    ExitCode.CANNOT_JOIN: (
        "CannotJoin",
        "its worker processes failed before their first step with the others",
        Cost.FREE_BUT_WAIT,
    ),
    ExitCode.SUSPECT: ("SuspectNode", "its machine fails a check", Cost.FREE_BUT_WAIT),
}
"""(reason, detail, cost) of the exit codes that have a meaning of their own in the training container."""

BLAMES_NODE = frozenset({ExitCode.CANNOT_JOIN, ExitCode.SUSPECT})
"""After one of these exit codes, the node is avoided at once. The agent says why."""

_KILLED = frozenset({ExitCode.TERMINATED, -9, -15})
"""Exit codes of a container that its kubelet ended, with SIGTERM and then SIGKILL."""

_COSTS = {RuleAction.RESTART: Cost.COUNTS, RuleAction.FAIL: Cost.COUNTS, RuleAction.IGNORE: Cost.IGNORED}


def classify_failure(
    pod: Pod, rules: Iterable[FailureRule] = (), cut_off: Callable[[datetime.datetime], bool] = lambda _: False
) -> PodFailure:
    """`pod` has failed. `cut_off`: whether its node was cut off at that time, or had just come back."""
    failure = _without_rules(pod)
    if failure.exit_code in _KILLED and failure.cost is Cost.COUNTS and cut_off(failure.time):
        detail = f"it was ended with its node {pod.node}, which was unreachable"
        failure = dataclasses.replace(failure, reason=Reason.NODE_SILENT.value, detail=detail, cost=Cost.FREE)
    action = action_for(rules, failure.exit_code, failure.reason)
    if action is None:
        return failure
    return dataclasses.replace(failure, cost=_COSTS[action], ends_job=action is RuleAction.FAIL)


def action_for(rules: Iterable[FailureRule], exit_code: int | None, reason: str) -> RuleAction | None:
    """The action of the first rule that matches. None: no rule does. `exit_code` negative: the number of the signal."""
    code = SIGNAL_BASE - exit_code if exit_code is not None and exit_code < 0 else exit_code
    for rule in rules:
        if (not rule.exit_codes or code in rule.exit_codes) and (not rule.reasons or reason in rule.reasons):
            return rule.action
    return None


def _without_rules(pod: Pod) -> PodFailure:
    end = pod.first_end
    # Not before its creation: the two times come from two clocks, and callers compare them.
    time = max((end.finished_at if end else None) or pod.created_at, pod.created_at)
    if pod.disruption is not None:
        reason, detail = pod.disruption.reason, pod.disruption.message or pod.disruption.reason
        return PodFailure(reason=reason, detail=detail, cost=Cost.FREE, time=time)
    if pod.reason in _DISRUPTED:
        return PodFailure(reason=pod.reason, detail=pod.message or pod.reason, cost=Cost.FREE, time=time)
    if pod.reason == "Evicted":
        # The kubelet sets DisruptionTarget under node pressure; without it, the pod exceeded one of its own limits.
        detail = pod.message or "exceeded a limit of its own"
        return PodFailure(reason="Evicted", detail=detail, cost=Cost.COUNTS, time=time)
    if end is None:  # the kubelet rejected it
        reason = pod.reason or "Rejected"
        detail = pod.message or f"the pod failed before its container ran ({reason})"
        return PodFailure(reason=reason, detail=detail, cost=Cost.FREE_BUT_WAIT, time=time)
    return (_of_runtime(end, time) if pod.injected else None) or _of_container(end, time)


def _of_runtime(end: ContainerEnd, time: datetime.datetime) -> PodFailure | None:
    """The injected runtime could not be copied or run. None: that is not why the container ended."""
    detail = _unusable(end)
    if detail:
        reason, cost = Reason.RUNTIME_UNUSABLE.value, Cost.COUNTS
    elif end.container == names.RUNTIME_VOLUME:
        reason, cost = Reason.RUNTIME_UNAVAILABLE.value, Cost.FREE_BUT_WAIT
        detail = f"the init container that copies the runtime failed with exit code {end.exit_code}: {_text(end)}"
    else:
        return None
    ends_job = cost is Cost.COUNTS
    return PodFailure(reason=reason, detail=detail, cost=cost, time=time, exit_code=end.exit_code, ends_job=ends_job)


def _unusable(end: ContainerEnd) -> str:
    """Why the runtime can never run in this image, and the remedy. Empty: that is not why the container ended."""
    if end.container == names.RUNTIME_VOLUME and _OTHER_ARCHITECTURE in _text(end):
        return (
            f"the runtime image is not built for the architecture of its node ({_text(end)}). Use a runtime image for "
            "that architecture, or a nodeSelector with kubernetes.io/arch"
        )
    if end.container:
        return ""
    if end.exit_code == ExitCode.RUNTIME_UNUSABLE:
        return end.message.strip().removeprefix("elasticjob: ") or "the image's Python is too old"
    missing = _MISSING_PROGRAM.search(end.message)
    if end.exit_code != _NOT_STARTED or missing is None:
        return ""
    return (
        f"the image has no {missing[1]}, or not on its PATH. Use an image with Python 3.10 or newer, or name its "
        "Python in the command: [python3, train.py] on Debian, or a path such as [/opt/venv/bin/python, train.py]"
    )


def _text(end: ContainerEnd) -> str:
    return " ".join((end.message or end.reason).split())


def ran_seconds(pod: Pod, failure: PodFailure) -> float:
    """How long its training container ran, to the best of our knowledge, in seconds."""
    started = (pod.end.started_at if pod.end else None) or pod.created_at
    return (failure.time - started).total_seconds()


def _of_container(end: ContainerEnd, time: datetime.datetime) -> PodFailure:
    reason, detail, cost, code = _of_exit(end)
    if end.container:
        detail = f"init container {end.container}: {detail}"
    before = bool(end.container)
    return PodFailure(reason=reason, detail=detail, cost=cost, time=time, exit_code=code, before_training=before)


def _of_exit(end: ContainerEnd) -> tuple[str, str, Cost, int | None]:
    """(reason, detail, cost, exit code)"""
    code = end.exit_code
    if end.reason == _VANISHED or (code == _UNKNOWN_CODE and end.reason in _UNKNOWN_REASONS):
        return _VANISHED, "the container disappeared, as when its node restarts", Cost.FREE, None
    if end.reason == _OOM_KILLED:
        detail = "out of memory: raise the container's memory limit or use less memory"
        return "OutOfMemory", detail, Cost.COUNTS, code
    if not end.container and code in _OF_AGENT:
        reason, detail, cost = _OF_AGENT[code]
        return reason, _text(end) if code in BLAMES_NODE and end.message else detail, cost, code
    if SIGNAL_BASE < code <= SIGNAL_BASE + _LAST_SIGNAL:
        signal = code - SIGNAL_BASE
        return "Signal", f"killed by signal {signal}", Cost.COUNTS, -signal
    general = "InitContainerFailed" if end.container else "ApplicationError"
    last = ": ".join([f"exit code {code}", *end.message.strip().splitlines()[-1:]])[:_LONGEST_DETAIL]
    return (end.reason if end.reason not in ("", "Error") else general), last, Cost.COUNTS, code
