"""What a session does between replicas, whose ranks train one sharded model in a world of their own.

For each rank index there is one *replicate group*, with the ranks of that index in all replicas. No DeviceMesh and no
process group of torch knows it, so it can be replaced between two steps, while the replica's own world lasts.

What keeps a replica from hanging: a reduction that fails ends this index's connections, so that its peers fail, and
returns. So every rank takes part in all collectives of the step inside its replica. What keeps it consistent: a vote
before the optimizer changes anything, in which all ranks of a replica get the same answer. See
docs/design/0031-replicas.md.
"""

from __future__ import annotations

import functools
import itertools
import logging
import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from elasticjob_runtime.training.session import torch_private, torch_sharding
from elasticjob_runtime.training.session.backend import OPERATION_TIMEOUT, Begin, Gloo, GlooGroup
from elasticjob_runtime.training.session.engine import Engine, first_line
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.nccl import Nccl, NcclGroup
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.world import SessionError, World
from elasticjob_runtime.training.sharded import ranks

T = TypeVar("T")

logger = logging.getLogger("elasticjob_runtime.training")

BUCKET = 1 << 22
"""Elements that `reduce_gradients` reduces at a time."""

UNREDUCED = (
    "with replicas, call session.reduce_gradients() after the last backward() of a step, and before clipping: the "
    "gradients of {} parameters are those of one replica only"
)


