"""What the session uses of torch beyond its public interface still exists."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session import torch_private


def test_this_torch_has_all_that_continuing_in_place_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_GLOO_LAZY_INIT", raising=False)
    assert torch_private.missing() == ""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("torch.distributed", "_register_comm_hook"),
        ("torch.distributed.distributed_c10d", "ProcessGroupGloo"),
        ("torch.nn.parallel.DistributedDataParallel", "_ddp_init_helper"),
    ],
)
def test_a_torch_without_what_a_change_in_place_needs_is_refused(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"{owner}.{name}")
    shown = owner.removeprefix("torch.nn.parallel.")
    assert torch_private.missing() == f"torch {torch.__version__} has no {shown}.{name}, which a change in place needs"


def test_lazy_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    assert "TORCH_GLOO_LAZY_INIT" in torch_private.missing()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:24454"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_only_lost_links_interrupt_a_step(error: Exception, expected: bool) -> None:
    assert torch_private.is_link_error(error) is expected


def test_errors_that_scripts_raise_are_theirs_whatever_they_say() -> None:
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer")
    assert not torch_private.is_link_error(raised.value)
