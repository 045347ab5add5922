"""What scripts import is there before the next worker runs: after a crash in the first minute, for a newcomer, and for
the next run.

Real agents on a real etcd; a small package in torch's place, and packages that take a while to be imported, as
lightning does.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
from typing import Any

from elasticjob_runtime.contract import Env, ImportsValue, Keys

from hack.support import eventually
from tests.integration.runtime.agents import SOURCE, Agent, Job
from tests.integration.runtime.launcher_harness import MODULES

SLOW = {
    "slow_one/__init__.py": "import time; time.sleep(1)\n",
    "slow_one/more.py": "import time; time.sleep(1)\n",
    "asks_for_its_rank/__init__.py": "import os, time; time.sleep(1)\nRANK = int(os.environ.get('LOCAL_RANK', '-1'))\n",
}

SCRIPT = """
import json, os, pathlib, sys, time
warm = [name for name in ("slow_one", "slow_one.more", "asks_for_its_rank") if name in sys.modules]
if "IDLE" not in os.environ:
    import slow_one.more, asks_for_its_rank
note = {"member": os.environ["ELASTICJOB_MEMBER_ID"], "round": int(os.environ["ELASTICJOB_ROUND"]), "warm": warm,
        "pid": os.getpid(),
        "rank": sys.modules["asks_for_its_rank"].RANK if "asks_for_its_rank" in sys.modules else None}
path = pathlib.Path(sys.argv[1], f"note-{note['round']}-{note['member']}-{note['pid']}")
path.with_suffix(".new").write_text(json.dumps(note)); path.with_suffix(".new").rename(path)
time.sleep(600)
"""

ALL = ["slow_one", "slow_one.more", "asks_for_its_rank"]


class Slow:
    """A job whose script imports slowly."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.packages = job.directory / "site-packages"
        for name, text in {**{name: MODULES[name] for name in MODULES if name.startswith("torch")}, **SLOW}.items():
            (self.packages / name).parent.mkdir(parents=True, exist_ok=True)
            (self.packages / name).write_text(text)
        (job.directory / "slow.py").write_text(SCRIPT)

    def start(self, name: str, **environment: str) -> Agent:
        script = [str(self.job.directory / "slow.py"), str(self.job.directory)]
        given = {"PYTHONPATH": f"{self.packages}{os.pathsep}{SOURCE}", **environment}
        return self.job.start(
            name, "--start-method=zygote", "--max-restarts=9", nnodes="1:3", script=script, environment=given
        )

    def trains(self, *members: str, since: int = 0) -> dict[str, dict[str, Any]]:
        """What the workers of exactly these members say, in a round after `since`."""

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

    def learned(self) -> ImportsValue:
        def published() -> ImportsValue:
            kv = self.job.client.get(self.job.keys.imports)
            assert kv is not None
            value = ImportsValue.from_json(kv.value)
            assert {*value.fit, *value.late} >= set(ALL), value
            return value

        return eventually(published, 90, what=f"what was learned is published; logs:\n{self.job.logs}")


def test_a_crash_a_join_and_a_loss_find_everything_imported(job: Job) -> None:
    slow = Slow(job)
    slow.start("a")
    first = slow.trains("a")
    assert first["a"]["warm"] == []
    learned = slow.learned()
    assert (learned.fit, learned.late, learned.reads) == (
        ["slow_one", "slow_one.more"],
        ["asks_for_its_rank"],
        ["LOCAL_RANK"],
    )
    os.kill(first["a"]["pid"], signal.SIGKILL)
    crashed = slow.trains("a", since=first["a"]["round"])
    assert (crashed["a"]["warm"], crashed["a"]["rank"]) == (ALL, 0)
    newcomer = slow.start("b")
    joined = slow.trains("a", "b", since=crashed["a"]["round"])
    assert {name: note["warm"] for name, note in joined.items()} == {"a": ALL, "b": ALL}
    newcomer.signal(signal.SIGKILL)
    lost = slow.trains("a", since=joined["a"]["round"])
    assert lost["a"]["warm"] == ALL


def test_the_next_run_knows_from_its_start_what_this_one_has_learned(job: Job, tmp_path: pathlib.Path) -> None:
    slow, folder = Slow(job), tmp_path / "checkpoints"
    agent = slow.start("a", **{Env.CHECKPOINT_DIRECTORY: str(folder)})
    slow.trains("a")
    slow.learned()
    eventually(lambda: list(folder.glob(".elasticjob-imports-*.json")), what="it is kept")
    agent.signal(signal.SIGTERM)
    agent.ends()
    for note in job.directory.glob("note-*"):
        note.unlink()
    job.run_id += "-next"
    job.keys = Keys("/elasticjob", job.run_id)
    slow.start("c", **{Env.CHECKPOINT_DIRECTORY: str(folder), "IDLE": "its own script tells nothing"})
    first = slow.trains("c")["c"]
    slow.learned()
    os.kill(first["pid"], signal.SIGKILL)
    assert slow.trains("c", since=first["round"])["c"]["warm"] == ALL
