"""A network namespace of its own beside this machine's, as if it were another machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import subprocess
from collections.abc import Iterator

import pytest


@dataclasses.dataclass(frozen=True)
class OwnNetwork:
    """A namespace that a virtual cable connects with this machine."""

    name: str
    device: str
    """This machine's end of the cable."""
    address: str
    """The namespace's address."""
    host: str
    """This machine's address there."""

    @property
    def within(self) -> tuple[str, ...]:
        """Runs a command in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def run(self, command: str) -> None:
        """Skips the test if it cannot be run."""
        try:
            done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"needs ip, tc and iptables: {error}")
        if done.returncode:
            pytest.skip(f"needs root: {command}: {done.stderr.strip()}")


@contextlib.contextmanager
def created() -> Iterator[OwnNetwork]:
    """Removed at the end, with its cable and rules. Skips the test where none can be made."""
    name, subnet = f"ejp{os.getpid()}", f"10.77.{os.getpid() % 250}"
    made = OwnNetwork(name, f"{name}h", f"{subnet}.2", f"{subnet}.1")
    try:
        for command in (
            f"ip netns add {name}",
            f"ip link add {made.device} type veth peer name eth0 netns {name}",
            f"ip address add {made.host}/24 dev {made.device}",
            f"ip link set {made.device} up",
            f"ip -n {name} address add {made.address}/24 dev eth0",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set eth0 up",
        ):
            made.run(command)
        yield made
    finally:
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
