"""`load_checkpoint` and `save_checkpoint`: a directory of checkpoints with torch's serializer, and the newest one
also in memory.

Each checkpoint is a file that plain `torch.load` can open too. See `elasticjob_runtime.training.checkpoint` for what
makes it safe, and `elasticjob_runtime.training.memory` for the snapshots in memory.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import pathlib
import pickle
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import background, channel, checkpoint, progress
from elasticjob_runtime.training.checkpoint import any_rank, manifest
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError
from elasticjob_runtime.training.checkpoint.order import NOTHING, Choice, Held, Kind, State
from elasticjob_runtime.training.checkpoint.reading import first_line

if TYPE_CHECKING:
    import torch

    from elasticjob_runtime.training.memory import AgentMemory
    from elasticjob_runtime.training.memory.kept import KeptCopy

logger = logging.getLogger("elasticjob_runtime.training")

PathLike = str | os.PathLike[str]

_checked_content: set[pathlib.Path] = set()
"""Directories in which this process has checked a checkpoint for objects that a safe load refuses."""


class _Process:
    saving: background.Save | None = None
    """In the background."""
    copy: KeptCopy | None = None
    """Of what is saved there."""


_process = _Process()


def load_checkpoint(
    path: PathLike,
    map_location: str | torch.device | None = "cpu",
    *,
    weights_only: bool = True,
    from_any_rank: bool = False,
) -> Any | None:
    """Returns the state of the newest intact checkpoint in the directory `path`, or None if there is none yet.

    Corrupt and incomplete checkpoints are skipped for the previous one, each with one warning in the log.

    Under elasticrun, what `save_checkpoint` saved last is also in memory, with the agent of the rank that called it,
    and survives that process. It is used if it is at least as new as the directory's newest checkpoint, and no later
    worker group has saved there. A state that is only in memory (`durable=False`) is used if all ranks are on this
    machine, or with `from_any_rank`: otherwise, the others could not find it.

    - map_location: as for torch.load. The default keeps the ranks of a machine from loading all their states onto its
      first GPU.
    - weights_only: as for torch.load. With True, a checkpoint is data: tensors, numbers, strings, and dicts, lists and
      tuples of them. With False, it may contain any Python object, and loading it runs code that its writer chose: use
      this only for directories you trust.
    - from_any_rank: all ranks call this, after `init_process_group`, and all get the newest checkpoint that any of them
      has found, on its machine's disk or in memory. It is sent to the ranks that lack it.

    Every rank may call this, but without `from_any_rank`, ranks on different machines can find different steps, because
    of a local disk or the cache of a shared file system.

    Raises CheckpointError if the newest intact checkpoint cannot be read, or contains objects that `weights_only`
    forbids; with `from_any_rank`, on all ranks.
    """

    def find(*, anywhere: bool) -> tuple[State, Any | None]:
        return _find(path, map_location, weights_only, anywhere=anywhere)

    if from_any_rank:
        return any_rank.load(lambda: find(anywhere=True), map_location, weights_only=weights_only)
    return find(anywhere=False)[1]


def _find(
    path: PathLike, map_location: str | torch.device | None, weights_only: bool, *, anywhere: bool
) -> tuple[State, Any | None]:
    """What this rank has, in memory or in the directory. Raises CheckpointError.

    anywhere: whether other machines can get it from this one.
    """
    agent_memory = _agent_memory()
    if agent_memory is None:
        return find_durable(path, map_location, weights_only=weights_only)
    import torch

    file = checkpoint.newest_state(path)
    agent_memory.continues(_purpose(path), file.claim)
    with contextlib.ExitStack() as stack:
        is_device = map_location is None or isinstance(map_location, str | torch.device)
        memory = agent_memory.newest(_purpose(path)) if is_device else None
        if memory is not None:
            stack.enter_context(contextlib.closing(memory))
            all_here = channel.number("WORLD_SIZE") <= channel.number("LOCAL_WORLD_SIZE")
            if memory.step != file.step and not (anywhere or all_here):
                memory = None
        if file.step >= 0:
            progress.remember_checkpoint(file.step)
        if memory is None:
            return find_durable(path, map_location, weights_only=weights_only)
        began = time.time()
        load = functools.partial(memory.load, map_location, any_object=not weights_only)
        held = Held(rank=0, state=memory.state(checkpoint.this_job()))
        found, state = find_durable(path, map_location, weights_only=weights_only, memory=held, read_memory=load)
        if found.kind is Kind.MEMORY:
            channel.send_phase("restore", began=began, step=found.step)
        return found, state


def find_durable(
    path: PathLike,
    map_location: str | torch.device | None = "cpu",
    *,
    weights_only: bool = True,
    memory: Held | None = None,
    read_memory: Callable[[], Any | None] = lambda: None,
) -> tuple[State, Any | None]:
    """What is in the directory, or in memory if that is as new. Raises CheckpointError.

    read_memory: returns None if that is no longer there.
    """

    def read(file: BinaryIO) -> Any:
        import torch

        if manifest.is_manifest(file):  # what torch writes begins otherwise
            raise checkpoint.CheckpointError(
                f"The newest checkpoint in {path} is sharded: load it with load_sharded_checkpoint, on all ranks."
            )
        return torch.load(file, map_location=map_location, weights_only=weights_only)

    def read_state(_choice: Choice) -> Any:
        state = read_memory()
        if state is None:
            raise CorruptCheckpointError("it is replaced, or has objects that weights_only=True refuses")
        return state

    began = time.time()
    try:
        found = checkpoint.load(path, read, memory=[memory] if memory is not None else [], read_memory=read_state)
    except pickle.UnpicklingError as error:
        raise checkpoint.CheckpointError(
            f"The newest checkpoint in {path} is intact, but torch.load refuses it: {first_line(error)}. "
            "If you trust this directory, use load_checkpoint(..., weights_only=False)."
        ) from error
    if found is None:
        return NOTHING, None
    if found.about.kind is Kind.STORAGE:
        progress.remember_checkpoint(found.step)
        channel.send_phase("restore", began=began, step=found.step)
    return found.about, found.state


def save_checkpoint(
    path: PathLike,
    state: Any,
    *,
    step: int | None = None,
    keep: int = checkpoint.DEFAULT_KEEP,
    durable: bool = True,
    block: bool = True,
) -> None:
    """Saves `state` as a checkpoint in the directory `path`, which is created if it does not exist.

    Call this on rank 0 only; the other ranks need not wait. When it returns, the checkpoint is on the disk. If the
    process dies while saving, earlier checkpoints are untouched.

    - state: anything torch.save accepts. `load_checkpoint` reads tensors, numbers, strings, dicts, lists and tuples
      without trusting the checkpoint; `state_dict()` returns nothing else. A warning names other objects.
    - step: names the checkpoint; the highest step is the newest. The default is state["step"] if it exists, else one
      more than the newest.
    - keep: how many checkpoints to keep.
    - durable: False leaves the state in memory only, with this machine's agent, which takes 0.15 s for 1 GiB: for
      checkpoints after every few steps between those on the disk. It survives the death of all worker processes, but
      not of the agent. Without an agent (plain python, torchrun), nothing is saved.
    - block: False copies the state into the CPU's memory, which is kept for the next save, and a thread writes that
      while the training continues. The next durable save waits for it, and raises its error. A process that ends by
      itself waits for it, too, and ends with exit code 1 if it has failed; of one that is killed, nothing is left.
      Tensors of a GPU are saved as those of the CPU. A state with objects that are not plain data is serialized first,
      which takes several times as long.

    Under elasticrun, the state is left in memory in either case, twice its size, unless that takes more than half of
    the memory that is free. ELASTICJOB_MEMORY_SNAPSHOTS=0 turns this off.

    A worker group that was replaced while it was disconnected or frozen can no longer save: it gets a FencedError, a
    subclass of CheckpointError. Do not catch it: the group has to end. The first save of a group claims the directory;
    see docs/design/0002-rendezvous.md.

    Raises CheckpointError if the directory cannot be written, FencedError if a newer group saves there.
    """
    number = _step_of(path, state, durable) if step is None else step
    if durable:
        save_durable(path, state, number, keep, block=block)
    if (agent_memory := _agent_memory()) is not None:
        if not agent_memory.knows_claim(_purpose(path)):
            agent_memory.continues(_purpose(path), checkpoint.newest_state(path).claim)
        agent_memory.keep(_purpose(path), state, number)


def save_durable(path: PathLike, state: Any, number: int, keep: int, *, block: bool = True) -> None:
    """`save_checkpoint` without memory."""
    import torch

    before = _process.saving
    if before is not None:
        before.wait()  # until then it writes from the copy, even if a signal handler ends this wait
        _process.saving = None
        before.result()
    if block:
        _write(path, lambda file: torch.save(state, file), number, keep)
        return
    write = _writer_of_copy(state)
    _process.saving = background.begin(number, lambda: _write(path, write, number, keep))


def _writer_of_copy(state: Any) -> Callable[[BinaryIO], Any]:
    """Writes `state` as it is now."""
    import torch

    from elasticjob_runtime.training.memory.kept import KeptCopy

    _process.copy = _process.copy or KeptCopy()
    copy = _process.copy.of(state)
    if copy is not None:
        return lambda file: torch.save(copy, file)
    data = io.BytesIO()  # takes any object, and several times as long
    torch.save(state, data)
    return lambda file: file.write(data.getbuffer())


def _write(path: PathLike, write: Callable[[BinaryIO], Any], number: int, keep: int) -> None:
    written = checkpoint.save(path, number, write, keep=keep)
    progress.remember_checkpoint(number)
    channel.send_phase("checkpoint", step=number)
    if written.parent not in _checked_content:
        _checked_content.add(written.parent)
        _warn_of_objects(written)


def _agent_memory() -> AgentMemory | None:
    """None without an agent: this process need not import torch."""
    if not os.environ.get(Env.AGENT_SOCKET):
        return None
    from elasticjob_runtime.training import memory

    return memory.agent_memory_of_this_process()


def _purpose(path: PathLike) -> str:
    return f"checkpoint {os.path.realpath(path)}"


def _step_of(path: PathLike, state: Any, durable: bool) -> int:
    if isinstance(state, Mapping) and isinstance(state.get("step"), int):
        return int(state["step"])
    if not durable:
        raise ValueError('save_checkpoint: durable=False needs a step, or state["step"]')
    writing = [_process.saving.step] if _process.saving is not None else []
    return max((0, *checkpoint.steps(path), *writing)) + 1


def _warn_of_objects(path: pathlib.Path) -> None:
    """Warns now about a state that the default load will refuse, not at the first restart."""
    import torch

    find = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)  # torch >= 2.6
    objects: list[str] = []
    with contextlib.suppress(OSError):  # it is saved, whatever happens to it now
        objects = find(path) if find is not None else []
    if objects:
        logger.warning(
            "The state saved in %s contains %s: only load_checkpoint(..., weights_only=False) can read it.",
            path.parent,
            ", ".join(sorted(objects)),
        )
