"""Why a worker pod failed, and what that costs: the table of pod failures.

    how the pod ended                                    counts as a restart   replaced
    application exit, signal                             yes                   at once; with a backoff in a crash loop
    OOMKilled                                            yes                   like an application exit
    evicted, preempted, node shutdown (DisruptionTarget) no                    at once
    evicted because it exceeded its storage limits       yes                   like an application exit
    SIGTERM that Kubernetes did not send                 yes                   like an application exit
    agent fenced (lost its membership), after a minute   no                    at once
    ... sooner                                           yes                   like an application exit
    agent could not reach the rendezvous                 no                    after a delay: an outage must not count
    rejected by the kubelet (OutOfcpu, NodeAffinity ...) no                    after a delay: it may get the same node
    unknown (node restarted, container vanished)         no                    at once
    the injected runtime cannot run in the image         yes                   like an application exit; a job that has
                                                                               never trained fails

A failure is free (does not count) only if its cause is outside the pod, so that no crash loop is free: Kubernetes says
so (DisruptionTarget, a deletion), or the node caused it.

`spec.restartPolicy.rules` take precedence over the last two columns: Restart makes a failure count, Ignore makes it
free (with a delay if the pod had only just started), Fail ends the job.

Pods that cannot start (image, config) do not fail: they stay Pending, and the kubelet retries with its own backoff.
The condition Running shows them, and the operator never deletes them.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable

from elasticjob_api import Reason, RestartRule, RuleAction
from elasticjob_runtime.contract import ExitCode

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

_STOPPED = {
    ExitCode.TERMINATED: "SIGTERM, although the pod was not deleted: from a liveness probe or a process in the pod",
    ExitCode.INTERRUPTED: "SIGINT, although the pod was not deleted: from a process in the pod",
}
_NOT_STARTED = 128
"""Exit code that the kubelet reports for a container that could not be started."""
_MISSING_PROGRAM = re.compile(r'exec: \\?"([^"\\]+)\\?": (?:executable file not found|stat \S+: no such file)')
"""In the kubelet's message: runc and crun say it in the same words."""
_OTHER_ARCHITECTURE = "exec format error"
_SIGNAL_BASE, _LAST_SIGNAL = 128, 64


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


_COSTS = {RuleAction.RESTART: Cost.COUNTS, RuleAction.FAIL: Cost.COUNTS, RuleAction.IGNORE: Cost.IGNORED}


def classify_failure(pod: Pod, rules: Iterable[RestartRule] = ()) -> PodFailure:
    """`pod` has failed."""
    failure = _of_injection(pod) or _without_rules(pod)
    action = action_for(rules, failure.exit_code, failure.reason)
    if action is None:
        return failure
    return dataclasses.replace(failure, cost=_COSTS[action], ends_job=action is RuleAction.FAIL)


def action_for(rules: Iterable[RestartRule], exit_code: int | None, reason: str) -> RuleAction | None:
    """The action of the first rule that matches. None: no rule does. `exit_code` negative: the number of the signal."""
    code = _SIGNAL_BASE - exit_code if exit_code is not None and exit_code < 0 else exit_code
    for rule in rules:
        if (not rule.exit_codes or code in rule.exit_codes) and (not rule.reasons or reason in rule.reasons):
            return rule.action
    return None


def _without_rules(pod: Pod) -> PodFailure:
    end = pod.end
    # Not before its creation: the two times come from two clocks, and callers compare them.
    time = max((end.finished_at if end else None) or pod.created_at, pod.created_at)
    if pod.disruption is not None:
        return PodFailure(
            reason=pod.disruption.reason,
            detail=pod.disruption.message or pod.disruption.reason,
            cost=Cost.FREE,
            time=time,
        )
    if pod.reason in _DISRUPTED:
        return PodFailure(reason=pod.reason, detail=pod.message or pod.reason, cost=Cost.FREE, time=time)
    if pod.reason == "Evicted":
        # The kubelet sets DisruptionTarget under node pressure; without it, the pod exceeded one of its own limits.
        return PodFailure(
            reason="Evicted", detail=pod.message or "exceeded a limit of its own", cost=Cost.COUNTS, time=time
        )
    if end is None:
        return _without_end(pod, time)
    return _of_container(pod, end, time)


