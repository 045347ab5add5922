"""What an agent that is asked for nothing special imports."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("asyncio", "email", "http", "multiprocessing", "ssl", "urllib.request")


def test_every_agent_pays_for_what_few_need() -> None:
    """Each of these costs megabytes and milliseconds, in every pod, at every start."""
    code = f"import sys, elasticjob_runtime.cli.main; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
