"""What this process draws its random numbers from: Python, NumPy if it is loaded, torch on the CPU and on GPUs."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def state() -> dict[str, Any]:
    """Plain data and tensors."""
    numpy = _numpy()
    return {
        "python": random.getstate(),
        "numpy": _plain(numpy.get_state()) if numpy else None,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
    }


def restore(found: Mapping[str, Any]) -> None:
    """found: see `state`, of a process with as many GPUs."""
    random.setstate(found["python"])
    if found["numpy"] is not None and (numpy := _numpy()):
        numpy.set_state(found["numpy"])
    torch.set_rng_state(found["torch"])
    if found["cuda"] is not None and len(found["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(found["cuda"])


def _numpy() -> Any:
    return sys.modules.get("numpy.random")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