class Replicas:
    """The backend of a session whose process belongs to a replica."""

    votes = True

    def __init__(self, parts: Parts, between: Gloo | Nccl) -> None:
        """between: what connects the ranks of one index."""
        self._between = between
        self.completes_early = between.completes_early
        self._engine: Engine | None = None
        self._group: torch_private.Gloo | None = None
        self._nccl: torch_private.Nccl | None = None
        """For gradients, if they are on a GPU."""
        self.place, self.count = 0, 1
        """Of this replica among those of this world, and how many there are."""
        self._left_for = 0
        """The order of the newest plan of which a vote has told."""
        self._lost = ""
        """Why the step in progress cannot be committed; empty: it can, as far as this rank knows."""
        self._voted = self._reduced = False
        self._reductions = 0
        """Digest of which FSDP modules have reduced gradients in this step, in order, and of their sizes."""
        hooked: set[int] = set()
        modules = [fsdp for module in parts.modules for fsdp in torch_sharding.fsdp_modules(module)]
        for number, fsdp in enumerate(modules):
            if torch_sharding.hook_reductions(fsdp, functools.partial(self._reduce_for_fsdp, number)):
                hooked.update(id(parameter) for parameter in torch_sharding.fsdp_parameters(fsdp))
        self._others = [
            parameter
            for parameter in dict.fromkeys(found for module in parts.modules for found in module.parameters())
            if id(parameter) not in hooked
        ]
        """Parameters whose gradients no hook reduces."""
        for parameter in self._others:
            if parameter.is_leaf and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._accumulated)

    def use(self, engine: Engine) -> None:
        """The engine that has this backend."""
        self._engine = engine

    def connect(self, store: PrefixStore, world: World) -> ReplicateGroup:
        return ReplicateGroup(self._between.connect(store, world), world, self)

    def communicate(self, begin: Begin, interruption: Interruption) -> torch.futures.Future[Any]:
        return self._between.communicate(begin, interruption)

    def enter(self, group: GlooGroup | NcclGroup, world: World) -> torch_private.Gloo | None:
        """Uses `group`, that of `world`, from now on. Returns the one before."""
        old, self._group, self._nccl, self._lost = self._group, group.gloo, group.nccl, ""
        self.place, self.count = world.rank, world.size
        return old

    # -- the ranks of this replica together

    def all_of_replica(self, ok: bool) -> bool:
        return bool(ranks.lowest(ok)[0])

    def range_in_replica(self, number: int) -> tuple[int, int]:
        lowest, highest = ranks.lowest(number, -number)
        return lowest, -highest

    def is_due(self, newest: World | None, world: World | None) -> bool:  # noqa: ARG002
        # Not what this rank alone has heard of: the others of its replica may be in the next step already.
        return world is not None and self._left_for > world.order

    def interrupts(self, error: BaseException) -> bool:
        # Another error of communication is one inside this replica, which has lost a rank, and is over.
        return isinstance(error, OverError)

    # -- a step

    def begin_step(self) -> None:
        self._voted = self._reduced = False
        self._reductions = 0

    def wait_for_collectives(self, interruption: Interruption, newest: int, *, used: bool = True) -> None:
        """The vote: commits the step in all replicas or in none, nearly always; in all ranks of this replica or in
        none, always. It also carries the newest plan that any rank knows, so that all replicas leave for it after the
        same step.

        Raises OverError if the step is lost, and SessionError if its gradients are not the mean over the replicas.
        """
        if self._voted:
            raise SessionError("with replicas, call optimizer.step() once in each session.step(), without a closure")
        self._voted = True
        unreduced = 0 if self._reduced else sum(parameter.grad is not None for parameter in self._others)
        self._finish_reductions(interruption)
        lowest, highest, most = self._vote(interruption, newest, 2 * self._reductions + used, unreduced)
        if most:  # of some rank, and the others would wait for it in vain
            raise SessionError(UNREDUCED.format(most))
        if highest == lowest + 1 and not lowest % 2:
            raise SessionError(
                "an optimizer steps in some replicas only: decide whether it does by what is the same in all of them, "
                "and not by the loss of this replica's share"
            )
        if lowest != highest:
            raise SessionError(
                "the replicas have reduced different gradients in this step: every replica must use the same parts of "
                "the model in each step"
            )

    def _finish_reductions(self, interruption: Interruption) -> None:
        """On a GPU, they may only be queued until now, and whether one has failed shows only here."""
        if self.count > 1 and not self._lost:
            try:
                self._between.wait_for_collectives(interruption, 0)
            except OverError as error:
                self._lost = first_line(error)

    def meet(self, interruption: Interruption, newest: int) -> None:
        self._vote(interruption, newest, 0, 0)

    def _vote(self, interruption: Interruption, newest: int, digest: int, unreduced: int) -> tuple[int, int, int]:
        """The lowest and the highest of all digests, and the highest of the last numbers. Raises OverError if a rank of
        a replica has lost a peer."""
        committed, (latest, lowest, highest, most) = self._lowest([-newest, digest, -digest, -unreduced])
        self._left_for = max(self._left_for, -latest)
        self._end_unless(committed, interruption)
        return lowest, -highest, -most

    def _lowest(self, numbers: Sequence[int]) -> tuple[bool, list[int]]:
        """Of each of the numbers, the lowest of all ranks of all replicas; False: some are missing. All ranks of this
        replica get the same answer."""
        ballot = torch.tensor(numbers, dtype=torch.int64)
        if not self._all_reduce(ballot, lowest=True):
            ballot[:] = 0
        complete, *lowest = ranks.lowest(not self._lost, *ballot.tolist())
        return bool(complete), lowest

    def _end_unless(self, complete: bool, interruption: Interruption) -> None:
        """Raises OverError, on all ranks of this replica."""
        if not complete:
            # Of all indexes: a replica that has the answer waits in the next step otherwise, where nothing has failed.
            interruption.end()
            raise OverError(self._lost or "another rank of this replica has lost a peer")

    # -- between two steps. Raises OverError on all ranks of this replica if the world ends.

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest number of all ranks of all replicas at each index."""
        assert self._engine is not None
        complete, lowest = self._lowest([-number for number in numbers])
        self._end_unless(complete, self._engine.interruption)
        return [-number for number in lowest]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks of all replicas, in this order: rank 0 of each replica, rank 1 of each ..."""
        assert self._engine is not None
        data = bytearray(pickle.dumps(value))
        (longest,) = self.largest([len(data)])
        table = torch.zeros(self.count, longest, dtype=torch.uint8)
        table[self.place, : len(data)] = torch.frombuffer(data, dtype=torch.uint8)
        self._end_unless(self.all_of_replica(self._all_reduce(table)), self._engine.interruption)
        rows = ranks.gather([row.numpy().tobytes() for row in table])
        return [pickle.loads(row) for of_index in rows for row in of_index]  # noqa: S301 of our own processes

    # -- gradients

    def reduce_gradients(self) -> None:
        """Makes gradients that FSDP does not reduce the mean over the replicas."""
        self._reduced = True
        if self.count == 1 or not self._others:
            return
        used = torch.tensor([parameter.grad is not None for parameter in self._others], dtype=torch.int32)
        if not self._all_reduce(used):
            return
        trained = [parameter for parameter, count in zip(self._others, used.tolist(), strict=True) if count]
        for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
            for bucket in _buckets([parameter for parameter in trained if parameter.dtype == dtype]):
                self._reduce_bucket(bucket)

    def _reduce_bucket(self, bucket: Sequence[torch.Tensor]) -> None:
        """Of parameters that some replica has used in this step."""
        grads = [None if one.grad is None else torch_sharding.local(one.grad) for one in bucket]
        locals_ = [torch_sharding.local(parameter) for parameter in bucket]
        parts = [torch.zeros_like(part) if grad is None else grad for part, grad in zip(locals_, grads, strict=True)]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self._reduce(flat)
        means = flat.split([part.numel() for part in parts])
        for parameter, grad, mean in zip(bucket, grads, means, strict=True):
            if grad is not None:
                grad.copy_(mean.view_as(grad))
            else:
                found = mean.view_as(torch_sharding.local(parameter)).clone()
                is_sharded = torch_sharding.is_dtensor(parameter)
                parameter.grad = torch_sharding.as_dtensor(found, parameter) if is_sharded else found

    def _accumulated(self, _parameter: torch.Tensor) -> None:
        """After a backward pass: what was reduced before it is not the mean any more."""
        self._reduced = False

    def _reduce_for_fsdp(self, number: int, gradients: torch.Tensor) -> None:
        """number: of the FSDP module, whose reduce-scatter has left `gradients`."""
        self._reductions = hash((self._reductions, number, gradients.numel())) % (1 << 31)
        if gradients.is_cuda:
            # They are another stream's memory. If FSDP adds them to earlier ones, or casts them, it gives that memory
            # back before this stream, on which it does so, has read it.
            gradients.record_stream(torch.cuda.current_stream(gradients.device))
        self._reduce(gradients)

    def _reduce(self, gradients: torch.Tensor) -> None:
        """The mean over the replicas. Never raises: the other ranks of this replica need this one in what follows."""
        if self._all_reduce(gradients, nccl=self._nccl):
            gradients.div_(self.count)

    def _all_reduce(
        self, tensor: torch.Tensor, *, lowest: bool = False, nccl: torch_private.Nccl | None = None
    ) -> bool:
        """Over gloo, or over `nccl`, for which the current stream then waits. False: `tensor` is of no use, and neither
        is this step. Raises nothing but SessionError, for a CUDA graph."""
        if self.count > 1 and not self._lost:
            assert self._engine is not None
            try:
                if nccl is None:
                    self._engine.wait(torch_private.all_reduce(self._group, tensor, lowest=lowest))
                else:
                    self._engine.communicate(lambda: torch_private.all_reduce(nccl, tensor).get_future()).wait()
            except SessionError:
                raise
            except RuntimeError as error:
                self._lost = first_line(error)
                self._engine.interruption.end()  # the others' waits end with our connections
        return not self._lost


class ReplicateGroup:
    """A group that no process group of torch knows."""

    def __init__(self, group: GlooGroup | NcclGroup, world: World, replicas: Replicas) -> None:
        self._group, self._world, self._replicas = group, world, replicas
        self.addresses, self.keep, self.sender = group.addresses, group.keep, group.sender
        self.interrupt, self.is_silent, self.forget = group.interrupt, group.is_silent, group.forget

    def install(self, _store: PrefixStore) -> Any | None:
        for group in (self._group.gloo, self._group.nccl):
            if group is not None:
                torch_private.set_timeout(group, OPERATION_TIMEOUT)
        return self._replicas.enter(self._group, self._world)


def _buckets(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    ends = itertools.accumulate(torch_sharding.local(parameter).numel() for parameter in parameters)
    of_bucket = zip(parameters, ends, strict=True)
    return [
        [parameter for parameter, _ in same]
        for _, same in itertools.groupby(of_bucket, key=lambda pair: pair[1] // BUCKET)
    ]
