"""The images that the cluster itself needs, written in plain Python from the built programs."""

from __future__ import annotations

from pathlib import Path

from hack.steps import Steps

from .oci import write_archive
from .output import run
from .programs import program, programs_folder, source_of_module

PAUSE = "localhost/pause:1"
ETCD = "localhost/etcd:3.6.12"


def own_archives(steps: Steps) -> list[Path]:
    """Archives of pause (every pod's first container) and etcd; created if missing."""
    folder = programs_folder().parent / "images"
    pause, etcd = folder / "pause.tar", folder / "etcd.tar"
    if not (pause.exists() and etcd.exists()):
        with steps.step("Create the images pause and etcd", "every node has them", 2):
            folder.mkdir(parents=True, exist_ok=True)
            write_archive(pause, PAUSE, {"/pause": _compile_pause(folder / "pause")}, ["/pause"], user="65535:65535")
            programs = {f"/usr/local/bin/{name}": program(name) for name in ("etcd", "etcdctl")}
            write_archive(etcd, ETCD, programs, ["/usr/local/bin/etcd"])
    return [pause, etcd]


def _compile_pause(target: Path) -> Path:
    source = source_of_module("k8s.io/kubernetes") / "build" / "pause" / "linux" / "pause.c"
    run(["gcc", "-Os", "-static", "-DVERSION=test", "-o", target, source])
    return target
