"""What all unit tests share: reproducible property tests, and a logger that no test changes for the next one.

Property tests use the same examples on every run and have no time limit, so that a loaded machine changes nothing.
`HYPOTHESIS_PROFILE=search` draws other examples each time; turn what it finds into a test.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def _restore_runtime_logger() -> Iterator[None]:
    """The agent's command line and the torchrun plug-in configure this logger for their whole process."""
    logger = logging.getLogger("elasticjob_runtime")
    level, propagate, handlers = logger.level, logger.propagate, [*logger.handlers]
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers
