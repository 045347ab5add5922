"""train.py without torch, which takes seconds to import.

The same files; a lost peer is an error, as it is for a collective. For tests of the agents: those of the process group
and the agent's store run train.py.
"""

from __future__ import annotations

import os
import pathlib
import socket
import time
from typing import TextIO

folder = pathlib.Path(os.environ["FOLDER"])
member = os.environ["ELASTICJOB_MEMBER_ID"]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = 60.0

saved = folder / "step"


def main() -> None:
    peers = connect_as_rank_0() if RANK == 0 else [connect_to_rank_0()]
    step = exchange(peers, int(saved.read_text()) if RANK == 0 and saved.exists() else 0)
    with (folder / "steps" / member).open("a", buffering=1) as log:
        while not exchange(peers, int((folder / "stop").exists())):
            step += 1
            end_of_step(step, log)


def port_file() -> pathlib.Path:
    """Where rank 0 of this round publishes its port."""
    return folder / f"port-{os.environ['ELASTICJOB_FENCE'].replace('/', '-')}"


def connect_as_rank_0() -> list[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        port_file().with_suffix(".new").write_text(str(server.getsockname()[1]))
        port_file().with_suffix(".new").rename(port_file())
        peers = [server.accept()[0] for _ in range(WORLD - 1)]
    for peer in peers:
        peer.settimeout(TIMEOUT)
    return peers


def connect_to_rank_0() -> socket.socket:
    end = time.monotonic() + TIMEOUT
    while not port_file().exists():
        if time.monotonic() > end:
            raise TimeoutError("rank 0 did not start")
        time.sleep(0.02)
    return socket.create_connection(("127.0.0.1", int(port_file().read_text())), TIMEOUT)


def exchange(peers: list[socket.socket], number: int) -> int:
    """Waits for every rank, and returns rank 0's number."""
    if RANK == 0:
        for peer in peers:
            receive(peer)
    for peer in peers:
        peer.sendall(number.to_bytes(8, "big"))
    return number if RANK == 0 else receive(peers[0])


def receive(peer: socket.socket) -> int:
    data = peer.recv(8, socket.MSG_WAITALL)
    if len(data) < 8:
        raise ConnectionError("lost a peer")
    return int.from_bytes(data, "big")


def end_of_step(step: int, log: TextIO) -> None:
    """Saves and records the step, and follows commands."""
    if RANK == 0:
        (folder / "step.new").write_text(str(step))
        (folder / "step.new").rename(saved)
    log.write(f"{step} {RANK} {WORLD} {os.getpid()}\n")
    follow_commands()
    time.sleep(0.05)


def follow_commands() -> None:
    crash = folder / f"crash-{member}"
    if crash.exists():
        crash.unlink()
        os._exit(3)
    if (folder / f"fail-{member}").exists():
        raise ValueError("the data are broken")


if __name__ == "__main__":
    main()
