"""The agent's metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request

import pytest
from elasticjob_runtime.telemetry.metrics import AgentState, Metrics
from elasticjob_runtime.telemetry.metrics_server import MAX_CONNECTIONS, MetricsServer
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from hack.support import eventually


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text: str) -> dict[tuple[str, ...], float]:
    """(name, label value ...) -> value."""
    return {
        (sample.name.removeprefix("elasticjob_agent_"), *sample.labels.values()): sample.value
        for family in parsed(text).values()
        for sample in family.samples
    }


def test_prometheus_parses_all_metrics_and_their_types() -> None:
    metrics = Metrics(
        state=AgentState.TRAINING,
        round=3,
        world_size=8,
        rank=2,
        step=120,
        steps_per_second=2.5,
        last_checkpoint_step=100,
    )
    metrics.add_restart("WorkerFailed")
    metrics.add_restart("WorkerFailed")
    metrics.add_dropped_connection("invalid")
    metrics.add_transition("WorkerFailed", {"detect": {"since": 0.01, "seconds": 0.01}, "stop": None}, 3)
    metrics.add_transition("WorkerFailed", {"detect": {"since": 300.0, "seconds": 300.0}}, None)
    families, found = parsed(metrics.text()), values(metrics.text())
    types = [families[f"elasticjob_agent_{name}"].type for name in ("phase_seconds", "restarts", "round")]
    assert types == ["histogram", "counter", "gauge"]
    assert all(family.documentation for family in families.values())
    assert (found["round",], found["world_size",], found["rank",]) == (3, 8, 2)
    assert (found["state", "training"], found["state", "spare"]) == (1, 0)
    assert found["restarts_total", "WorkerFailed"] == 2
    assert found["peer_connections_dropped_total", "invalid"] == 1
    steps = ("step", "steps_per_second", "last_checkpoint_step", "steps_lost_total")
    assert [found[name,] for name in steps] == [120, 2.5, 100, 3]
    bounds = ("0.005", "0.01", "120.0", "+Inf")
    assert [found["phase_seconds_bucket", "WorkerFailed", "detect", bound] for bound in bounds] == [0, 1, 1, 2]
    assert found["phase_seconds_count", "WorkerFailed", "detect"] == 2
    assert found["phase_seconds_sum", "WorkerFailed", "detect"] == 300.01
    assert ("phase_seconds_count", "WorkerFailed", "stop") not in found


def test_unknown_metrics_are_left_out() -> None:
    found = values(Metrics(store_up=False).text())
    assert not {name for name, *_ in found} & {"rank", "step", "steps_per_second", "steps_lost_total", "restarts_total"}
    assert found["store_up",] == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"], ids=["IPv4", "IPv6"])
def test_metrics_are_served_over_http(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    metrics = Metrics(round=7)
    server = MetricsServer(0, metrics.text)
    server.start()
    try:
        with urllib.request.urlopen(f"http://{host}:{server.port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert values(answer.read().decode())["round",] == 7
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{server.port}/", timeout=10)
    finally:
        server.close()


def test_slow_clients_use_a_bounded_number_of_threads_and_keep_no_scrape_out() -> None:
    server = MetricsServer(0, Metrics().text)
    server.start()
    threads = threading.active_count()
    slow = []
    try:
        for _ in range(5 * MAX_CONNECTIONS):
            slow.append(socket.create_connection(("127.0.0.1", server.port), timeout=10.0))
            slow[-1].sendall(b"GET /metr")
        eventually(lambda: threading.active_count() - threads <= MAX_CONNECTIONS + 1, 20.0, what="threads end")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10.0) as page:
            assert b"elasticjob_agent_state" in page.read()
        assert slow[0].recv(100) == b"", "the oldest was closed"
    finally:
        for connection in slow:
            connection.close()
        server.close()