def _of_injection(pod: Pod) -> PodFailure | None:
    """The injected runtime could not run. None: that is not why the pod failed."""
    if not pod.injected or pod.disruption is not None:
        return None
    end = pod.end or pod.injection_end
    detail = _injection_detail(pod)
    if end is None or not detail:
        return None
    return PodFailure(
        reason=Reason.RUNTIME_UNUSABLE.value,
        detail=detail,
        cost=Cost.COUNTS,
        time=max(end.finished_at or pod.created_at, pod.created_at),
        exit_code=end.exit_code,
        ends_job=True,
    )


def _injection_detail(pod: Pod) -> str:
    """What is wrong, and the remedy."""
    end, copied = pod.end, pod.injection_end
    if copied is not None:
        text = " ".join((copied.message or copied.reason).split())
        if _OTHER_ARCHITECTURE in text:
            return (
                f"the runtime image is not built for the architecture of its node ({text}). Use a runtime image for "
                "that architecture, or a nodeSelector with kubernetes.io/arch"
            )
        return f"the init container that copies the runtime failed with exit code {copied.exit_code}: {text}"
    if end is None:
        return ""
    if end.exit_code == ExitCode.RUNTIME_UNUSABLE:
        return end.message.strip().removeprefix("elasticjob: ") or "the image's Python is too old"
    missing = _MISSING_PROGRAM.search(end.message)
    if end.exit_code != _NOT_STARTED or missing is None:
        return ""
    return (
        f"the image has no {missing[1]}, or not on its PATH. Use an image with Python 3.10 or newer, or name its "
        "Python in the command, such as [/opt/venv/bin/python, train.py]"
    )


def started_at(pod: Pod) -> datetime.datetime:
    """When its training container started, to the best of our knowledge."""
    return (pod.end.started_at if pod.end else None) or pod.created_at


def _without_end(pod: Pod, time: datetime.datetime) -> PodFailure:
    """The pod failed before its container ran: the kubelet rejected it."""
    reason = pod.reason or "Rejected"
    detail = pod.message or f"the pod failed before its container ran ({reason})"
    return PodFailure(reason=reason, detail=detail, cost=Cost.FREE_BUT_WAIT, time=time)


def _of_container(pod: Pod, end: ContainerEnd, time: datetime.datetime) -> PodFailure:
    code = end.exit_code
    if end.reason == _VANISHED or (code == _UNKNOWN_CODE and end.reason in _UNKNOWN_REASONS):
        return PodFailure(
            reason=_VANISHED, detail="the container disappeared, as when its node restarts", cost=Cost.FREE, time=time
        )
    if end.reason == _OOM_KILLED:
        detail = "out of memory: raise the container's memory limit or use less memory"
        return PodFailure(reason="OutOfMemory", detail=detail, cost=Cost.COUNTS, time=time, exit_code=code)
    if code in _STOPPED:
        return PodFailure(
            reason="Terminated", detail=_STOPPED[ExitCode(code)], cost=Cost.COUNTS, time=time, exit_code=code
        )
    if code == ExitCode.RESTARTABLE:
        cost = Cost.FREE if (time - started_at(pod)).total_seconds() >= STEADY_SECONDS else Cost.COUNTS
        return PodFailure(reason="Terminated", detail="lost its membership", cost=cost, time=time, exit_code=code)
    if code == ExitCode.UNAVAILABLE:
        detail = "could not reach the rendezvous"
        return PodFailure(
            reason="RendezvousUnavailable", detail=detail, cost=Cost.FREE_BUT_WAIT, time=time, exit_code=code
        )
    if _SIGNAL_BASE < code <= _SIGNAL_BASE + _LAST_SIGNAL:
        signal = code - _SIGNAL_BASE
        return PodFailure(
            reason="Signal", detail=f"killed by signal {signal}", cost=Cost.COUNTS, time=time, exit_code=-signal
        )
    reason = end.reason if end.reason not in ("", "Error") else "ApplicationError"
    return PodFailure(reason=reason, detail=f"exit code {code}", cost=Cost.COUNTS, time=time, exit_code=code)
