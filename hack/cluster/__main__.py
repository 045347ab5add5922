"""`python -m hack.cluster COMMAND`: the test cluster from the command line."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hack import cluster
from hack.steps import StepError, Steps

from . import kueue
from .output import environment
from .programs import build_programs, program
from .settings import KUBECONFIG, LINKS

OF_A_NODE: dict[str, Callable[..., object]] = {
    "power-off": cluster.power_off,
    "power-on": cluster.power_on,
    "partition": cluster.partition,
    "heal": cluster.heal,
    "freeze": cluster.freeze,
    "thaw": cluster.thaw,
}

TOOLS = ("helm", "kubectl")


def main() -> int:
    try:
        if sys.argv[1:2] and sys.argv[1] in TOOLS:  # their arguments are passed on as they are
            return _run_tool(sys.argv[1], sys.argv[2:])
        arguments = vars(_parser().parse_args())
        _commands()[arguments.pop("command")](**arguments)
    except (cluster.ClusterError, StepError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _commands() -> dict[str, Callable[..., object]]:
    """By name. Their parameters are the arguments."""
    return {
        "build": cluster.build,
        "up": _up,
        "down": cluster.down,
        "status": _print_status,
        "stop-api-server": cluster.stop_api_server,
        "start-api-server": cluster.start_api_server,
        **OF_A_NODE,
        "kueue": kueue.install,
        "load-image": cluster.load_image,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.cluster", description="A real Kubernetes on this machine, without Docker."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=_summary(call)) for name, call in _commands().items()}
    parsers["up"].add_argument("--nodes", type=int, default=3, help="at least this many nodes (default: 3)")
    parsers["up"].add_argument("--fresh", action="store_true", help="start a new cluster even if a healthy one is up")
    for name in OF_A_NODE:
        parsers[name].add_argument("name", metavar="node", help="such as node-1")
    parsers["load-image"].add_argument("archive", type=Path)
    for tool in TOOLS:
        commands.add_parser(tool, help=f"run {tool}, on this cluster if it is up; builds it first if necessary")
    return parser


def _run_tool(name: str, arguments: list[str]) -> int:
    Steps.console.stderr = True  # stdout is the tool's
    with Steps() as steps:
        build_programs(steps)
    kubeconfig = {"KUBECONFIG": str(KUBECONFIG)} if KUBECONFIG.exists() else {}
    return subprocess.run([program(name), *arguments], env=environment(**kubeconfig), check=False).returncode


def _summary(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").partition(". ")[0].partition("\n")[0].rstrip(".")


def _up(nodes: int, fresh: bool) -> None:
    """Starts the cluster, or keeps it if it is healthy."""
    cluster.up(nodes, fresh)
    print(f"export KUBECONFIG={KUBECONFIG} PATH={LINKS}:$PATH")


def _print_status() -> None:
    """Shows the nodes."""
    table = Table("node", "address", "power", "network", "API server says")
    for node in cluster.status():
        connected = "connected" if node.connected else "disconnected"
        table.add_row(node.name, node.address, node.power, connected, "Ready" if node.ready else "NotReady")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
