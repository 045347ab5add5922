"""The files of one sharded checkpoint, by DCP's planner and writer: all ranks plan them together, then each writes its
own without the others. So a thread can do it while the ranks train."""

from __future__ import annotations

import dataclasses
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from elasticjob_runtime.training.checkpoint import files
from elasticjob_runtime.training.checkpoint.directory import cannot_write
from elasticjob_runtime.training.checkpoint.manifest import digest_of
from elasticjob_runtime.training.memory.kept import KeptCopy
from elasticjob_runtime.training.sharded import ranks
from elasticjob_runtime.training.sharded.contents import Contents

FileDigests = dict[str, tuple[int, str]]
"""Name -> size and SHA-256."""


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What one rank has written."""

    results: list[WriteResult]
    files: FileDigests


class Writing:
    """One checkpoint on its way to a new folder."""

    def __init__(self, folder: pathlib.Path, contents: Contents, *, copy: bool) -> None:
        """Collective. copy: of the state, which may change before `write`. Raises CheckpointError on all ranks."""
        self._folder = folder
        self._rank = ranks.rank()  # the process group may end before `write`
        self._writer = dcp.FileSystemWriter(folder)
        self._planner: DefaultSavePlanner = _CopyingPlanner() if copy else DefaultSavePlanner()
        plans = ranks.from_all(lambda: self._plan_locally(contents))
        self.world_size = len(plans)
        self._plan: SavePlan
        ranks.from_all(lambda: self._plan_together(plans))

    def _plan_locally(self, contents: Contents) -> SavePlan:
        is_first = self._rank == 0
        self._planner.set_up_planner(contents.collect(), is_coordinator=is_first)
        self._writer.set_up_storage_writer(is_first)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def _plan_together(self, plans: list[SavePlan]) -> None:
        """All ranks do this with the same result."""
        planned, self._metadata = self._planner.create_global_plan(plans)
        self._plan = self._planner.finish_plan(self._writer.prepare_global_plan(planned)[self._rank])

    def write(self) -> Written:
        """This rank's part. When it returns, it survives a power loss. Raises CheckpointError."""
        try:
            done = self._writer.write_data(self._plan, self._planner)
            done.wait()
            mine = [file for file in self._folder.iterdir() if file.name.startswith(f"__{self._rank}_")]
            files.sync_directory(self._folder)
            return Written(done.value(), {file.name: digest_of(file) for file in mine})
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeErrors
            raise cannot_write(self._folder, error) from error

    def finish(self, written: Sequence[Written]) -> FileDigests:
        """Rank 0 only, with what all ranks have written; returns all files. Raises CheckpointError."""
        try:
            self._writer.finish(self._metadata, [result.results for result in written])
            files.sync_directory(self._folder)
            metadata = self._folder / ".metadata"
            found = {metadata.name: digest_of(metadata)}
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return found | {name: about for result in written for name, about in result.files.items()}


class _CopyingPlanner(DefaultSavePlanner):
    """Copies what this rank will write."""

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        plan, resolve = super().finish_plan(new_plan), super().resolve_data
        data = [resolve(item) for item in plan.items]
        values = [value.getvalue() if isinstance(value, io.BytesIO) else value for value in data]
        copies = _copy.of(values) or [_new_copy(value) for value in values]
        self._data: dict[MetadataIndex, Any] = {
            item.index: io.BytesIO(copy_) if isinstance(copy_, bytes) else copy_
            for item, copy_ in zip(plan.items, copies, strict=True)
        }
        self.state_dict = {}  # not kept alive
        return plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        found: torch.Tensor | io.BytesIO = self._data[write_item.index]
        return found


_copy = KeptCopy()
"""Of this process: it has one save in the background at a time."""


def _new_copy(value: torch.Tensor | bytes) -> torch.Tensor | bytes:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
