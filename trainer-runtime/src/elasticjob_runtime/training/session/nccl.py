"""NCCL for sessions, in DDP or between replicas. Off by default (`Env.IN_PLACE_NCCL`), because it has run on one GPU
only, which all processes shared, with torch 2.11.

It follows the source of torch 2.11 and 2.15 (nccl2); docs/design/0022-in-place.md says what it relies on.
`make check-gpu` tests it where there is a GPU.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.backend import OPERATION_TIMEOUT, Begin, GlooGroup, OneProcess
from elasticjob_runtime.training.session.interruption import OVER, Interruption, OverError
from elasticjob_runtime.training.session.world import SessionError, World

logger = logging.getLogger("elasticjob_runtime.training")

CONNECT_TIMEOUT = 60.0
"""s after which NCCL gives up connecting. A newer plan leaves it to itself before that."""

WATCHDOG = {
    # torch's watchdog leaves errors to others. Otherwise it would end the process (agents set 1, as torchrun does), or
    # abort the communicator, whose kernels then leave garbage before the session knows.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Before 2.15, torch records what all processes do when a peer is lost, and an abort waits a minute for that.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""The environment in which this process makes groups: torch reads it for each one."""

CAPTURED = (
    "a CUDA graph is captured in a session's step, and would be replayed without what makes the step safe: capture "
    "neither a backward pass that reduces gradients nor the optimizer"
)


class Nccl(OneProcess):
    """The models of this process are on `device`. Groups have gloo for tensors on the CPU, which also sends the state
    to joiners, and NCCL for those on GPUs."""

    completes_early = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._calls = threading.Lock()
        """Held by a thread that calls NCCL: what it uses must not be freed meanwhile."""
        self._abort: threading.Thread | None = None
        os.environ.update(WATCHDOG)

    def connect(self, store: PrefixStore, world: World) -> NcclGroup:
        if self._abort is not None:
            self._abort.join()
        torch.cuda.synchronize(self._device)  # aborted kernels and those behind them end before the state is sent
        gloo = GlooGroup(PrefixStore("gloo", store), world)
        try:
            nccl = torch_private.connect_nccl(
                PrefixStore("nccl", store), world.rank, world.size, self._device, CONNECT_TIMEOUT
            )
        except BaseException:
            gloo.forget()
            raise
        return NcclGroup(self, gloo, nccl, world, self._device)

    def communicate(self, begin: Begin, interruption: Interruption) -> torch.futures.Future[Any]:
        _refuse_capture()
        with self._calls:
            if interruption.over:
                raise OverError(OVER)
            return begin()

    def wait_for_collectives(self, interruption: Interruption, newest: int, *, used: bool = True) -> None:  # noqa: ARG002
        _refuse_capture()
        # Waiting for a collective makes the current stream wait for it: DDP and FSDP do so at the end of backward().
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        interruption.wait_until(event.query)

    def abort(self, nccl: torch_private.Nccl) -> None:
        """In a thread of its own: it takes as long as the kernels that are queued behind those of NCCL."""
        self._abort = threading.Thread(target=self._abort_now, args=(nccl,), name="elasticjob-abort", daemon=True)
        self._abort.start()

    def _abort_now(self, nccl: torch_private.Nccl) -> None:
        with self._calls:
            try:
                nccl.abort()
            except RuntimeError as error:
                logger.warning("NCCL could not abort a communicator: %s", error)


class NcclGroup:
    def __init__(
        self, backend: Nccl, gloo: GlooGroup, nccl: torch_private.Nccl, world: World, device: torch.device
    ) -> None:
        self._backend, self._world, self._device = backend, world, device
        self.gloo, self.nccl = gloo.gloo, nccl
        self._cut = gloo.interrupt
        self.is_silent = gloo.is_silent  # the state is sent over gloo
        self.forget = gloo.forget
        self.addresses, self.keep, self.sender = gloo.addresses, gloo.keep, gloo.sender

    def install(self, store: PrefixStore) -> Any | None:
        rank, size = self._world.rank, self._world.size
        return torch_private.replace_group(
            self.gloo, store, rank, size, OPERATION_TIMEOUT, nccl=self.nccl, device=self._device
        )

    def interrupt(self) -> None:
        self._cut()
        self._backend.abort(self.nccl)


def _refuse_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise SessionError(CAPTURED)
