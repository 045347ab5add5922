"""Lets torch.distributed.checkpoint load from snapshots in memory, whichever rank has each.

A snapshot of one rank has the plan by which DCP would have written it. From the plans of all shards, DCP's planner
makes the metadata of the whole, and from that the plan of what each rank must read: so resharding is DCP's code.
"""

from __future__ import annotations

import collections
import datetime
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, StorageReader
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan

from elasticjob_runtime.training.memory.structure import as_bytes
from elasticjob_runtime.training.sharded import ranks

BASE_TIMEOUT = 60.0
"""s for a rank that is behind, at most."""
SLOWEST = 10 << 20
"""Bytes per second. A rank whose machine has vanished is noticed by the agents, and without agents by this."""

Place = tuple[int, int]
"""A shard, and the position of an item in it."""
Request = tuple[Place, tuple[int, ...], tuple[int, ...]]
"""An item; offsets and lengths of the part of it that is wanted."""


def plan_of(state: Mapping[str, Any]) -> tuple[SavePlan, list[torch.Tensor | bytes]]:
    """What this rank would write of `state`, and the data of each item: tensors that are not copied."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=ranks.rank() == 0)
    plan = planner.create_local_plan()
    data = [planner.resolve_data(item) for item in plan.items]
    return plan, [value.getvalue() if isinstance(value, io.BytesIO) else value for value in data]


class MemoryReader(StorageReader):
    def __init__(
        self,
        plans: Sequence[SavePlan],
        sources: Mapping[int, int],
        here: Mapping[int, Sequence[torch.Tensor | bytes]],
    ) -> None:
        """plans: of all shards; sources: shard -> the rank that reads it; here: shard -> data, of those that this rank
        reads."""
        planned, metadata = DefaultSavePlanner().create_global_plan(list(plans))
        places = [
            {item.index: position for position, item in enumerate(plan.items)} for plan in plans
        ]  # before what several ranks have is left to one of them
        metadata.storage_data = {
            item.index: (shard, places[shard][item.index]) for shard, plan in enumerate(planned) for item in plan.items
        }
        self._metadata = metadata
        self._places: dict[MetadataIndex, Place] = metadata.storage_data
        self._sources = sources
        self._here = here

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 given by name
        return False

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Collective."""
        tensors, values = self._exchange(plan)
        for item in plan.items:
            place = self._places[item.storage_index]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(values[place]))
                continue
            target = planner.resolve_tensor(item).detach()
            target.copy_(tensors[_request(place, item)])
            planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _exchange(self, plan: LoadPlan) -> tuple[dict[Request, torch.Tensor], dict[Place, bytes]]:
        """What this rank reads: from its own snapshots, and from the ranks that have the others."""
        wanted: dict[int, list[Request]] = collections.defaultdict(list)
        types: dict[Request, torch.dtype] = {}
        for item in plan.items:
            request = _request(self._places[item.storage_index], item)
            wanted[self._sources[request[0][0]]].append(request)
            if item.type is not LoadItemType.BYTE_IO:
                about: Any = self._metadata.state_dict_metadata[item.storage_index.fqn]
                types[request] = about.properties.dtype
        tensors = {request: self._part(request) for request in wanted.pop(ranks.rank(), []) if request in types}
        of_all = ranks.gather(dict(wanted))
        values = self._share_values()
        asked = {rank: requests[ranks.rank()] for rank, requests in enumerate(of_all) if ranks.rank() in requests}
        if any(of_all):
            tensors |= self._transfer(wanted, asked, types)
        return tensors, values

    def _share_values(self) -> dict[Place, bytes]:
        """What is not a tensor, of all shards: it is small."""
        mine = {
            (shard, position): each
            for shard, data in self._here.items()
            for position, each in enumerate(data)
            if isinstance(each, bytes) and (shard, position) in set(self._places.values())
        }
        return {place: value for of_rank in ranks.gather(mine) for place, value in of_rank.items()}

    def _transfer(
        self,
        wanted: Mapping[int, Sequence[Request]],
        asked: Mapping[int, Sequence[Request]],
        types: Mapping[Request, torch.dtype],
    ) -> dict[Request, torch.Tensor]:
        """One message from each rank to each other rank that asks it."""
        group: Any = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        sent: dict[int, torch.Tensor] = {}
        received: dict[int, torch.Tensor] = {}

        def prepare() -> None:
            for rank, requests in asked.items():
                parts = [
                    as_bytes(self._part(request).contiguous())
                    for request in requests
                    if isinstance(self._item(request[0]), torch.Tensor)
                ]
                sent[rank] = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
            for rank, requests in wanted.items():
                size = sum(math.prod(request[2]) * types[request].itemsize for request in requests if request in types)
                received[rank] = torch.empty(size, dtype=torch.uint8)

        ranks.from_all(prepare)  # so that no rank waits for the message of one that has failed
        works = [dist.isend(tensor, rank, group=group) for rank, tensor in sent.items() if tensor.numel()]
        works += [dist.irecv(tensor, rank, group=group) for rank, tensor in received.items() if tensor.numel()]
        largest = max((tensor.numel() for tensor in (*sent.values(), *received.values())), default=0)
        for work in works:
            if work is not None:
                work.wait(datetime.timedelta(seconds=BASE_TIMEOUT + largest / SLOWEST))
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
        found = {}
        for rank, message in received.items():
            offset = 0
            for request in (one for one in wanted[rank] if one in types):
                size = math.prod(request[2]) * types[request].itemsize
                # A copy, because a view of another type must begin at a multiple of its size.
                found[request] = message[offset : offset + size].clone().view(types[request]).view(request[2])
                offset += size
        return found

    def _item(self, place: Place) -> torch.Tensor | bytes:
        shard, position = place
        return self._here[shard][position]

    def _part(self, request: Request) -> torch.Tensor:
        place, offsets, lengths = request
        tensor = self._item(place)
        assert isinstance(tensor, torch.Tensor)
        for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
            tensor = tensor.narrow(dimension, offset, length)
        return tensor


def _request(place: Place, item: ReadItem) -> Request:
    return place, tuple(item.storage_offsets), tuple(item.lengths)
