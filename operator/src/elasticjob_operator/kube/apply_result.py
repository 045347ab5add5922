"""What became of a plan's actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from elasticjob_operator.kube.api_resources import PODS
from elasticjob_operator.planning import Action
from elasticjob_operator.state import Admission


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApplyResult:
    """The results of a plan's actions that the next plan needs."""

    admission: Admission | None = None
    rejection: str = ""
    """The server's message on a rejected create, of pods before others; empty: none."""
    rejected_kinds: frozenset[str] = frozenset()
    """Kinds of rejected objects."""
    created: frozenset[str] = frozenset()
    """Kinds of created objects."""
    missed: bool = False
    """A create conflicted with an object that was deleted a moment later: retry it, as no event may requeue the job."""
    done: tuple[Action, ...] = ()
    """Creates and deletes that succeeded."""
    unanswered: bool = False
    """The server has not decided on the dry run."""
    failure: Exception | None = None
    """ApiError or ConnectionError of another request; temporary."""

    namespace_terminating: bool = False
    """A create was rejected because the job's namespace is being terminated."""

    @property
    def stops(self) -> bool:
        """Further creates would fail as well."""
        return bool(self.rejection or self.failure or self.namespace_terminating)


def merged(results: list[ApplyResult]) -> ApplyResult:
    """One result for all actions of a plan."""
    asked = next((result for result in results if result.admission), ApplyResult())
    return ApplyResult(
        admission=asked.admission,
        unanswered=asked.unanswered,
        rejection=_first_rejection(results),
        rejected_kinds=frozenset().union(*(result.rejected_kinds for result in results)),
        created=frozenset().union(*(result.created for result in results)),
        missed=any(result.missed for result in results),
        done=tuple(action for result in results for action in result.done),
        namespace_terminating=any(result.namespace_terminating for result in results),
        failure=next((result.failure for result in results if result.failure), None),
    )


def _first_rejection(results: Iterable[ApplyResult]) -> str:
    rejected = [result for result in results if result.rejection]
    return min(rejected, key=lambda one: PODS.kind not in one.rejected_kinds).rejection if rejected else ""
