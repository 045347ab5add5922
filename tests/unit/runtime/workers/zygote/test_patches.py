"""Changes to torch for problems that an unchanged script would otherwise have, with the real torch."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from elasticjob_runtime.workers.process import Command, WorkerSpec
from elasticjob_runtime.workers.spawn import spawn

from hack.cluster.ports import free_ports

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


AGAIN = """
import os, torch.distributed as dist
from elasticjob_runtime.workers.zygote import patches

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(
    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1", TORCHELASTIC_USE_AGENT_STORE="True"
)
patches.isolate_process_groups(os.environ)
prefixes = ("", "group_1/", "group_2/")
for prefix in prefixes:
    dist.init_process_group("gloo")
    used = dist.distributed_c10d._get_default_store()
    used.set("here", "")
    used.get("here")  # the server has it
    print([known for known in prefixes if store.check([f"{known}default_pg/0//here"])].index(prefix))
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_each_further_group_has_its_prefix_in_the_store_of_the_agent() -> None:
    """The prefix is a wire format: agents of two versions may be in one job."""
    run = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "1", "2"]


SPAWNED = """
import json, os, sys, torch, torch.distributed as dist

port = int(os.environ["MASTER_PORT"])
server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=False)
prefixes, found, libuv = ("", "group_1/"), [], []
for _ in prefixes:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    store.set("here", "")
    store.get("here")  # the server has it
    found.append([known for known in prefixes if server.check([f"{known}default_pg/0//here"])])
    while not isinstance(store, dist.TCPStore):
        store = store.underlying_store
    libuv.append(store.libuvBackend)
    dist.destroy_process_group()
seen = [name for name in (*sys.modules, *sys.path, *os.environ.values()) if "exec_hooks" in name or "patches" == name]
print(json.dumps({"found": found, "libuv": libuv, "seen": seen}))
"""


@pytest.mark.torch
def test_a_spawned_client_of_the_agents_store_needs_no_libuv_and_isolates_its_groups(tmp_path: pathlib.Path) -> None:
    """As a forked one: both may be in one group. Not even with the count of its steps."""
    (port,) = free_ports(1)
    script, output, results = tmp_path / "script.py", tmp_path / "output", list[int | OSError]()
    script.write_text(SPAWNED)
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "USE_LIBUV": "0",
        "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"),
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    with output.open("wb") as file:
        command = Command(program=[sys.executable], arguments=[str(script)])
        spec = WorkerSpec(
            command=command, environment=environment, local_rank=0, rank=0, error_file=tmp_path / "error.json",
            stdout=file.fileno(), stderr=file.fileno(),
        )  # fmt: skip
        spawn(spec, results.append)
    (pid,) = results
    assert isinstance(pid, int)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output.read_text()
    reported = json.loads(output.read_text().splitlines()[-1])
    assert reported == {"found": [[""], ["", "group_1/"]], "libuv": [False, False], "seen": []}


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
