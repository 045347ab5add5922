"""Checks that linters do not cover: the project's vocabulary, and whether the docs match the code.

`python -m hack.checks` runs all of them over the tracked files and prints a line for each problem, in a few seconds and
without a network. Each check is a function from text to problems.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {
    "elasticjob": "client/src/",
    "elasticjob_api": "api/src/",
    "elasticjob_operator": "operator/src/",
    "elasticjob_runtime": "trainer-runtime/src/",
}
"""Package -> the folder with its source."""

# The docs of this checkout are about its code, whatever is installed.
sys.path[:0] = [str(ROOT / folder) for folder in SOURCES.values() if str(ROOT / folder) not in sys.path]
