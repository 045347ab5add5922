"""The faults as data, schedules from seeds."""

from __future__ import annotations

import re

import pytest

from hack.chaos.faults import FAULTS
from hack.chaos.storm import AT_RANDOM, draw, storm
from hack.images.recipe import ROOT


def test_fault_names_are_unique_and_few_run_in_the_smoke_test() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(AT_RANDOM) <= set(names)
    assert 2 <= sum(fault.smoke for fault in FAULTS) <= 5
    assert len({fault.layout for fault in FAULTS if fault.smoke}) == 1


def test_the_docs_list_exactly_the_faults_that_exist() -> None:
    text = (ROOT / "docs" / "bench" / "chaos.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| `([a-z0-9-]+)` \|", text.partition("## Faults")[2].partition("## Results")[0], re.MULTILINE
    )
    assert listed == [fault.name for fault in FAULTS]


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_always_draws_the_same_schedule_and_no_fault_overlaps_itself(seed: int) -> None:
    schedule = draw(seed, 120, AT_RANDOM)
    assert schedule == draw(seed, 120, AT_RANDOM)
    assert schedule
    assert [item.at for item in schedule] == sorted(item.at for item in schedule)
    for index, item in enumerate(schedule):
        assert all(later.at > item.at + item.lasts for later in schedule[index + 1 :] if later.fault == item.fault)


def test_a_storm_may_cost_at_most_the_restarts_of_its_faults() -> None:
    least, most = storm(1, 120).expect.restarts
    assert least == 0
    assert most > 0
