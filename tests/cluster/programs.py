"""The cluster's programs: built from the pinned `go.mod` beside this file, once per set of versions, into the cache.

Kubernetes, etcd, containerd, CoreDNS, Helm and kwok are compiled from source because no registry of images or binaries is needed that way:
Go's module proxy is enough.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from .output import ClusterError, run, say, step, tail
from .settings import CHECKOUT, KUBERNETES_VERSION, LINKS, MODULE_FOLDER, cache_folder

FLAGS = ("-trimpath", "-ldflags", f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}")
"""Without that -X the API server calls itself v0.0.0 and kubeadm refuses it."""

PROGRAMS = (
    *("containerd", "containerd-shim-runc-v2", "coredns", "ctr", "etcd", "etcdctl", "helm", "kube-apiserver", "kube-controller-manager"),
    *("kube-proxy", "kube-scheduler", "kubeadm", "kubectl", "kubelet", "kwok"),
)
LINKED = ("ctr", "etcdctl", "helm", "kubectl", "kwok")


@lru_cache
def programs_folder() -> Path:
    """The folder that holds, or will hold, the programs of this checkout: named by everything that goes into them."""
    digest = hashlib.sha256()
    for part in (
        (MODULE_FOLDER / "go.mod").read_bytes(),
        (MODULE_FOLDER / "go.sum").read_bytes(),
        _go_version().encode(),
        repr(FLAGS).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return cache_folder() / digest.hexdigest()[:16] / "bin"


def program(name: str) -> Path:
    """The path of a built program. Raises ClusterError when it is not built yet."""
    path = programs_folder() / name
    if not path.exists():
        raise ClusterError(
            f"{name} is not built yet: run `.venv/bin/python -m tests.cluster build` in {CHECKOUT} (about 7 minutes on 2 cores, once)"
        )
    return path


def programs_built() -> bool:
    return all((programs_folder() / name).exists() for name in PROGRAMS)


def build_programs() -> None:
    """Compiles every program that `go.mod` names, unless this was done before, and links those a person wants into `.cluster/bin`.

    A build killed half-way leaves nothing half-made: it happens in a folder of its own and is renamed at its end.
    """
    folder = programs_folder()
    if not programs_built():
        say(f"building {len(PROGRAMS)} programs of Kubernetes {KUBERNETES_VERSION} from source into {folder}")
        say("(they make a real cluster without Docker or an image registry; took 7 minutes from an empty Go cache on 2 cores; done once)")
        with step("programs built"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix="bin-", dir=folder.parent))
            try:
                _compile(aside)
                (aside / "server").rename(aside / "etcd")
                aside.chmod(0o755)
                shutil.rmtree(folder, ignore_errors=True)
                aside.rename(folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    link_programs()


def link_programs() -> None:
    """Links the programs that a person uses into `.cluster/bin`, so that one folder on PATH is enough."""
    LINKS.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link, target = LINKS / name, programs_folder() / name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def _go_version() -> str:
    if not shutil.which("go"):
        raise ClusterError(
            "Go is not installed or not on PATH: the test cluster's programs are built with Go 1.26 or newer (https://go.dev/dl)"
        )
    return run(["go", "env", "GOVERSION"], cwd=MODULE_FOLDER).strip()


def _compile(folder: Path) -> None:
    say("downloading the sources (Go modules) ...")
    packages = len(run(["go", "list", "-deps", "tool"], cwd=MODULE_FOLDER, env=_go_environment()).splitlines())
    log = folder.parent / "build.log"
    with log.open("w") as output:
        command = ["go", "install", "-v", *FLAGS, "tool"]  # -v: one line per compiled package, which is our progress
        compiler = subprocess.Popen(
            command, cwd=MODULE_FOLDER, env={**_go_environment(), "GOBIN": str(folder)}, stdout=output, stderr=output
        )
    try:
        started = shown = time.monotonic()
        while compiler.poll() is None:
            time.sleep(0.5)
            if time.monotonic() - shown > (1 if sys.stderr.isatty() else 15):
                shown = time.monotonic()
                _show_progress(len(log.read_bytes().splitlines()), packages, len(list(folder.iterdir())), shown - started)
    finally:
        compiler.kill()
        compiler.wait()
    if compiler.returncode:
        raise ClusterError(f"go install failed, log: {log}\n{tail(log)}")


def _show_progress(compiled: int, packages: int, linked: int, seconds: float) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    text = f"cluster: compiled {compiled} of at most {packages} packages, linked {linked} of {len(PROGRAMS)} programs, {seconds:.0f} s"
    print(text, end=end, file=sys.stderr, flush=True)


def _go_environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
