"""Logs of worker pods: read once, or followed through lost connections and replaced pods."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from elasticjob.cluster.http import ApiServer, Json, Stream
from elasticjob.decisions.log_lines import Line, parse_line, whole_seconds
from elasticjob.decisions.log_selection import Selection
from elasticjob.errors import ElasticJobError, InvalidManifestError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from elasticjob.cluster.local import LocalApi, LocalStream

RETRY_SECONDS = 0.5
SECOND = 1_000_000_000
"""In ns."""


def read_log(api: ApiServer | LocalApi, pod: Json, container: str, selection: Selection) -> Iterator[Line]:
    """The log up to now. Raises ElasticJobError, for example if the container has not started."""
    for raw in api.stream(_path(pod), **_query(container, selection)):
        yield parse_line(raw, pod["metadata"]["name"])


class PodLog:
    """A thread that follows the log of one pod to its end, and puts its lines into a queue."""

    def __init__(
        self,
        api: ApiServer | LocalApi,
        pod: Json,
        container: str,
        selection: Selection,
        lines: queue.Queue[Line],
        on_end: Callable[[], None],
    ) -> None:
        self._api, self._pod, self._container, self._selection = api, pod, container, selection
        self._lines, self._on_end = lines, on_end
        self._stop = threading.Event()
        self._stream: Stream | LocalStream | None = None
        self._second = 0
        """Of the last line; a new connection continues from it. Unix time, ns."""
        self._seen: Counter[Line] = Counter()
        """Lines since `_second`, which come again, and lines without a time, which may."""
        self.gone = False
        """Set by the owner when the pod has ended: the log ends when it has been read."""
        self.ended = False
        self.error: ElasticJobError | None = None
        threading.Thread(target=self._run, name=f"log {pod['metadata']['name']}", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            final = self.gone
            try:
                self._follow()
            except UnreachableError:
                final = False  # the rest of the log can still be read once the API server is back
            except InvalidManifestError:
                pass  # the container has not started; final if the pod ended before it did
            except NotFoundError:
                final = True
            except ElasticJobError as error:
                self.error, final = error, True
            if final:
                break
            self._stop.wait(RETRY_SECONDS)
        self.ended = True
        self._on_end()

    def _follow(self) -> None:
        query = _query(self._container, self._selection)
        if self._second:  # continue: the API server takes whole seconds, so some lines come again
            query = {**query, "sinceTime": whole_seconds(self._second), "sinceSeconds": None, "tailLines": None}
        stream = self._stream = self._api.stream(_path(self._pod), follow="true", **query)
        if self._stop.is_set():
            stream.close()
        again = self._seen.copy()
        for raw in stream:
            line = parse_line(raw, self._pod["metadata"]["name"])
            if again[line]:
                again[line] -= 1
            else:
                self._remember(line)
                self._lines.put(line)

    def _remember(self, line: Line) -> None:
        """Lines of two outputs may be out of order by less than a second; a clock may be set back further."""
        second = line.at - line.at % SECOND
        if line.at and not self._second - SECOND <= second <= self._second:
            self._second = second
            self._seen = Counter(
                {seen: times for seen, times in self._seen.items() if seen.at >= second or not seen.at}
            )
        self._seen[line] += 1


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"


def _query(container: str, selection: Selection) -> dict[str, Any]:
    tail = selection.tail
    return {
        "container": container,
        "timestamps": "true",
        "sinceSeconds": selection.since_seconds,
        "tailLines": None if tail is None or tail < 0 else tail,
        "previous": "true" if selection.previous else None,
    }
