"""What a script imports is preloaded for its next round, after an early crash too, and for a joiner.

Real agents on a real etcd, a small package in torch's place, and packages that are slow to import, as lightning is.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from elasticjob_runtime.contract import ImportsValue

from hack.support import eventually
from tests.integration.runtime import small_torch
from tests.integration.runtime.agents import SOURCE, Agent, Job

SLOW = {
    "slow_one/__init__.py": "import time; time.sleep(0.3)\n",
    "slow_one/more.py": "import time; time.sleep(0.3)\n",
    "asks_for_its_rank/__init__.py": "import os, time; time.sleep(0.3)\nRANK = int(os.environ.get('LOCAL_RANK', -1))\n",
}

SCRIPT = """
import json, os, pathlib, sys, time
warm = [name for name in ("slow_one", "slow_one.more", "asks_for_its_rank") if name in sys.modules]
import slow_one.more, asks_for_its_rank
note = {"member": os.environ["ELASTICJOB_MEMBER_ID"], "round": int(os.environ["ELASTICJOB_ROUND"]), "warm": warm,
        "pid": os.getpid(),
        "rank": asks_for_its_rank.RANK}
path = pathlib.Path(sys.argv[1], f"note-{note['round']}-{note['member']}-{note['pid']}")
path.with_suffix(".new").write_text(json.dumps(note)); path.with_suffix(".new").rename(path)
time.sleep(600)
"""

ALL = ["slow_one", "slow_one.more", "asks_for_its_rank"]


class SlowJob:
    """A job whose script has slow imports."""

    def __init__(self, job: Job) -> None:
        self.job = job
        modules = {**small_torch.FILES, **SLOW}
        self.packages = small_torch.write_modules(job.directory / "site-packages", modules)
        (job.directory / "slow.py").write_text(SCRIPT)

    def start(self, name: str) -> Agent:
        script = [str(self.job.directory / "slow.py"), str(self.job.directory)]
        given = {"PYTHONPATH": f"{self.packages}{os.pathsep}{SOURCE}"}
        return self.job.start(
            name, "--start-method=zygote", "--max-restarts=9", nnodes="1:3", script=script, environment=given
        )

    def wait_for_training(self, *members: str, since: int = 0) -> dict[str, dict[str, Any]]:
        """What the worker processes report in a round after `since` with exactly these members."""

        def found() -> dict[str, dict[str, Any]]:
            notes = [
                json.loads(path.read_text()) for path in self.job.directory.glob("note-*") if path.suffix != ".new"
            ]
            latest = max((note["round"] for note in notes), default=0)
            assert latest > since
            current = {note["member"]: note for note in notes if note["round"] == latest}
            assert sorted(current) == sorted(members)
            return current

        return eventually(found, 90, what=f"{members} train; logs:\n{self.job.logs}")

    def wait_for_learned(self) -> ImportsValue:
        def published() -> ImportsValue:
            kv = self.job.client.get(self.job.keys.imports)
            assert kv is not None
            value = ImportsValue.from_json(kv.value)
            assert {*value.fit, *value.late} >= set(ALL), value
            return value

        return eventually(published, 90, what=f"the learned imports are published; logs:\n{self.job.logs}")


def test_every_later_round_starts_with_the_scripts_imports_loaded(job: Job) -> None:
    slow = SlowJob(job)
    slow.start("a")
    first = slow.wait_for_training("a")
    assert first["a"]["warm"] == []
    learned = slow.wait_for_learned()
    assert (learned.fit, learned.late, learned.reads) == (
        ["slow_one", "slow_one.more"],
        ["asks_for_its_rank"],
        ["LOCAL_RANK"],
    )
    os.kill(first["a"]["pid"], signal.SIGKILL)
    crashed = slow.wait_for_training("a", since=first["a"]["round"])
    assert (crashed["a"]["warm"], crashed["a"]["rank"]) == (ALL, 0)
    joiner = slow.start("b")
    joined = slow.wait_for_training("a", "b", since=crashed["a"]["round"])
    assert {name: note["warm"] for name, note in joined.items()} == {"a": ALL, "b": ALL}
    joiner.signal(signal.SIGKILL)
    lost = slow.wait_for_training("a", since=joined["a"]["round"])
    assert lost["a"]["warm"] == ALL
