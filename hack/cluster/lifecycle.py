"""The commands of the cluster with nodes. Each is a function of the package and a subcommand, documented here."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hack import debian
from hack.steps import Steps, concurrently

from . import control_plane, images, machine, network
from .control_plane import is_running, server_is_ready, start_control_plane, wait_for_service_accounts
from .nodes import Node, all_nodes, ready_nodes
from .oci import read_archive
from .output import ClusterError, run, tail
from .programs import build_programs, program
from .settings import CHECKOUT, DOT_CLUSTER, KUBECONFIG, MAX_NODES, SHARED_DIRECTORY, NodeAddress, state_folder
from .template import import_into_template

READY_SECONDS = 60.0


@dataclass(frozen=True)
class NodeStatus:
    """One node as it is now. `power`: on, off or frozen. `ready`: the node's condition in the API."""

    name: str
    address: str
    power: str
    connected: bool
    ready: bool


def build() -> None:
    """Installs everything that a cluster needs: Debian packages (as root), programs, images. Quick if nothing is
    missing."""
    with Steps() as steps:
        _build(steps)


def up(nodes: int = 3, fresh: bool = False) -> Path:
    """Starts the cluster with at least this many nodes, all Ready, and returns its kubeconfig.

    Keeps a healthy cluster of this checkout, unless `fresh`. Removes anything else first, such as the remains of a
    killed run or another checkout's cluster. Builds what is missing.
    """
    machine.require_root()
    with Steps() as steps:
        _build(steps)
        with machine.turn():
            if fresh or not _is_healthy():
                _clean(steps)
                _create(nodes, steps)
            _add_nodes(nodes - len(_nodes()), steps)
    return KUBECONFIG


def down() -> None:
    """Removes the cluster, or what is left of one. Only its logs stay."""
    machine.require_root()
    with Steps() as steps, machine.turn():
        _clean(steps)


def power_off(name: str) -> None:
    """Ends everything on the node at once and silently, as pulling the plug does: no connection is closed. The node
    becomes NotReady after about 5 s and keeps its disk. Does nothing if it is off."""
    with _changing():
        _node(name).power_off()


def power_on(name: str) -> None:
    """Starts a node that is off, with its disk unchanged, and waits until it is Ready. Does nothing if it is on."""
    with _changing():
        node = _node(name)
        if not node.is_on():
            node.power_off()  # left behind by a killed power_on
            node.power_on()
        _wait_until_ready([node])


def partition(name: str) -> None:
    """Unplugs the node's network cable. Its processes keep running, but reach nothing outside the node."""
    with _changing():
        network.set_link(_node_that_is_on(name).address, up=False)


def heal(name: str) -> None:
    """Plugs the cable back in, and waits until the node is Ready."""
    with _changing():
        node = _node_that_is_on(name)
        network.set_link(node.address, up=True)
        _wait_until_ready([node])


def freeze(name: str) -> None:
    """Stops every process of the node. Its connections stay open, unanswered."""
    with _changing():
        _node_that_is_on(name).freeze()


def thaw(name: str) -> None:
    """Resumes a frozen node, and waits until it is Ready."""
    with _changing():
        node = _node_that_is_on(name)
        node.thaw()
        _wait_until_ready([node])


def stop_api_server() -> None:
    """Kills the API server; everything else keeps running. Does nothing if it is down."""
    with _changing():
        control_plane.stop_api_server()


def start_api_server() -> None:
    """Starts the stopped API server on its old data, and waits until it answers. Does nothing if it is up."""
    with _changing():
        if not control_plane.api_server_is_running():
            control_plane.start_api_server(state_folder())


