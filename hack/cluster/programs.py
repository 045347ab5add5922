"""The cluster's programs: built from the pinned `go.mod` next to this file, once per set of versions, into the cache.

Kubernetes, etcd, containerd, CoreDNS, Helm and kwok are compiled from source, so that Go's module proxy is enough and
no registry of images or binaries is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from hack.steps import Step, Steps, run_logged

from .output import ClusterError, environment, run
from .settings import CHECKOUT, KUBERNETES_VERSION, LINKS, MODULE_FOLDER, cache_folder

FLAGS = ("-trimpath", "-ldflags", f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}")
"""Without -X, the API server reports version v0.0.0, which kubeadm rejects."""

PROGRAMS = (
    *("containerd", "containerd-shim-runc-v2", "coredns", "ctr", "etcd", "etcdctl", "helm"),
    *("kube-apiserver", "kube-controller-manager"),
    *("kube-proxy", "kube-scheduler", "kubeadm", "kubectl", "kubelet", "kwok"),
)
LINKED = ("ctr", "etcdctl", "helm", "kubectl", "kwok")
SECONDS_FROM_NOTHING = 410.0
"""Measured on 2 cores with an empty Go build cache."""


@lru_cache
def programs_folder() -> Path:
    """The folder of this checkout's programs, which may not be built yet. Its name is a hash of all inputs."""
    return _folder_of(MODULE_FOLDER)


def program(name: str) -> Path:
    """The path of a built program. Raises ClusterError when it is not built yet."""
    path = programs_folder() / name
    if not path.exists():
        raise ClusterError(
            f"{name} is not built yet: run `.venv/bin/python -m hack.cluster build` in {CHECKOUT} (about 7 minutes on "
            "2 cores, once)"
        )
    return path


def programs_built() -> bool:
    return all((programs_folder() / name).exists() for name in PROGRAMS)


def build_programs(steps: Steps) -> None:
    """Compiles every program that `go.mod` names, unless they are built already, and links those for users into
    `.cluster/bin`.

    A killed build leaves nothing incomplete: it happens in a separate folder, which is renamed at the end. Of two
    concurrent builds, the second waits. Raises StepError with the compiler's output and the path of its log.
    """
    if not programs_built():
        folder = programs_folder()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "build.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not programs_built():
                why = "a real cluster without Docker or a registry; from source, once per version"
                with steps.step(
                    f"Build Kubernetes {KUBERNETES_VERSION}, etcd, containerd and tools", why, SECONDS_FROM_NOTHING
                ) as step:
                    _build_into(folder, step)
    link_programs()


def link_programs() -> None:
    """Links the programs for users into `.cluster/bin`, so that one folder on PATH is enough."""
    LINKS.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link, target = LINKS / name, programs_folder() / name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)


@lru_cache
def etcd_v2_program() -> Path:
    """An etcd that can serve the v2 API (`--enable-v2`), which torch's own etcd backends need and etcd 3.6 no longer
    has. Only one test uses it: it takes a minute on 2 cores.

    Raises ClusterError with the compiler's output.
    """
    return program_of_module(MODULE_FOLDER / "etcd-v2", "go.etcd.io/etcd/server/v3", "etcd")


def program_of_module(module: Path, package: str, name: str, flags: Sequence[str] = FLAGS) -> Path:
    """A program with a `go.mod` of its own, in the folder `module`, because its libraries differ from the cluster's.
    Built when it is first needed, then kept in the cache. Of two concurrent builds, the second waits.

    Raises ClusterError with the compiler's output.
    """
    return _build_once(_folder_of(module, flags) / name, module, package, flags)


def program_of_source(module: str, package: str, name: str, flags: Sequence[str] = ("-trimpath",)) -> Path:
    """A program of a Go module, `path@version`, that is built in that module's own folder, with its own `go.mod`. Built
    when it is first needed, then kept in the cache.

    Raises ClusterError with the compiler's output.
    """
    digest = hashlib.sha256(repr((module, package, _go_version(), tuple(flags))).encode()).hexdigest()
    return _build_once(cache_folder() / digest[:16] / "bin" / name, source_of_module(module), package, flags)


def _build_once(built: Path, folder: Path, package: str, flags: Sequence[str]) -> Path:
    """Of two concurrent builds, the second waits."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with (built.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            aside = built.with_name(f"{built.name}.unfinished")
            run(
                ["go", "-C", str(folder), "build", *flags, "-o", str(aside), package],
                env=environment(CGO_ENABLED="0", GOFLAGS="-mod=readonly"),
            )
            aside.rename(built)
    return built


def source_of_module(module: str, required_by: Path = MODULE_FOLDER) -> Path:
    """The folder of a Go module that the `go.mod` in `required_by` names, downloaded if necessary."""
    found = run(["go", "mod", "download", "-json", module], cwd=required_by)
    return Path(found.partition('"Dir": "')[2].partition('"')[0])


def _folder_of(module: Path, flags: Sequence[str] = FLAGS) -> Path:
    digest = hashlib.sha256()
    sources = [(module / name).read_bytes() for name in ("go.mod", "go.sum")]
    for part in (*sources, _go_version().encode(), repr(tuple(flags)).encode()):
        digest.update(hashlib.sha256(part).digest())
    return cache_folder() / digest.hexdigest()[:16] / "bin"


def _go_version() -> str:
    if not shutil.which("go"):
        raise ClusterError(
            "Go is not on PATH: the test cluster's programs are built with Go 1.26 or newer (https://go.dev/dl)"
        )
    return run(["go", "env", "GOVERSION"], cwd=MODULE_FOLDER).strip()


def _build_into(folder: Path, step: Step) -> None:
    for stale in folder.parent.glob("unfinished-*"):
        shutil.rmtree(stale)
    aside = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        _compile(aside, folder.parent / "build.log", step)
        (aside / "server").rename(aside / "etcd")
        aside.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _compile(folder: Path, log: Path, step: Step) -> None:
    settings = environment(CGO_ENABLED="0", GOFLAGS="-mod=readonly", GOBIN=str(folder))
    step.say("downloading the sources (Go modules)")
    packages = len(run(["go", "-C", str(MODULE_FOLDER), "list", "-deps", "tool"], env=settings).splitlines())
    compiled = 0

    def on_line(_: str) -> None:
        nonlocal compiled
        compiled += 1  # -v prints one line for each package it compiles
        linked = sum(1 for _ in folder.iterdir())
        step.say(f"{compiled} of at most {packages} packages compiled, {linked} of {len(PROGRAMS)} programs linked")

    run_logged(["go", "-C", str(MODULE_FOLDER), "install", "-v", *FLAGS, "tool"], log, on_line, settings)
