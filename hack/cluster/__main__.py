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

NODE_COMMANDS: dict[str, Callable[[str], None]] = {
    "power-off": cluster.power_off,
    "power-on": cluster.power_on,
    "partition": cluster.partition,
    "heal": cluster.heal,
    "freeze": cluster.freeze,
    "thaw": cluster.thaw,
}

COMMANDS: dict[str, Callable[[], None]] = {
    "stop-api-server": cluster.stop_api_server,
    "start-api-server": cluster.start_api_server,
}

TOOLS = ("helm", "kubectl")


def main() -> int:
    try:
        if sys.argv[1:2] and sys.argv[1] in TOOLS:  # their arguments are passed on as they are
            return _run_tool(sys.argv[1], sys.argv[2:])
        _execute(_parser().parse_args())
    except (cluster.ClusterError, StepError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.cluster", description="A real Kubernetes on this machine, without Docker."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "build", help="build and install everything it needs (without root: only what the control plane needs)"
    )
    up = commands.add_parser("up", help="start the cluster, or keep it if it is healthy")
    up.add_argument("--nodes", type=int, default=3, help="at least this many nodes (default: 3)")
    up.add_argument("--fresh", action="store_true", help="start a new cluster even if a healthy one is up")
    commands.add_parser("down", help="remove the cluster without a trace")
    commands.add_parser("status", help="show the nodes")
    for name, call in COMMANDS.items():
        commands.add_parser(name, help=_summary(call))
    for name, function in NODE_COMMANDS.items():
        commands.add_parser(name, help=_summary(function)).add_argument("node", help="such as node-1")
    commands.add_parser("kueue", help=_summary(kueue.install))
    commands.add_parser("load-image", help=_summary(cluster.load_image)).add_argument("archive", type=Path)
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


def _execute(arguments: argparse.Namespace) -> None:
    command = arguments.command
    if command in NODE_COMMANDS:
        NODE_COMMANDS[command](arguments.node)
    elif command in COMMANDS:
        COMMANDS[command]()
    elif command == "build":
        cluster.build()
    elif command == "up":
        cluster.up(arguments.nodes, arguments.fresh)
        print(f"export KUBECONFIG={KUBECONFIG} PATH={LINKS}:$PATH")
    elif command == "down":
        cluster.down()
    elif command == "status":
        _print_status()
    elif command == "kueue":
        kueue.install()
    elif command == "load-image":
        cluster.load_image(arguments.archive)


def _print_status() -> None:
    table = Table("node", "address", "power", "network", "API server says")
    for node in cluster.status():
        connected = "connected" if node.connected else "disconnected"
        table.add_row(node.name, node.address, node.power, connected, "Ready" if node.ready else "NotReady")
    console = Console()
    console.print(table)
    console.print(f"memory in use: {cluster.memory_in_use() / 2**20:.0f} MiB; kubeconfig: {KUBECONFIG}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
