"""Objects that are kept up to date by a watch, through failures of the API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from elasticjob.cluster.api_errors import ConflictError, ExpiredError
from elasticjob.cluster.http import ApiServer, Json, Stream
from elasticjob.errors import ElasticJobError, UnreachableError

if TYPE_CHECKING:
    from elasticjob.cluster.local import LocalApi, LocalStream

WATCH_SECONDS = 300
FIRST_RETRY, LAST_RETRY = 0.2, 5.0
"""Delays before a failed list or watch is tried again, s; doubled each time."""


FIRST_PAGE, PAGE = 100, 500
"""Objects in the first response to a list, which fills the screen, and in each further one."""


def pages(api: ApiServer | LocalApi, path: str, **query: Any) -> Iterator[Json]:
    """The responses to a list."""
    token, limit = "", FIRST_PAGE
    while True:
        answer = api.get(path, limit=limit, **{"continue": token}, **query)
        yield answer
        token, limit = (answer.get("metadata") or {}).get("continue") or "", PAGE
        if not token:
            return


class Watched:
    """The objects of one list. A thread lists and watches them until `close`; `on_change` is called from it."""

    def __init__(self, api: ApiServer | LocalApi, path: str, on_change: Callable[[], None], **query: Any) -> None:
        self._api, self._path, self._query = api, path, query
        self._on_change = on_change
        self._objects: dict[str, Json] = {}
        self._lock = threading.Lock()
        self._stream: Stream | LocalStream | None = None
        self._stop = threading.Event()
        self.listed = False
        self.lost_since: float | None = None
        """Monotonic time since when the API server cannot be reached; None: it can."""
        self.error: ElasticJobError | None = None
        """Why nothing can be read, and never will be: a missing right, for example."""
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self._thread.start()

    def objects(self) -> list[Json]:
        """The newest version of each object, in no particular order."""
        with self._lock:
            return list(self._objects.values())

    def close(self) -> None:
        self._stop.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def _run(self) -> None:
        delay = FIRST_RETRY
        while not self._stop.is_set():
            try:
                version = self._list()
                delay = FIRST_RETRY
                while not self._stop.is_set():
                    opened = time.monotonic()
                    version = self._watch(version)
                    if time.monotonic() - opened < LAST_RETRY:  # a proxy or an overloaded server ends watches at once
                        self._stop.wait(delay)
                        delay = min(LAST_RETRY, 2 * delay)
                    else:
                        delay = FIRST_RETRY
            except (ExpiredError, ConflictError):
                continue
            except UnreachableError:
                if self.lost_since is None:
                    self.lost_since = time.monotonic()
                self._on_change()
                self._stop.wait(delay)
                delay = min(LAST_RETRY, 2 * delay)
            except ElasticJobError as error:
                self.error = error
                self._on_change()
                return

    def _list(self) -> str:
        """Returns the version of the list. What is new is there page by page, what is gone at the end."""
        found: dict[str, Json] = {}
        for answer in pages(self._api, self._path, **self._query):
            found |= {item["metadata"]["uid"]: item for item in answer.get("items") or []}
            with self._lock:
                self._objects |= found
            self._on_change()
        with self._lock:
            self._objects = found
        self.listed, self.lost_since = True, None
        self._on_change()
        return str(answer["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Follows one watch to its end. Returns the version to continue from."""
        query = {**self._query, "watch": 1, "timeoutSeconds": WATCH_SECONDS, "allowWatchBookmarks": "true"}
        stream = self._stream = self._api.stream(self._path, resourceVersion=version, **query)
        if self._stop.is_set():
            stream.close()
        for line in stream:
            event = json.loads(line)
            body = event["object"]
            if event["type"] == "ERROR":
                raise ExpiredError(str(body.get("message")))
            version = body["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._apply(event["type"], body)
                self._on_change()
        return version

    def _apply(self, kind: str, body: Json) -> None:
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(body["metadata"]["uid"], None)
            else:
                self._objects[body["metadata"]["uid"]] = body
