"""What the tests of sessions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def group() -> Iterator[None]:
    """The default process group, of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
