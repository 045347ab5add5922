"""Property tests: the same examples on every run and no time limit, so that a loaded machine changes nothing.

`HYPOTHESIS_PROFILE=search` draws other examples each time; what it finds becomes a test of its own.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
