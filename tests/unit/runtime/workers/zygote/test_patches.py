"""Changes to torch for problems that an unchanged script would otherwise have, with the real torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GROUPS = """
import json, os, sys, torch, torch.distributed as dist
from elasticjob_runtime.workers.zygote import patches

def threads_after_each_group(unlocked_since, agent_store):
    patches.FREES_GROUPS_UNLOCKED = tuple(unlocked_since)
    patches.keep_group_threads({"TORCHELASTIC_USE_AGENT_STORE": agent_store})
    for _ in range(3):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        yield len(os.listdir("/proc/self/task"))

for case in json.loads(sys.argv[1]):
    if not os.fork():
        print(json.dumps(list(threads_after_each_group(*case))), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.torch
def test_the_end_of_a_group_does_not_wait_for_its_threads_with_a_torch_that_could_hang_in_it() -> None:
    """Only those of the last group stay, and none if rank 0 hosts the store: the next one needs its port."""
    cases = [((2, 8), "True"), ((99, 0), "True"), ((99, 0), "False")]
    run = subprocess.run(
        [sys.executable, "-c", GROUPS, json.dumps(cases)], capture_output=True, text=True, timeout=120, check=True
    )
    usual, kept, of_rank_0 = (json.loads(line) for line in run.stdout.splitlines())
    assert len(set(usual)) == len(set(kept)) == 1
    assert kept[0] > usual[0]
    assert of_rank_0 == usual
