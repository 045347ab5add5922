"""What the session uses of torch beyond its public interface still exists."""

from __future__ import annotations

import contextlib
import datetime
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training.session import torch_private, torch_reducer
from elasticjob_runtime.training.session.backend import OPERATION_TIMEOUT
from torch.distributed import HashStore, PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from hack.support import eventually


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


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ""),
        ({"TORCH_NCCL_BLOCKING_WAIT": "0"}, ""),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, "TORCH_NCCL_BLOCKING_WAIT"),
        ({"TORCH_DIST_USE_NCCL2": "0"}, ""),
    ],
)
def test_an_nccl_that_cannot_be_interrupted_is_refused(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (expected in torch_private.missing_nccl()) if expected else torch_private.missing_nccl() == ""


def test_a_torch_whose_nccl_cannot_be_aborted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = torch_private.nccl_class()
    monkeypatch.setattr(distributed_c10d, name, object())
    assert f"has no {name}.abort" in torch_private.missing_nccl()


@pytest.mark.skipif(not hasattr(distributed_c10d, "ProcessGroupNCCL2"), reason="torch before 2.15 has one class only")
def test_sessions_use_the_class_of_nccl_that_torch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    assert torch_private.nccl_class() == "ProcessGroupNCCL2"
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "0")
    assert torch_private.nccl_class() == "ProcessGroupNCCL"


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs a torch that is built with NCCL")
def test_the_default_process_group_has_what_was_connected_for_cpu_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a GPU: a second gloo has NCCL's place, and the code under test is torch's."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    store = PrefixStore("group", HashStore())
    device = torch.device("cuda", 0)
    try:
        for world in ("first", "next"):
            first, second = (torch_private.connect(PrefixStore(f"{world}/{n}", store), 0, 1, 5.0) for n in range(2))
            store_of_world = PrefixStore(world, store)
            torch_private.replace_group(first, store_of_world, 0, 1, OPERATION_TIMEOUT, nccl=second, device=device)
            assert dist.group.WORLD is not None
            assert dist.group.WORLD._get_backend(torch.device("cpu")) is first
            assert dist.group.WORLD._get_backend(device) is second
            assert dist.get_backend_config() == "cpu:gloo,cuda:nccl"
            options = getattr(first, "options", None)  # older versions of torch do not show them
            assert options is None or options._timeout == datetime.timedelta(minutes=30), "as the docs say"
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_torch_that_behaves_otherwise_than_its_names_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = torch_private.groups()
    assert torch_private.swap_problem() == ""
    assert torch_private.groups() == groups
    monkeypatch.setattr(torch_private, "_swapped", lambda _: contextlib.nullcontext())  # torch looks elsewhere
    assert "connects its groups itself" in torch_private.swap_problem()
    monkeypatch.setattr(dist, "new_group", lambda _ranks: None)
    assert "does not take a group that is connected already: TypeError" in torch_private.swap_problem()


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


@pytest.mark.usefixtures("group")
def test_a_model_exchanges_its_buffers_in_the_first_step_of_a_world_whatever_interrupted_the_last_one() -> None:
    """Otherwise joiners, whose models are new, would wait for it in vain."""
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    with ddp.no_sync():
        ddp(torch.ones(1, 1))
    assert not ddp.require_forward_param_sync
    torch_reducer.rebuild(ddp)
    assert ddp.require_forward_param_sync


def test_nothing_but_torch_refers_to_a_group_so_that_no_garbage_collector_frees_it() -> None:
    """Which it does in any thread: the destructor may never return."""
    store = HashStore()
    gc.disable()
    try:
        group = torch_private.connect(PrefixStore("group", store), 0, 1, 5.0)
        torch_private.replace_group(group, PrefixStore("world", store), 0, 1, 5.0)
        dist.destroy_process_group()
        alive = weakref.ref(group)
        del group
        assert alive() is None
    finally:
        gc.enable()


def test_a_group_is_given_up_when_nothing_else_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread that may block: its destructor may never return."""
    monkeypatch.setattr(torch_private, "RELEASE_INTERVAL", 0.01)
    by: list[str] = []

    class Group:
        _device_types = ()

        def __del__(self) -> None:
            by.append(threading.current_thread().name)

    groups: list[Any] = [Group()]
    frame_of_an_error = groups[0]
    torch_private.release(groups)
    time.sleep(0.1)
    assert by == []
    del frame_of_an_error
    eventually(lambda: by == ["elasticjob-release"])


@pytest.mark.usefixtures("group")
def test_each_line_of_the_last_traceback_names_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    store = HashStore()
    for world in range(3):
        gloo = torch_private.connect(PrefixStore(f"{world}/g", store), 0, 1, 5.0)
        torch_private.replace_group(gloo, PrefixStore(str(world), store), 0, 1, 60.0)
    sys.excepthook(ValueError, ValueError("of the script"), None)
    assert capsys.readouterr().err.count("[rank0]") == 1


def test_operations_of_a_group_that_torch_does_not_know_may_take_longer_than_connecting_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = PrefixStore("group", HashStore())

    def connect(rank: int) -> Any:
        group = torch_private.connect(store, rank, 2, 2.0)
        torch_private.set_timeout(group, OPERATION_TIMEOUT)
        return group

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(connect, range(2))
        reduced = torch.ones(1)
        waits = pool.submit(torch_private.all_reduce(first, reduced).wait)
        time.sleep(3)
        torch_private.all_reduce(second, torch.ones(1)).wait()
        waits.result(timeout=20)
    assert reduced.item() == 2.0
