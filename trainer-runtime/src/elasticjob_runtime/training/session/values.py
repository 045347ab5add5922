"""`session.values`: what a script itself counts and keeps."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

PLAIN = (type(None), bool, int, float, str, bytes)
LARGE_TENSOR = 1 << 18
"""Bytes from which a tensor is copied for a step only if it has changed since the step before. A change that torch does
not see (of `tensor.data`) is not undone then."""

Put = Callable[[Any, torch.Tensor], torch.Tensor]
"""What becomes of a value, if it is a tensor, that gets the contents of another one."""


class Values(dict[str, Any]):
    """A script's own values: plain data and tensors, the same on all ranks.

    They belong to the training as the model does: they are committed with each step, saved in checkpoints, and sent to
    joiners. Lists, dicts and tensors may be changed in place. What an interrupted step has changed is undone, and
    so is what the script changes between it and the next batch, because the same code runs again afterwards.
    """

    def __init__(self, memory_of_parts: Callable[[], Collection[int]] = frozenset) -> None:
        """memory_of_parts: where the tensors of models and optimizers are, which steps change."""
        super().__init__()
        self._memory_of_parts = memory_of_parts
        self._checked: dict[int, torch.Tensor] = {}
        """By id: tensors that may be values."""
        self._copies: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        """By id: tensors with their versions and copies, of the beginning of the step."""
        self._begun: dict[str, Any] | None = None
        """The values at the beginning of the step, unless it is committed."""
        self._mark: object = None
        self._committed: dict[str, Any] | None = None
        """The values at the end of the last step, until the next one begins; None: not known, or these."""
        self._mark_at_commit: object = None
        self.change_in_steps = False
        """Whether a step has changed them so far."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Raises TypeError for anything but plain data and tensors. Tensors of the model are copied."""
        if type(key) is not str:
            raise TypeError(f"session.values: the key {key!r} is not a string")
        _check_types(value, f"session.values[{key!r}]")
        memory = functools.cache(self._memory_of_parts)
        if any(_problem(leaf, memory) for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)):
            value = _mapped(value, _copy)
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    # -- for the session

    def begin(self) -> None:
        """A step begins that may be interrupted."""
        self.check()
        self._begun, self._mark, self._committed = self._copy_all(), _mark(self), None

    def _copy_all(self) -> dict[str, Any]:
        """A copy, for which large tensors are only copied if they have changed since the one before."""
        before, self._copies = self._copies, {}

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            _, version, copied = before.get(id(tensor), (None, None, tensor))
            if version != tensor._version or tensor.nbytes < LARGE_TENSOR:
                copied = _copy(tensor)
            self._copies[id(tensor)] = tensor, tensor._version, copied
            return copied

        found: dict[str, Any] = _mapped(self, copy)
        return found

    def commit(self) -> None:
        """Raises TypeError or ValueError as `check`."""
        self.check()
        if self._begun is not None and not self.change_in_steps:
            self.change_in_steps = _mark(self) != self._mark
        self._begun, self._committed, self._mark_at_commit = None, self._copy_all(), _mark(self)

    def set_aside(self) -> None:
        """What is here now comes back with `roll_back`. Until then, the values are as at the end of the last step: the
        script is about to do what the others have done since."""
        committed = self._committed
        self.begin()
        if committed is not None:
            self._replace(committed, _put)

    def end_aside(self) -> None:
        """See `set_aside`."""
        self.roll_back()
        self._begun = None

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """What changes meanwhile is undone if it ends with an exception."""
        if self._begun is not None:
            yield  # undone before the next batch, in any case
            return
        self.begin()
        try:
            yield
            self.check()
        except BaseException:
            self.roll_back()
            raise
        finally:
            self._begun = None

    def roll_back(self) -> None:
        """Undoes what has changed since the beginning of a step, unless that is committed."""

        def put(own: Any, before: torch.Tensor) -> torch.Tensor:
            _, version, copied = self._copies.get(id(own), (None, None, None))
            if copied is before and version == own._version and own.nbytes >= LARGE_TENSOR:
                return own  # type: ignore[no-any-return]
            return _put(own, before)

        if self._begun is not None:
            self._replace(self._begun, put)

    def check(self) -> None:
        """Raises TypeError or ValueError if a list or dict of the values has got something that cannot be one."""
        checked, self._checked = self._checked, {}
        memory = functools.cache(self._memory_of_parts)
        for key, value in self.items():
            where = f"session.values[{key!r}]"
            _check_types(value, where)
            for leaf in _leaves(value):
                if not isinstance(leaf, torch.Tensor):
                    continue
                if checked.get(id(leaf)) is not leaf and (problem := _problem(leaf, memory)):
                    raise ValueError(f"{where}{_place(value, leaf)} {problem}: keep a copy, tensor.detach().clone()")
                self._checked[id(leaf)] = leaf

    def state_dict(self) -> dict[str, Any]:
        """Raises TypeError or ValueError as `check`."""
        self.check()
        devices = [leaf.device.type for leaf in _leaves(self) if isinstance(leaf, torch.Tensor)]
        changed = self._committed is not None and _mark(self) != self._mark_at_commit
        return {
            "data": _mapped(self, torch.Tensor.detach),
            "devices": devices,
            "committed": self._committed if changed else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the lists, dicts and tensors that are there: variables of the script may refer to them."""
        self._begun, self._committed, self._mark_at_commit = None, state.get("committed"), None
        devices = iter(state["devices"])
        self._replace(state["data"], lambda own, given: _put(own, given.to(next(devices))))

    def _replace(self, data: Mapping[str, Any], put: Put) -> None:
        used: set[int] = set()

        def put_once(own: Any, given: torch.Tensor) -> torch.Tensor:
            memory = own.untyped_storage().data_ptr() if isinstance(own, torch.Tensor) else 0
            if memory in used:
                own = None
            used.add(memory)
            return put(own, given)

        found = {key: _merged(self.get(key), value, put_once, used) for key, value in data.items()}
        self.clear()
        super().update(found)


def _problem(tensor: torch.Tensor, memory_of_parts: Callable[[], Collection[int]]) -> str:
    """Why a tensor cannot be a value as it is; empty: it can."""
    if tensor.grad_fn is not None:
        return "has a graph of gradients"
    if tensor.is_inference():
        return "comes from torch.inference_mode()"
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return "has several elements in one place"
    if tensor.untyped_storage().data_ptr() in memory_of_parts():
        return "shares memory with the model or the optimizer"
    return ""


def _check_types(value: Any, where: str) -> None:
    for leaf in _leaves(value):
        if type(leaf) in PLAIN or (type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided):
            continue
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        remedy = "; its item() is plain" if getattr(leaf, "shape", None) == () else ""
        raise TypeError(
            f"{where}{_place(value, leaf)} is of the type {kind}. Values are None, bool, int, float, str, bytes, dense "
            f"tensors, and lists, tuples and dicts of these{remedy}"
        )


def _leaves(value: Any) -> Iterator[Any]:
    """All that is not a list, tuple or dict. Raises TypeError for a key that is not plain data."""
    if type(value) in (list, tuple):
        for item in value:
            yield from _leaves(item)
    elif type(value) in (dict, collections.OrderedDict, Values):
        for key, item in value.items():
            if type(key) not in PLAIN:
                raise TypeError(f"session.values: {key!r} is a key of a dict: keys are strings, numbers or None")
            yield from _leaves(item)
    else:
        yield value


def _place(value: Any, leaf: Any) -> str:
    """Where a leaf is: ['best'][0]."""
    items: Any = ()
    if type(value) in (list, tuple):
        items = enumerate(value)
    elif type(value) in (dict, collections.OrderedDict):
        items = value.items()
    for key, item in items:
        if any(found is leaf for found in _leaves(item)):
            return f"[{key!r}]{_place(item, leaf)}"
    return ""


def _mapped(value: Any, of_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy, with plain dicts."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, of_tensor) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, of_tensor) for key, item in value.items()}
    return value


def _merged(own: Any, given: Any, put: Put, used: set[int]) -> Any:
    """What `given` says, in the lists, dicts and tensors of `own` where there is the like, but in none of them twice.
    used: ids of those that are."""
    if isinstance(given, torch.Tensor):
        return put(own, given)
    if type(given) not in (list, tuple, dict):
        return given
    pairs = _pairs(own, given)
    found = {key: _merged(mine, theirs, put, used) for key, (mine, theirs) in pairs.items()}
    result: Any = found if type(given) is dict else type(given)(found.values())
    if type(given) is tuple or not isinstance(own, type(given)) or id(own) in used:
        return result
    used.add(id(own))
    own.clear()
    own.extend(result) if type(given) is list else own.update(result)
    return own


def _pairs(own: Any, given: Any) -> dict[Any, tuple[Any, Any]]:
    if type(given) is dict:
        mine = own if isinstance(own, dict) else {}
        return {key: (mine.get(key), item) for key, item in given.items()}
    same = type(own) is type(given)
    return {index: (own[index] if same and index < len(own) else None, item) for index, item in enumerate(given)}


def _put(own: Any, given: torch.Tensor) -> torch.Tensor:
    if isinstance(own, torch.Tensor) and (own.shape, own.dtype, own.device) == (given.shape, given.dtype, given.device):
        with torch.no_grad():
            return own.copy_(given)
    return _copy(given)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _mark(values: Values) -> list[Any]:
    """Differs after a change."""
    return [(id(leaf), leaf._version) if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(values)]
