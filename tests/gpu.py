"""Tests that need GPUs: `@pytest.mark.gpu`, or `@pytest.mark.gpu(2)` for two of them. `make check-gpu` runs them."""

from __future__ import annotations

import functools

import pytest


def skip_without_gpus(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed = marker.args[0] if marker.args else 1
    if count() < needed:
        pytest.skip(f"needs {needed} GPU{'s' if needed > 1 else ''}; there are {count()}")


@functools.cache
def count() -> int:
    import torch  # not in tests that need none

    return torch.cuda.device_count()