def load_image(archive: Path | str) -> None:
    """Loads the image in an OCI or Docker archive into every present and future node. Quick if a node already has it.

    Works without a cluster too: the next one then starts with the image.
    """
    machine.require_root()
    archive = Path(archive)
    with Steps() as steps, machine.turn():
        image = read_archive(archive)
        import_into_template([archive], steps)
        with steps.step(f"Load {image.name} into the running nodes"):
            concurrently(*(partial(node.add_image, image.name) for node in _nodes()))


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Runs kubectl as the cluster's administrator and returns its output. Raises ClusterError with its error
    output if it fails."""
    return run([program("kubectl"), "--kubeconfig", KUBECONFIG, *arguments], stdin=stdin)


def status() -> list[NodeStatus]:
    """The current state of every node. Raises ClusterError if this checkout has no cluster."""
    require_cluster()
    ready = ready_nodes(KUBECONFIG)
    return [_status(node, node.name in ready) for node in _nodes()]


def _build(steps: Steps) -> None:
    if not machine.is_root():
        steps.console.print("  not root: building programs only, enough for a control plane without nodes")
        build_programs(steps)
        return
    concurrently(
        lambda: build_programs(steps),
        lambda: debian.install(debian.PACKAGES, steps, "to run containers and build images"),
    )
    with machine.turn():
        import_into_template(images.own_archives(steps), steps)


def _create(nodes: int, steps: Steps) -> None:
    state = state_folder()
    with steps.step("Start the control plane", usually=5):
        shutil.rmtree(state / "logs", ignore_errors=True)
        (state / "logs").mkdir(parents=True)
        machine.new_record(complete=False).write()
        SHARED_DIRECTORY.mkdir(parents=True)
        SHARED_DIRECTORY.chmod(0o777)
        network.create()
        start_control_plane(state)
    _add_nodes(nodes, steps)
    wait_for_service_accounts(state)
    DOT_CLUSTER.mkdir(exist_ok=True)
    shutil.copyfile(state / "super-admin.conf", KUBECONFIG)
    KUBECONFIG.chmod(0o600)
    for name in ("logs", "nodes"):
        (DOT_CLUSTER / name).unlink(missing_ok=True)
        (DOT_CLUSTER / name).symlink_to(state / name)
    machine.new_record(complete=True).write()


def _add_nodes(count: int, steps: Steps) -> list[Node]:
    if count <= 0:
        return []
    taken = {node.address.number for node in _nodes()}
    free = [number for number in range(1, MAX_NODES + 1) if number not in taken]
    if len(free) < count:
        raise ClusterError(f"{count} more nodes are too many: the test cluster has addresses for {MAX_NODES}")
    added = [Node(state_folder(), NodeAddress(number)) for number in free[:count]]
    with steps.step(f"Start {', '.join(node.name for node in added)}", usually=3 + count):
        concurrently(*(node.power_on for node in added))
        _wait_until_ready(added)
    return added


def _clean(steps: Steps) -> None:
    traces = machine.traces()
    record = machine.read_record()
    if not traces:
        return
    other = record is not None and record.checkout != str(CHECKOUT)
    owner = f"the cluster of {record.checkout}" if record and other else "the cluster"
    with steps.step(f"Remove {owner}, or what is left of it", "a machine holds one" if other else ""):
        machine.remove_everything()


def _is_healthy() -> bool:
    record = machine.read_record()
    if (
        record != machine.new_record(complete=True)
        or not is_running()
        or not server_is_ready(state_folder())
        or not KUBECONFIG.exists()
    ):
        return False
    return all(item.ready and item.connected and item.power == "on" for item in status())


def _wait_until_ready(nodes: Sequence[Node]) -> None:
    wanted, end = {node.name for node in nodes}, time.monotonic() + READY_SECONDS
    since = (
        time.time()
    )  # a node that was briefly unreachable may still be Ready: its kubelet must have renewed its lease since
    while missing := wanted - ready_nodes(state_folder() / "super-admin.conf", since):
        if time.monotonic() > end:
            logs = "\n".join(
                f"{node.logs}/kubelet.log\n{tail(node.logs / 'kubelet.log')}" for node in nodes if node.name in missing
            )
            raise ClusterError(f"not Ready after {READY_SECONDS:g} s: {', '.join(sorted(missing))}\n{logs}")
        time.sleep(0.1)


def _status(node: Node, ready: bool) -> NodeStatus:
    if not node.is_on():
        return NodeStatus(node.name, node.address.address, "off", connected=False, ready=ready)
    power = "frozen" if node.is_frozen() else "on"
    return NodeStatus(node.name, node.address.address, power, network.link_is_up(node.address), ready)


def _nodes() -> list[Node]:
    return all_nodes(state_folder())


def _node(name: str) -> Node:
    known = {node.name: node for node in _nodes()}
    if name not in known:
        raise ClusterError(f"no node {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]


def _node_that_is_on(name: str) -> Node:
    node = _node(name)
    if not node.is_on():
        raise ClusterError(f"{name} is off: power_on({name!r}) first")
    return node


def require_cluster() -> None:
    record = machine.read_record()
    if not record or not record.complete or record.checkout != str(CHECKOUT):
        where = f" (the one on this machine is of {record.checkout})" if record else ""
        raise ClusterError(f"this checkout has no cluster{where}: start one with `.venv/bin/python -m hack.cluster up`")


@contextlib.contextmanager
def _changing() -> Iterator[Steps]:
    machine.require_root()
    require_cluster()
    with Steps() as steps, machine.turn():
        yield steps
