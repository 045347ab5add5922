"""Log records about a job and the actions on it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from elasticjob_api import API_VERSION, KIND

from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import Action

log = logging.getLogger(__name__)

NAMES_IN_LOG = 4
"""Number of object names in one log line."""


def about(key: NamespacedName, reason: str = "") -> dict[str, object]:
    """`extra` of a log record: its job, for kopf's formatters, and the reason."""
    extra: dict[str, object] = {
        "k8s_ref": {"apiVersion": API_VERSION, "kind": KIND, "namespace": key[0], "name": key[1]}
    }
    return {**extra, "reason": reason} if reason else extra


def log_actions(key: NamespacedName, actions: Iterable[Action]) -> None:
    """Logs one line per kind and reason: a job with a thousand worker pods must not log a thousand lines."""
    groups: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        groups.setdefault((type(action).__name__, action.reason), []).append(_name(action))
    for (kind, reason), names in groups.items():
        more = f" and {len(names) - NAMES_IN_LOG} more" if len(names) > NAMES_IN_LOG else ""
        log.info("%s %s%s: %s", kind, ", ".join(names[:NAMES_IN_LOG]), more, reason, extra=about(key, reason))


def _name(action: Action) -> str:
    body = getattr(action, "body", None)
    return str(
        body["metadata"]["name"]
        if body
        else getattr(action, "name", "") or getattr(action, "member", "") or getattr(action, "node", "")
    )


def described(action: Action) -> str:
    """Kind, object and reason, without the body."""
    return f"{type(action).__name__} {_name(action)}".strip() + f": {action.reason}"
