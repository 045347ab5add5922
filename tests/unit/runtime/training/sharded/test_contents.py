"""What sharded state needs of torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from elasticjob_runtime.training.sharded.contents import missing_support

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("version", "device", "expected"),
    [
        ("2.5.1", "cuda", "need torch 2.6 or newer, and this is torch 2.5.1"),
        ("2.6.0+cpu", "cpu", "on CPUs need torch 2.7 or newer, and this is torch 2.6.0+cpu"),
        ("2.6.0", "cuda", ""),
        ("2.7.0", "cpu", ""),
        ("2.12.1", "cpu", ""),
        ("2.16.0a0+git123", "cpu", ""),
        ("3.0.0", "cpu", ""),
    ],
)
def test_a_torch_without_fsdp2_is_refused_in_one_sentence(version: str, device: str, expected: str) -> None:
    problem = missing_support(version, {device})
    assert problem.endswith(expected)
    assert bool(problem) == bool(expected)
