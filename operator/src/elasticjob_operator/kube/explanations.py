"""Reads Events of objects that keep a job from starting: some controllers and kubelets say what is wrong only there."""

from __future__ import annotations

import dataclasses
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


_GOES_ON = frozenset({"Pulling", "ExternalProvisioning", "FailedBinding", "Provisioning"})
"""Reasons of Normal Events about something that is not finished yet."""
_ENDS = frozenset({"Pulled", "Created", "Started", "ProvisioningSucceeded", "SuccessfulCreate"})
"""Reasons of Normal Events that end what earlier ones say. Others say nothing of what the object waits for."""
_ATTACHED = "SuccessfulAttachVolume"
"""Ends only what earlier Events say of attaching."""


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
    """The newest Event, unless it reports the end of something; of two at the same time, the Warning, or the one that
    was created later. `events`: None if they were not read."""
    first = before.first_read_at if before is not None else now
    if events is None and before is not None:
        return dataclasses.replace(before, read_at=now)
    attached = max((_time_of(event) for event in events or () if event.get("reason") == _ATTACHED), default=LONG_AGO)
    told = [
        event
        for event in events or ()
        if (_is_warning(event) or event.get("reason") in _GOES_ON | _ENDS)
        and (event.get("reason") != "FailedAttachVolume" or _time_of(event) > attached)
    ]
    newest = max(told, key=lambda event: (_time_of(event), _is_warning(event), _name_of(event)), default={})
    if not newest or (newest.get("reason") in _ENDS and not _is_warning(newest)):
        return Explanation(at=LONG_AGO, first_read_at=first, read_at=now)
    reason, text = str(newest.get("reason") or ""), " ".join(str(newest.get("message") or "").split())
    message = (text if text.startswith(f"{reason} ") else f"{reason}: {text}")[:MOST_MESSAGE]
    return Explanation(
        message=message, warning=_is_warning(newest), at=_time_of(newest), first_read_at=first, read_at=now
    )


def _is_warning(event: Json) -> bool:
    return bool(event.get("type") == "Warning")


def _name_of(event: Json) -> str:
    """It ends with the time of creation in nanoseconds, in hexadecimal; the other times are in seconds."""
    return str((event.get("metadata") or {}).get("name") or "")


def _time_of(event: Json) -> datetime.datetime:
    series = event.get("series") or {}
    for text in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if text:
            try:
                return datetime.datetime.fromisoformat(text)
            except ValueError:  # the API server takes the year 0
                return LONG_AGO
    return LONG_AGO
