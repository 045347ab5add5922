"""Ranks that follow the network, in a training that continues in place."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.contract import LocationsValue, RankValue
from elasticjob_runtime.etcd import Get, KeyRange

from hack.support import eventually
from tests.integration.runtime_session.session_job import START, SessionJob

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(400)]


def order(job: SessionJob) -> str:
    """The members of the current plan, by rank."""
    plan = job.plan
    assert plan is not None
    found = job.client.range(Get(KeyRange.prefix(f"{job.keys.ranks}{plan.attempt}/"))).kvs
    ranks = {RankValue.from_json(kv.value).group_rank: kv.key.rpartition("/")[2] for kv in found}
    return "".join(ranks[rank] for rank in sorted(ranks))


def test_member_that_joins_a_rack_in_the_middle_moves_others_without_a_restart(
    etcd: str, tmp_path: pathlib.Path
) -> None:
    job = SessionJob(etcd, tmp_path)
    try:
        racks = {"a": "1", "b": "2", "c": "1", "d": "1"}
        locations = LocationsValue(locations={name: f"{rack}/{name}" for name, rack in racks.items()})
        job.client.put(job.keys.locations, locations.to_json())
        for name in "abc":
            job.start(name)
        job.wait_for_world(3, *"abc", timeout=START)
        assert order(job) == "acb"
        job.start("d")
        job.wait_for_world(4, *"abcd", timeout=START)
        assert order(job) == "acdb"
        eventually(lambda: job.plan is not None and job.plan.in_place, 60, what="a plan in place")
        assert [len(job.pids(name)) for name in "abcd"] == [1] * 4
        job.hurry()
        assert [agent.exit_code() for agent in job.agents] == [0] * 4, job.logs
    finally:
        job.close()
