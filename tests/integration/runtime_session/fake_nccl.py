"""A second gloo in NCCL's place, for replicas of a script on a machine without a GPU.

Like NCCL, it hears of no lost peer: a reduction waits for it until it is aborted, and is then done like any other, but
has left garbage. What it cannot show is what depends on streams: the training's thread waits for each reduction.
"""

from __future__ import annotations

import datetime
import threading
from types import SimpleNamespace
from typing import Any

import torch
from elasticjob_runtime.training.session import refusals, torch_private
from elasticjob_runtime.training.session.nccl import Nccl
from torch.distributed import PrefixStore  # type: ignore[attr-defined]


def install() -> None:
    """In this process, replicas reduce gradients over it."""
    cuda: Any = torch.cuda
    private: Any = torch_private
    module: Any = refusals
    cuda.synchronize = cuda.current_stream = lambda _: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.Event = lambda: SimpleNamespace(record=lambda _: None, query=lambda: True)
    private.connect_nccl = _connect
    module._backend_for = lambda _: Nccl(torch.device("cuda", 0))


def _connect(store: PrefixStore, rank: int, size: int, _device: torch.device, timeout: float) -> Communicator:
    return Communicator(torch_private.connect(store, rank, size, timeout))


class Communicator:
    def __init__(self, gloo: Any) -> None:
        self._gloo = gloo
        self._lock = threading.Lock()
        self._pending: dict[torch.futures.Future[Any], torch.Tensor] = {}

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._gloo.set_timeout(timeout)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        (tensor,) = tensors
        mine: torch.futures.Future[Any] = torch.futures.Future()
        found = tensor.clone()
        with self._lock:
            self._pending[mine] = tensor
        begun = self._gloo.allreduce([found], options).get_future()
        begun.add_done_callback(lambda done: self._finish(mine, done, found))
        return SimpleNamespace(get_future=lambda: mine)

    def _finish(self, mine: torch.futures.Future[Any], done: torch.futures.Future[Any], found: torch.Tensor) -> None:
        try:
            done.value()
        except RuntimeError:
            return  # a peer is lost
        with self._lock:
            tensor = self._pending.pop(mine, None)
            if tensor is None:
                return  # aborted
            tensor.copy_(found)
        mine.set_result([tensor])

    def abort(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            for tensor in pending.values():
                tensor.fill_(float("nan"))
        print(f"aborted with {len(pending)} reductions", flush=True)
        for mine, tensor in pending.items():
            mine.set_result([tensor])
