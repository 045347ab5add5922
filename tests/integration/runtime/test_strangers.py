"""Real agents, and a process that does not know their run's secret and can reach their ports."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator

from elasticjob_runtime.contract import MemberValue, PlanReason, SecretValue
from elasticjob_runtime.rendezvous.peer_protocol import NONCE_SIZE, Client, Purpose

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.integration.runtime.agents import Agent, Job
from tests.integration.runtime.test_ports import children

FORGED = SecretValue(secret="00" * 32)
CONNECTIONS = 600
"""Per agent."""


def secret_of(job: Job) -> SecretValue:
    kv = job.client.get(job.keys.secret)
    assert kv is not None
    return SecretValue.from_json(kv.value)


def recording(member: MemberValue, secret: SecretValue) -> tuple[list[bytes], list[bytes]]:
    """What a wiretap sees when an agent listens to `member`: what the client and what the server sends."""
    client = Client(secret, member.incarnation, Purpose.HEARTBEATS, os.urandom(NONCE_SIZE))
    sent, received = [client.hello], []
    with socket.create_connection(("127.0.0.1", member.peer_port), timeout=10.0) as connection:
        connection.sendall(client.hello)
        beats = 0
        while beats < 4:
            received.append(connection.recv(4096))
            beats += len(client.receive(received[-1]))
            if reply := client.reply:
                sent.append(reply)
                connection.sendall(reply)
    return sent, received


def attack(port: int, messages: list[bytes]) -> int:
    """Sends each message on a connection of its own. Returns how many bytes came back."""
    answered = 0
    with contextlib.ExitStack() as connections:
        for number in range(CONNECTIONS):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
            with contextlib.suppress(OSError):
                connection.sendall(messages[number % len(messages)])
                connection.settimeout(0.0)
                answered += len(connection.recv(65536))
    return answered


def incarnations(members: dict[str, MemberValue]) -> dict[str, str]:
    return {name: member.incarnation for name, member in members.items()}


def memory_of(agent: Agent) -> int:
    """kB"""
    status = pathlib.Path(f"/proc/{agent.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def test_strangers_change_nothing_and_cost_little(job: Job) -> None:
    ports = free_ports(3)
    agents = [
        job.start(name, "--max-restarts", "1", "--metrics-port", str(port), nnodes="3")
        for name, port in zip("abc", ports, strict=True)
    ]
    before = job.wait_for_training(3)
    plan, members = job.plan, job.members
    cpu, memory = [agent.cpu_seconds for agent in agents], [memory_of(agent) for agent in agents]
    for member in members.values():
        forged = Client(FORGED, member.incarnation, Purpose.HEARTBEATS, os.urandom(NONCE_SIZE)).hello
        junk = [forged, forged[:20], b"", b"GET / HTTP/1.1\r\n\r\n", b'{"incarnation": "x", "round": 99}\n.99\n']
        assert attack(member.peer_port, [*junk, os.urandom(60_000)]) == 0, "a stranger got an answer"
    for agent, cpu_before, memory_before in zip(agents, cpu, memory, strict=True):
        assert agent.cpu_seconds - cpu_before < CONNECTIONS * 0.003, "more than 3 ms per connection"
        assert memory_of(agent) - memory_before < 8_000, "more than 8 MB"
        assert len(os.listdir(f"/proc/{agent.pid}/fd")) < 400
        warnings = [line for line in agent.output.splitlines() if "not from an agent of this run" in line]
        assert len(warnings) == 1, "the log is flooded, or says nothing"
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
        assert 'elasticjob_agent_peer_connections_dropped_total{reason="invalid"}' in text
    assert job.plan == plan, "strangers changed the plan"
    assert incarnations(job.members) == incarnations(members), "strangers changed the membership"
    assert job.workers(before[0].round) == before
    job.command("a", "raise")
    job.wait_for_training(3, after=before)  # and the group still works


def test_recorded_messages_are_worth_nothing(job: Job) -> None:
    job.start_all("a b", nnodes="2")
    job.wait_for_training(2)
    plan, members = job.plan, job.members
    secret = secret_of(job)
    (sent, received), other = recording(members["a"], secret), recording(members["b"], secret)
    port = members["a"].peer_port
    greeting = received[0][:40]
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as again:
        again.sendall(sent[0])
        answer = again.recv(4096)
        assert len(answer) == len(greeting) <= len(sent[0]), "one greeting, no larger than what was sent"
        assert answer != greeting
        again.sendall(sent[1])
        with contextlib.suppress(ConnectionResetError):
            assert again.recv(4096) == b"", "a recording got heartbeats"
    for message in (*received, *other[0], *other[1], sent[1]):
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(4096) == b"", "a message to or of another agent got an answer"
    assert job.plan == plan
    assert incarnations(job.members) == incarnations(members)


@contextlib.contextmanager
def impostor(says: list[bytes]) -> Iterator[tuple[int, list[int]]]:
    """Sends `says` on every connection, again and again. Yields its port, and a list that grows with each
    connection."""
    server = socket.create_server(("", 0))
    served: list[int] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                served.append(1)
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while True:
                connection.recv(4096)
                for message in says:
                    connection.sendall(message)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1], served
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def leads_elsewhere(job: Job, name: str, port: int) -> None:
    """The member's address leads to another process from now on, as when its pod's IP address is given to another
    pod."""
    eventually(lambda: job.members[name].saves, 20.0, what="its key changes no more")
    kv = job.client.get(job.keys.member(name))
    assert kv is not None
    value = dataclasses.replace(MemberValue.from_json(kv.value), address="127.0.0.1", peer_port=port)
    job.client.put(kv.key, value.to_json(), lease=kv.lease)


def test_a_process_at_a_lost_members_address_does_not_pass_for_it(job: Job) -> None:
    """The lease lasts for longer than the test, so only the agents' own probes can show that the member is gone."""
    conf = "start_grace=0.5,join_delay=0.1,lease_ttl=120"
    agents = {name: job.start(name, nnodes="2:3", conf=conf) for name in "abc"}
    before = job.wait_for_training(3)
    plan = job.plan
    assert plan is not None
    lost = next(name for name in agents if name != plan.leader)
    member = job.members[lost]
    _, received = recording(member, secret_of(job))
    with impostor(received) as (port, served):
        leads_elsewhere(job, lost, port)
        agents[lost].signal(signal.SIGKILL)
        job.wait_for_training(2, after=before)
        assert served, "the impostor was not asked"
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LOST
    assert lost in job.members, "the lease has not ended: its probes showed it"


def test_the_secret_is_only_in_etcd_and_in_the_agents_memory(job: Job, tmp_path: pathlib.Path) -> None:
    agents = job.start_all("a b", "--debug", "--max-restarts", "1", nnodes="2", environment={"TMPDIR": str(tmp_path)})
    workers = job.wait_for_training(2)
    job.command("a", "raise")
    job.wait_for_training(2, after=workers)
    secret = secret_of(job)
    hidden = (secret.secret.encode(), secret.key)
    for pid in {pid for agent in agents for pid in children(agent.pid)}:
        for name in ("environ", "cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                content = pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
                assert not any(item in content for item in hidden)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    for path in files:
        assert not any(item in path.read_bytes() for item in hidden), path
