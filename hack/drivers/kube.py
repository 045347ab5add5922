"""Thin wrappers of kubectl and Helm, with their output in every error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.images.recipe import ROOT

LINKS = ROOT / ".cluster" / "bin"
"""Folder in which the test cluster links its programs."""


class KubeError(RuntimeError):
    """kubectl or Helm failed; the message has the command and its output."""


def find_program(name: str) -> str:
    """The test cluster's program if it is built, otherwise the one on PATH. Raises KubeError if there is neither."""
    found = shutil.which(name, path=f"{LINKS}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        raise KubeError(f"{name} is not on PATH: install it, or build it with `python -m hack.cluster build`")
    return found


class Kubectl:
    """kubectl on one cluster. `kubeconfig` None: kubectl's default."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self.kubeconfig = kubeconfig

    def command(self, *words: str) -> list[str]:
        """The full command line, for callers that run it themselves."""
        return _command("kubectl", self.kubeconfig, words)

    def run(self, *words: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl and returns what it printed. Raises KubeError, also after `timeout` seconds."""
        return _run(self.command(*words), stdin, timeout)

    def apply(self, manifest: str | Path, namespace: str = "default") -> str:
        """Applies a file, or a manifest given as text."""
        if isinstance(manifest, Path):
            return self.run("apply", "--namespace", namespace, "--filename", str(manifest))
        return self.run("apply", "--namespace", namespace, "--filename", "-", stdin=manifest)

    def delete(self, kind: str, name: str, namespace: str = "default", wait: bool = True, timeout: float = 60) -> str:
        """Deletes one object, if it exists. `wait`: returns when it is gone."""
        words = ["delete", kind, name, "--namespace", namespace, "--ignore-not-found", f"--wait={str(wait).lower()}"]
        return self.run(*words, timeout=timeout)

    def get(self, kind: str, name: str = "", namespace: str = "default", selector: str = "") -> dict[str, Any]:
        """One object, or (without a name) the list of all, as kubectl's JSON."""
        words = ["get", kind, *([name] if name else []), "--namespace", namespace, "--output", "json"]
        parsed: dict[str, Any] = json.loads(self.run(*words, *(["--selector", selector] if selector else [])))
        return parsed

    def items(self, kind: str, namespace: str = "default", selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind, or those that match the label selector."""
        found: list[dict[str, Any]] = self.get(kind, "", namespace, selector)["items"]
        return found

    def wait(self, what: str, condition: str, namespace: str = "default", timeout: float = 60) -> str:
        """Waits for a condition: wait("elasticjob/digits", "condition=Succeeded")."""
        words = ["wait", what, f"--for={condition}", "--namespace", namespace, f"--timeout={timeout:g}s"]
        return self.run(*words, timeout=timeout + 10)

    def logs(self, pod: str, *words: str, namespace: str = "default") -> str:
        return self.run("logs", pod, "--namespace", namespace, *words)


class Helm:
    """Helm on one cluster."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *words: str, timeout: float = 180) -> str:
        """Runs Helm and returns what it printed. Raises KubeError."""
        return _run(_command("helm", self._kubeconfig, words), None, timeout)


def _command(name: str, kubeconfig: Path | None, words: Sequence[str]) -> list[str]:
    return [find_program(name), *(["--kubeconfig", str(kubeconfig)] if kubeconfig else []), *words]


def _run(command: Sequence[str], stdin: str | None, timeout: float) -> str:
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise KubeError(f"{shown}: no answer within {timeout:g} s") from None
    if done.returncode:
        raise KubeError(f"{shown}: exit status {done.returncode}\n{(done.stderr or done.stdout).strip()}")
    return done.stdout
