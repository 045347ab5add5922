"""The rendezvous benchmark's tables, from counters that etcd could have had."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.rendezvous.report import Counters, Crowded, Phase, Result, counters, growth, parse_line, table, verdict


def crowd(members: int, writes_each: float) -> Result:
    writes = members * writes_each
    used = Counters(
        calls=writes, writes=writes, puts=writes, received=writes * 100, sent=writes * 50, log=writes * 10, cpu=0.5
    )
    phase = Phase(seconds=1.0, python_cpu=0.7, etcd=used)
    return Result(members=members, start=phase, loss=phase, takeover=phase)


def test_a_constant_cost_per_member_is_linear() -> None:
    results = [crowd(4, 3), crowd(128, 3), crowd(1000, 3)]
    assert growth(results, lambda one: one.start.etcd.writes) == pytest.approx(1.0 if len(results) > 1 else 0)
    assert "writes at the start x1.00" in verdict(results)


def test_a_cost_that_grows_with_the_group_shows() -> None:
    results = [crowd(4, 4), crowd(100, 100), crowd(1000, 1000)]
    assert growth(results[1:], lambda one: one.start.etcd.writes) == pytest.approx(10)


def test_one_group_size_gives_no_growth() -> None:
    assert verdict([crowd(4, 3)]) == ""
    assert len(table([crowd(4, 3)])) == 3


def test_a_phase_is_the_difference_of_two_samples() -> None:
    before = counters(dict.fromkeys(NAMES, 10.0))
    after = counters(dict.fromkeys(NAMES, 25.0))
    assert dataclasses.asdict(after - before) == dict.fromkeys(
        ("calls", "writes", "puts", "received", "sent", "log", "cpu"), 15.0
    )


NAMES = (
    "grpc_server_started_total",
    "etcd_server_proposals_committed_total",
    "etcd_mvcc_put_total",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_network_client_grpc_sent_bytes_total",
    "etcd_disk_wal_write_bytes_total",
    "process_cpu_seconds_total",
)


def test_a_line_of_the_benchmark_is_parsed() -> None:
    assert parse_line('{"round": 2, "at": 3.5, "cpu": 1.0, "planners": 1}\n') == Crowded(2, 3.5, 1.0, 1)
