"""Watches one ElasticJob and the logs of its worker pods with kubectl, and turns them into observations. The only part
of the demo that reads from the cluster."""

from __future__ import annotations

import contextlib
import datetime
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from elasticjob_operator.names import worker_selector

from hack.demo.observations import Observation, parse_job, parse_line
from hack.drivers import ClusterDriver

RETRY_SECONDS = 0.2
"""Delay before a watch or a log that has ended is opened again."""


class Follower:
    """Observations of one job, each with its Unix time, in the order in which they arrive. A context manager.

    The time of a log line is the kubelet's timestamp; everything else has the time at which it arrived.
    """

    def __init__(self, driver: ClusterDriver, job: str, namespace: str) -> None:
        self._kubectl = driver.kubectl
        self._job = job
        self._namespace = namespace
        self._queue: queue.Queue[tuple[float, Observation]] = queue.Queue()
        self._followed: set[str] = set()
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = threading.Event()

    def __enter__(self) -> Follower:
        for watcher in (self._watch_job, self._watch_pods):
            threading.Thread(target=watcher, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for process in list(self._running):
            process.terminate()

    def next(self, timeout: float) -> tuple[float, Observation] | None:
        """The next observation; None after `timeout` seconds without one."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def _watch_job(self) -> None:
        for job in self._watch("elasticjobs", f"--field-selector=metadata.name={self._job}"):
            self._queue.put((time.time(), parse_job(job)))

    def _watch_pods(self) -> None:
        for pod in self._watch("pods", f"--selector={worker_selector(self._job)}"):
            uid = pod["metadata"]["uid"]
            if pod["status"].get("phase") in {"Running", "Succeeded", "Failed"} and uid not in self._followed:
                self._followed.add(uid)
                threading.Thread(target=self._follow_log, args=(pod["metadata"]["name"], uid), daemon=True).start()

    def _watch(self, kind: str, selector: str) -> Iterator[dict[str, Any]]:
        """Yields every version of the objects, starting with the current ones. Restarts a watch that breaks."""
        while not self._closed.is_set():
            yield from split_objects(self._lines("get", kind, selector, "--watch", "--output=json"))
            self._closed.wait(RETRY_SECONDS)

    def _follow_log(self, pod: str, uid: str) -> None:
        """Reads a pod's log to its end. After a broken connection, continues where it stopped."""
        newest = 0.0
        while not self._closed.is_set():
            for line in self._lines("logs", pod, "--follow", "--timestamps"):
                stamp, _, text = line.partition(" ")
                at = parse_stamp(stamp)
                seen = parse_line(text, uid)
                if at is not None and at > newest:
                    newest = at
                    if seen:
                        self._queue.put((at, seen))
            if not self._runs(pod, uid):
                return
            self._closed.wait(RETRY_SECONDS)

    def _runs(self, pod: str, uid: str) -> bool:
        """Whether this pod, and not a later one of the same name, is running."""
        said = "".join(
            self._lines("get", "pod", pod, "--ignore-not-found", "--output=jsonpath={.metadata.uid} {.status.phase}")
        )
        return said == f"{uid} Running"

    def _lines(self, *words: str) -> Iterator[str]:
        """Yields the lines that kubectl prints."""
        command = self._kubectl.command(*words, "--namespace", self._namespace)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        ) as process:
            self._running.add(process)
            try:
                assert process.stdout is not None
                yield from process.stdout
            finally:
                process.terminate()
                self._running.discard(process)


def split_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Splits the output of `kubectl get --watch --output=json` into objects, each of which ends with a brace at the
    start of a line.

    >>> list(split_objects(["{", '  "a": 1', "}", "{", "}"]))
    [{'a': 1}, {}]
    """
    collected: list[str] = []
    for line in lines:
        collected.append(line)
        if line.rstrip() == "}":
            with contextlib.suppress(ValueError):  # truncated: the watch broke
                yield json.loads("".join(collected))
            collected = []


def parse_stamp(stamp: str) -> float | None:
    """Converts the timestamp of a log line (RFC 3339 with nanoseconds, UTC) to a Unix time. None if it is not one.

    >>> parse_stamp("2026-01-01T00:00:00.250000000Z")
    1767225600.25
    """
    date, _, fraction = stamp.strip().removesuffix("Z").partition(".")
    try:
        whole = datetime.datetime.fromisoformat(date).replace(tzinfo=datetime.timezone.utc)
        return whole.timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return None
