"""Machines are checked before their members join: real agents on a real etcd."""

from __future__ import annotations

import re
import shlex

import pytest
from elasticjob_runtime.contract import ExitCode, PreflightValue

from tests.contract.proxy import Proxy
from tests.integration.runtime.agents import Job
from tests.integration.runtime.own_network import OwnNetwork

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
def slow_link(own_network: OwnNetwork) -> OwnNetwork:
    """2 MB/s in both directions."""
    limit = "root tbf rate 16mbit burst 32kbit latency 50ms"
    for command in (
        f"tc qdisc add dev {own_network.device} {limit}",
        shlex.join([*own_network.within, *f"tc qdisc add dev eth0 {limit}".split()]),
    ):
        own_network.run(command)
    return own_network


def test_a_member_with_a_slow_network_does_not_join(job: Job, slow_link: OwnNetwork) -> None:
    host = slow_link.host
    proxy = Proxy(int(job.endpoint.rpartition(":")[2]), host)
    endpoint = f"{host}:{proxy.port}"
    try:
        for name in "abc":
            job.start(name, "--preflight", "Network", "--local-addr", host, nnodes="3:4", endpoint=endpoint)
        flags = ("--preflight", "Network", "--local-addr", slow_link.address)
        suspect = job.start("d", *flags, nnodes="3:4", endpoint=endpoint, within=slow_link.within)
        assert suspect.exit_code() == ExitCode.SUSPECT, job.logs
        why = suspect.termination_file.read_text()
        assert re.fullmatch(r".*: network: [\d.]+ MB/s, median of the others [\d.]+ MB/s", why), why
    finally:
        proxy.close()
