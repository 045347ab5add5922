"""Several replica types with templates of their own, which become the one template of an ElasticJob."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path
from elasticjob.convert.table import ConvertError

KEYS = {
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "envFrom": "",
    "initContainers": "name",
    "containers": "name",
    "imagePullSecrets": "name",
    "tolerations": "",
}
"""Lists whose items are put together -> the field that names an item; empty: an item is its own name."""
_TOGETHER = frozenset({"metadata", "labels", "annotations", "spec", "nodeSelector"})


def role(specs: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]] | None:
    """The replica type of that name, in any case, with its key. None: the job has none."""
    for key, value in specs.items():
        if key.lower() == name.lower():
            if not isinstance(value, dict):
                raise ConvertError(f"the replica type {key} is {value!r:.60}, which is not an object")
            return key, value
    return None


def merged(kept: Mapping[str, Any], other: Mapping[str, Any], at: Path, draft: Draft, *, names: tuple[str, str]) -> Any:
    """`kept`, with what only `other` has of variables, volumes, containers and labels. Every other difference is noted.
    `at`: the path of `other`; `names`: of both, for people."""
    return _Merge(draft, *names).of(kept, other, at)


class _Merge:
    def __init__(self, draft: Draft, kept: str, other: str) -> None:
        self._draft = draft
        self._kept, self._other = kept, other

    def of(self, kept: Any, other: Any, at: Path) -> Any:
        result = copy.deepcopy(dict(kept))
        for key, value in other.items():
            here = (*at, key)
            if key not in result:
                result = self._only_other(result, key, value, here)
            elif key in KEYS and isinstance(value, list) and isinstance(result[key], list):
                result[key] = self._items(result[key], value, KEYS[key], here)
            elif key in _TOGETHER and isinstance(value, dict) and isinstance(result[key], dict):
                result[key] = self.of(result[key], value, here)
            elif result[key] != value:
                self._differs(here)
        return result

    def _only_other(self, result: dict[str, Any], key: str, value: Any, at: Path) -> dict[str, Any]:
        if key in KEYS or key in _TOGETHER or (len(at) > 1 and at[-2] in ("labels", "annotations")):
            self._added(at)
            return {**result, key: copy.deepcopy(value)}
        self._differs(at)
        return result

    def _items(self, kept: list[Any], other: list[Any], name: str, at: Path) -> list[Any]:
        result = list(kept)
        for index, item in enumerate(other):
            here = (*at, index)
            twin = next((i for i, each in enumerate(result) if _name(each, name) == _name(item, name)), None)
            if twin is None:
                self._added(here)
                result.append(copy.deepcopy(item))
            elif at[-1] in ("containers", "initContainers") and isinstance(item, dict):
                result[twin] = self.of(result[twin], item, here)
            elif result[twin] != item:
                self._differs(here)
        return result

    def _added(self, at: Path) -> None:
        self._draft.changed(at, f"only {self._other} had it; all worker pods are alike, so now all have it")

    def _differs(self, at: Path) -> None:
        why = f"it differs from that of {self._kept}, and all worker pods are alike"
        self._draft.lost(at, why, "if rank 0 needs something else, decide in the script")


def _name(item: Any, field: str) -> Any:
    return item.get(field) if field and isinstance(item, dict) else item
