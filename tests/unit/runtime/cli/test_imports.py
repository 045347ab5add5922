"""What an agent imports by default."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("asyncio", "email", "http", "multiprocessing", "ssl", "urllib.request")


def test_starting_an_agent_imports_no_expensive_module() -> None:
    """Each of these costs megabytes and milliseconds in every pod at every start."""
    code = f"import sys, elasticjob_runtime.cli.main; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
