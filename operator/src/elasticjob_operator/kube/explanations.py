"""Reads Events of objects that keep a job from starting: some controllers and kubelets say what is wrong only there."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence

from elasticjob_operator.kube.api_resources import EVENTS
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.client import ApiError, KubeClient
from elasticjob_operator.kube.nodes import Clock, utc_now
from elasticjob_operator.state import LONG_AGO, Explanation

log = logging.getLogger(__name__)

CONCURRENT = 4
"""Reads at a time: the API server searches all Events of the namespace for each."""
MOST_EVENTS, MOST_MESSAGE = 200, 1024
"""Events of one object that are read, and characters of the text that is kept: any user may post some."""


class Explanations:
    def __init__(self, api: KubeClient, clock: Clock = utc_now) -> None:
        self._client = api
        self._clock = clock
        self._reads = 0

    async def read(self, namespace: str, kind: str, name: str, before: Explanation | None) -> Explanation:
        """While too many others are read, and where Events cannot be read: as before."""
        if self._reads >= CONCURRENT:
            return explanation_of(None, before, self._clock())
        self._reads += 1
        query = {"fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        try:
            found, _ = await self._client.page(EVENTS.path(namespace), query, size=MOST_EVENTS)
        except (ApiError, ConnectionError) as error:
            log.debug("Cannot read Events of %s %s/%s: %s", kind, namespace, name, error)
            return explanation_of(None, before, self._clock())
        finally:
            self._reads -= 1
        return explanation_of(found.get("items") or [], before, self._clock())


def explanation_of(events: Sequence[Json] | None, before: Explanation | None, now: datetime.datetime) -> Explanation:
    """The newest Event; of two at the same time, the Warning. `events`: None if they were not read."""
    first = before.first_read_at if before is not None else now
    if events is None and before is not None:
        events, message, warning, at = (), before.message, before.warning, before.at
    else:
        message, warning, at = "", False, LONG_AGO
    newest = max(events or (), key=lambda each: (_time_of(each), each.get("type") == "Warning"), default=None)
    if newest is not None:
        reason, text = str(newest.get("reason") or ""), " ".join(str(newest.get("message") or "").split())
        message, warning, at = f"{reason}: {text}"[:MOST_MESSAGE], newest.get("type") == "Warning", _time_of(newest)
    return Explanation(message=message, warning=warning, at=at, first_read_at=first, read_at=now)


def _time_of(event: Json) -> datetime.datetime:
    series = event.get("series") or {}
    for text in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if text:
            try:
                return datetime.datetime.fromisoformat(text)
            except ValueError:  # the API server takes the year 0
                return LONG_AGO
    return LONG_AGO
