"""Machines are checked before their members join: real agents on a real etcd."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import ExitCode, PreflightValue

from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import Job

PASSES = ("--preflight", "Basic", "--preflight-command", "true")
FAILS = ("--preflight-command", shlex.join(["sh", "-c", "echo no link on port 2; exit 3"]))


def test_a_member_whose_machine_fails_a_check_does_not_join_and_says_why(job: Job) -> None:
    agents = job.start_all("a b", *PASSES)
    before = job.wait_for_training(2)
    suspect = job.start("c", *FAILS)
    assert suspect.exit_code() == ExitCode.SUSPECT, job.logs
    why = "the preflight checks of this machine fail: command: exit code 3: no link on port 2"
    assert suspect.termination_file.read_text() == why
    assert why in suspect.output
    kv = job.client.get(job.keys.preflight("c"))
    assert kv is not None
    assert PreflightValue.from_json(kv.value).failed == {"command": "exit code 3: no link on port 2"}
    plan = job.plan
    assert plan is not None
    assert plan.round == before[0].round, "the others were interrupted"
    job.finish()
    assert [agent.exit_code() for agent in agents] == [0, 0], job.logs


def test_a_check_that_fails_everywhere_keeps_no_member_out(job: Job) -> None:
    agents = job.start_all("a b c", "--preflight-command", "/no/such/check", nnodes="3")
    job.wait_for_training(3)
    job.finish()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0], job.logs
    for agent in agents:
        assert "exit code 127: /no/such/check cannot be run" in agent.output
        assert "members fail this check, so it is ignored" in agent.output


@pytest.fixture
def slow_link() -> Iterator[tuple[str, str, str]]:
    """(name of a network namespace, its address, this machine's address there); 2 MB/s in both directions."""
    name, subnet = f"ejp{os.getpid()}", f"10.77.{os.getpid() % 250}"
    host = f"{name}h"
    limit = "root tbf rate 16mbit burst 32kbit latency 50ms"
    commands = [
        f"ip netns add {name}",
        f"ip link add {host} type veth peer name eth0 netns {name}",
        f"ip address add {subnet}.1/24 dev {host}",
        f"ip link set {host} up",
        f"ip -n {name} address add {subnet}.2/24 dev eth0",
        f"ip -n {name} link set lo up",
        f"ip -n {name} link set eth0 up",
        f"tc qdisc add dev {host} {limit}",
        f"ip netns exec {name} tc qdisc add dev eth0 {limit}",
    ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"needs root and tc: {command}: {done.stderr.strip()}")
        yield name, f"{subnet}.2", f"{subnet}.1"
    except FileNotFoundError as error:
        pytest.skip(f"needs ip and tc: {error}")
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_a_member_with_a_slow_network_does_not_join(job: Job, slow_link: tuple[str, str, str]) -> None:
    namespace, address, host = slow_link
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]), host)
    endpoint = f"{host}:{proxy.port}"
    try:
        for name in "abc":
            job.start(name, "--preflight", "Network", "--local-addr", host, nnodes="3:4", endpoint=endpoint)
        flags = ("--preflight", "Network", "--local-addr", address)
        within = ("ip", "netns", "exec", namespace)
        suspect = job.start("d", *flags, nnodes="3:4", endpoint=endpoint, within=within)
        assert suspect.exit_code() == ExitCode.SUSPECT, job.logs
        why = suspect.termination_file.read_text()
        assert re.fullmatch(r".*: network: [\d.]+ MB/s, median of the others [\d.]+ MB/s", why), why
        job.wait_for_training(3)
        job.finish()
        assert [agent.exit_code() for agent in job.agents] == [0, 0, 0, ExitCode.SUSPECT], job.logs
    finally:
        proxy.close()
