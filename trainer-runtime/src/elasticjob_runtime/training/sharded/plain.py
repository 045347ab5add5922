"""Reads what torch.distributed.checkpoint has pickled into a shared directory, without running code of its writer."""

from __future__ import annotations

import io
import pathlib
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult

_OWN_CLASSES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
"""Modules whose classes are plain data, as far as they are dataclasses and enumerations."""

_KNOWN: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    (WriteResult.__module__, "WriteResult"): WriteResult,
}


def loads(data: bytes) -> Any:
    """What DCP's metadata and results consist of. Raises pickle.UnpicklingError for anything else, as for what is no
    pickle."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except (ValueError, TypeError, EOFError, AttributeError, ImportError, IndexError, KeyError) as error:
        raise pickle.UnpicklingError(str(error)) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module.partition(".")[0] == "pathlib" and name in ("PosixPath", "PurePosixPath", "Path"):
            return getattr(pathlib, name)
        if module in _OWN_CLASSES and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module and _is_data(found):
                return found
        raise pickle.UnpicklingError(f"it contains a {module}.{name}")


def _is_data(found: type) -> bool:
    return hasattr(found, "__dataclass_fields__") or hasattr(found, "__members__")


class Reader(FileSystemReader):
    """Raises pickle.UnpicklingError for metadata that are not plain data."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        metadata: Metadata = loads((pathlib.Path(self.path) / ".metadata").read_bytes())
        return metadata


class Planner(DefaultLoadPlanner):
    """Raises pickle.UnpicklingError for values that are not plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)
