"""Context managers that inject a fault on entry, and undo it on exit however the run ends."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from hack.chaos.network import partitioned
from hack.chaos.processes import frozen
from hack.chaos.scene import Scene
from hack.cluster import start_api_server, stop_api_server

Injection = Callable[[Scene], AbstractContextManager[None]]


def at_once(act: Callable[[Scene], object]) -> Injection:
    """A fault with nothing to undo."""

    @contextlib.contextmanager
    def made(scene: Scene) -> Iterator[None]:
        act(scene)
        yield

    return made


def until_healed(
    make: Callable[[Scene], AbstractContextManager[object]],
) -> Injection:
    """A fault that another context manager injects and undoes."""

    @contextlib.contextmanager
    def made(scene: Scene) -> Iterator[None]:
        with make(scene):
            yield

    return made


def network_cut(one: Sequence[str], other: Sequence[str]) -> Injection:
    return until_healed(lambda _: partitioned(one, other))


def delete(*indices: int, force: bool = False) -> Injection:
    return at_once(lambda scene: scene.job.delete_pods([scene.job.worker(index) for index in indices], force))


def until_undone(act: Callable[[Scene], None], undo: Callable[[Scene], None]) -> Injection:
    @contextlib.contextmanager
    def made(scene: Scene) -> Iterator[None]:
        act(scene)
        try:
            yield
        finally:
            undo(scene)

    return made


def powered_off(node: str) -> Injection:
    return until_undone(lambda scene: scene.power.power_off(node), lambda scene: scene.power.power_on(node))


def unplugged(node: str) -> Injection:
    return until_undone(lambda scene: scene.power.partition(node), lambda scene: scene.power.heal(node))


def node_frozen(node: str) -> Injection:
    return until_undone(lambda scene: scene.power.freeze(node), lambda scene: scene.power.thaw(node))


api_server_down = until_undone(lambda _: stop_api_server(), lambda _: start_api_server())


@contextlib.contextmanager
def dns_frozen_and_a_worker_killed(scene: Scene) -> Iterator[None]:
    worker = scene.worker(1)
    with frozen("control-plane/coredns"):
        worker.send(signal.SIGKILL)
        yield


@contextlib.contextmanager
def scaled(scene: Scene, sizes: Sequence[int], pause: float) -> Iterator[None]:
    """Scales up and down, without waiting for the result."""
    for size in sizes:
        scene.job.scale(size)
        time.sleep(pause)
    yield


@contextlib.contextmanager
def disk_filled(scene: Scene) -> Iterator[None]:
    """Fills the disk of rank 0's pod, the only one that writes."""
    member = next(process.member for process in scene.newest().processes if process.rank == 0)
    scene.job.order(member, "fill")
    try:
        yield
    finally:
        words = ("exec", member, "--namespace", "default", "--container", "trainer", "--", "rm", "-f", "/small/filler")
        scene.driver.kubectl.run(*words)


@contextlib.contextmanager
def killed_with_a_fast_clock(scene: Scene) -> Iterator[None]:
    """Kills the worker with the fast clock, then another: both count, and the second is the last failure."""
    for index in (scene.job.wanted - 1, 0):
        scene.worker(index).send(signal.SIGKILL)
        time.sleep(8)
    yield
