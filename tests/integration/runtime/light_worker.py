"""A worker process without torch: joins its world over TCP as a process group does, reports progress, obeys commands.

    python light_worker.py DIRECTORY

It writes DIRECTORY/workers/<round>-<rank>.json once its whole world is connected. DIRECTORY/commands/<member> holds a
command for it: raise, exit or hang. DIRECTORY/finish ends all of them with success. A lost peer is an error, as it is
for a collective. AT_SIGTERM sets what it does on SIGTERM: save (the default), hang, or default (no handler); one word
for all local ranks, or one each, separated by commas.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Any

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROUND = int(os.environ["ELASTICJOB_ROUND"])
MEMBER = os.environ["ELASTICJOB_MEMBER_ID"]
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
WORLD_NAME = f"{os.environ['TORCHELASTIC_RUN_ID']}/{ROUND}".encode().ljust(100)
"""Sent on connecting: by then, the port may belong to the job of another test."""

HERE = pathlib.Path(sys.argv[1])


def connect_to_peers() -> list[socket.socket]:
    """Connects rank 0 with every other rank; returns once all are connected."""
    if RANK:
        connection = connect()
        connection.sendall(WORLD_NAME)
        if connection.recv(1) != b"g":
            raise ConnectionError("the world of this round never formed")
        return [connection]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", MASTER[1]))
    listener.listen(64)
    listener.settimeout(60)
    connections: list[socket.socket] = []
    while len(connections) < WORLD - 1:
        connection = listener.accept()[0]
        if is_of_this_world(connection):
            connections.append(connection)
    listener.close()
    for connection in connections:
        connection.sendall(b"g")
    return connections


def is_of_this_world(connection: socket.socket) -> bool:
    connection.settimeout(60)
    try:
        return connection.recv(len(WORLD_NAME), socket.MSG_WAITALL) == WORLD_NAME
    except OSError:
        return False


def connect() -> socket.socket:
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(MASTER, 60)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def handle_sigterm() -> None:
    given = os.environ.get("AT_SIGTERM", "save").split(",")
    if given[int(os.environ["LOCAL_RANK"]) % len(given)] != "default":
        signal.signal(signal.SIGTERM, save)


def save(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM: takes as long as writing a checkpoint."""
    time.sleep(1000 if os.environ.get("AT_SIGTERM") == "hang" else 0.3)
    (HERE / f"saved-{MEMBER}-{ROUND}").touch()
    sys.exit(0)


def report_progress(agent: socket.socket, step: int) -> None:
    message: dict[str, Any] = {
        "type": "progress",
        "rank": RANK,
        "step": step,
        "metrics": {"loss": 1 / step},
        "time": time.time(),
    }
    agent.send(json.dumps(message).encode())


def end_slowly(peers: list[socket.socket]) -> None:
    """As torch does: the connections close well after the exception, and the process ends well after that."""
    time.sleep(0.3)
    for peer in peers:
        peer.close()
    time.sleep(0.3)


def write_note(children: list[int]) -> None:
    fields = {"pid": os.getpid(), "member": MEMBER, "rank": RANK, "world": WORLD, "round": ROUND, "children": children}
    fields["restarts"] = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = HERE / "workers" / f"{ROUND}-{RANK}.json"
    path.with_suffix(f".{os.getpid()}").write_text(json.dumps(fields))
    path.with_suffix(f".{os.getpid()}").rename(path)


def follow_command(peers: list[socket.socket]) -> None:
    file = HERE / "commands" / MEMBER
    try:
        word = file.read_text()
        file.unlink()
    except FileNotFoundError:
        return
    if word == "raise":
        atexit.register(end_slowly, peers)
        raise RuntimeError("failed on command")
    if word == "exit":
        os._exit(3)
    if word == "hang":
        signal.pause()


def main() -> None:
    handle_sigterm()
    loader = subprocess.Popen(["sleep", "1000"])
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.connect(os.environ["ELASTICJOB_AGENT_SOCKET"])
    peers = connect_to_peers()
    write_note([loader.pid])
    step = 0
    while not (HERE / "finish").exists():
        step += 1
        report_progress(agent, step)
        follow_command(peers)
        readable, _, _ = select.select(peers, [], [], 0.05)
        if readable and not (HERE / "finish").exists():
            raise ConnectionError("lost a peer")
    loader.kill()


if __name__ == "__main__":
    main()
