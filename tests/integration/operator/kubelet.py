"""A kubelet of processes: starts the training container's command of every worker pod on this machine, with the pod's
environment.

So operator and agents meet for real, without nodes and images. What a real kubelet does beyond this is for the
end-to-end tests.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import ApiStatusError, Json, Namespace, is_worker

INTERVAL = 0.1


class _Running:
    def __init__(self, pod: Json, folder: Path) -> None:
        self.name = str(pod["metadata"]["name"])
        self.uid = str(pod["metadata"]["uid"])
        self.log = folder / f"{self.name}-{self.uid[:6]}.log"
        self.termination = folder / f"{self.name}-{self.uid[:6]}.message"
        self.started = rfc3339()
        container = pod["spec"]["containers"][0]
        environment = {
            **os.environ,
            **_environment(pod, container),
            "ELASTICJOB_TERMINATION_LOG": str(self.termination),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                container["command"], env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
            )

    def message(self) -> str:
        return self.termination.read_text(encoding="utf-8") if self.termination.exists() else ""


def _environment(pod: Json, container: Json) -> dict[str, str]:
    of_the_pod = {"metadata.name": str(pod["metadata"]["name"]), "status.podIP": "127.0.0.1"}
    found = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = of_the_pod[source] if source else variable["value"]
    return found


class Kubelet:
    """One node, whose pods are bound to it. `close` ends everything it started."""

    def __init__(self, ns: Namespace, node: str, folder: Path) -> None:
        self._ns = ns
        self._node = node
        self._folder = folder
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()
        self._stop = threading.Event()
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        for running in self._running.values():
            running.process.kill()
            running.process.wait()
        if self.fault is not None:
            raise self.fault

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(encoding='utf-8', errors='replace')}"
            for log in sorted(self._folder.glob("*.log"))
        )

    def _run(self) -> None:
        try:
            while not self._stop.wait(INTERVAL):
                self._round()
        except BaseException as error:  # noqa: BLE001  raised again in the test's own thread
            self.fault = error

    def _round(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._ns.pods() if is_worker(pod)}
        for uid, pod in pods.items():
            try:
                self._look_after(uid, pod)
            except ApiStatusError as error:
                if error.code not in (404, 409):
                    raise
        for uid in list(self._running):
            if uid not in pods:  # force-deleted without this kubelet
                self._running.pop(uid).process.kill()

    def _look_after(self, uid: str, pod: Json) -> None:
        deleted = "deletionTimestamp" in pod["metadata"]
        if uid not in self._running:
            if uid in self._ended or deleted:
                if deleted:
                    self._ns.remove(pod["metadata"]["name"])
                return
            self._ns.run(pod["metadata"]["name"], self._node)
            self._running[uid] = _Running(pod, self._folder)
            return
        running = self._running[uid]
        code = running.process.poll()
        if code is not None:
            del self._running[uid]
            self._ended.add(uid)
            code = 128 - code if code < 0 else code
            self._ns.end(running.name, code, at=rfc3339(), started=running.started, message=running.message()[-4096:])
        elif deleted:
            running.process.terminate()
