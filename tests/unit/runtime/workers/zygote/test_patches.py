"""Changes to torch for problems that an unchanged script would otherwise have, with the real torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GROUPS = """
import json, os, sys, torch, torch.distributed as dist
from elasticjob_runtime.workers.zygote import patches
patches.FREES_GROUPS_UNLOCKED = tuple(map(int, sys.argv[1].split(".")))
patches.keep_group_threads({"TORCHELASTIC_USE_AGENT_STORE": sys.argv[2]})
counts = []
for _ in range(3):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    counts.append(len(os.listdir("/proc/self/task")))
print(json.dumps(counts))
"""


def threads_after_each_group(unlocked_since: str, agent_store: str = "True") -> list[int]:
    run = subprocess.run(
        [sys.executable, "-c", GROUPS, unlocked_since, agent_store],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    counts: list[int] = json.loads(run.stdout)
    return counts


@pytest.mark.torch
def test_the_end_of_a_group_does_not_wait_for_its_threads_with_a_torch_that_could_hang_in_it() -> None:
    """Only those of the last group stay."""
    usual, kept = threads_after_each_group("2.8"), threads_after_each_group("99.0")
    assert len(set(usual)) == len(set(kept)) == 1
    assert kept[0] > usual[0]


@pytest.mark.torch
def test_a_group_whose_store_rank_0_hosts_ends_as_usual() -> None:
    """The next one needs its port."""
    assert threads_after_each_group("99.0", agent_store="False") == threads_after_each_group("2.8")
