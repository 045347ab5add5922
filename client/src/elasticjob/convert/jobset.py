"""The trainer's job of a training runtime: its pod template, with what a TrainJob changes in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from elasticjob.convert.command import Launch, Setting, Word
from elasticjob.convert.draft import Draft, a_list, a_number, an_object
from elasticjob.convert.paths import Path, get, leaves
from elasticjob.convert.table import ConvertError, Note

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER_JOB = CONTAINER = "node"
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "schedulingGates": "name",
    "volumeMounts": "name",
    "volumes": "name",
}
"""Lists in which a patch replaces items of the same name, and adds others."""


def patched(base: Any, patch: Any, key: str = "") -> Any:
    """`base` with the changes of a patch: objects and named lists are merged, everything else is replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {name: patched(base.get(name), value, name) for name, value in patch.items() if value is not None}
    name = MERGE_KEYS.get(key)
    if not name or not isinstance(base, list) or not isinstance(patch, list):
        return copy.deepcopy(patch)
    by_name = {each.get(name): each for each in base if isinstance(each, dict)}
    for each in patch:
        if isinstance(each, dict):
            by_name[each.get(name)] = patched(by_name.get(each.get(name), {}), each)
    return list(by_name.values())


def _place(result: Any, patch: Any, at: Path) -> Path:
    """Where something of a patch is in the patched template."""
    place: Path = ()
    for depth, step in enumerate(at):
        name = MERGE_KEYS.get(str(at[depth - 1])) if isinstance(step, int) and depth else None
        item = get(patch, (*at[: depth + 1],))
        if name and isinstance(item, dict):
            there = get(result, place) or []
            found = next((i for i, each in enumerate(there) if each.get(name) == item.get(name)), step)
            place = (*place, found)
        else:
            place = (*place, step)
    return place


def trainer_of(runtime: Mapping[str, Any], draft: Draft, at: Path) -> Trainer:
    """The trainer's job; the others are noted. `at`: where the runtime is. Raises ConvertError."""
    jobs = a_list(runtime, "spec", "template", "spec", "replicatedJobs")
    path = ("spec", "template", "spec", "replicatedJobs")
    index = _index(jobs)
    if index is None:
        raise ConvertError(f"the runtime {get(runtime, ('metadata', 'name'))} has no job that trains")
    for number, each in enumerate(jobs):
        if number != index:
            why = f"the job {each.get('name')} is not the trainer, and an ElasticJob has no steps before the training"
            instead = "run it before as a Job that fills a PersistentVolumeClaim, or as an init container"
            draft.lost((*at, *path, number), why, instead)
    if (a_number(jobs[index], ("replicas",)) or 1) > 1:
        why = "several Jobs of worker pods become one group"
        draft.lost((*at, *path, index, "replicas"), why, "set spec.workers.replicas to the number of all worker pods")
    job_at = (*path, index, "template", "spec")
    template = copy.deepcopy(an_object(runtime, *job_at, "template", required=True))
    return Trainer(str(jobs[index].get("name")), template, (*at, *job_at, "template"), job_at)


def _index(jobs: list[dict[str, Any]]) -> int | None:
    labelled = (i for i, job in enumerate(jobs) if get(job, ("template", "metadata", "labels", ANCESTOR)) == "trainer")
    named = (i for i, job in enumerate(jobs) if job.get("name") == TRAINER_JOB)
    return next(labelled, next(named, None))


@dataclasses.dataclass
class Trainer:
    """The pod template of the trainer's job while the TrainJob's changes are made to it."""

    name: str
    template: dict[str, Any]
    at: Path
    """Where the template is in the input."""
    job_at: Path
    """Where its Job's spec is in the runtime."""
    origins: dict[Path, Path] = dataclasses.field(default_factory=dict)
    """Path of something in the template -> where the input has it, for what comes from the TrainJob."""

    def _container(self) -> tuple[int, dict[str, Any]]:
        containers = a_list(self.template, "spec", "containers")
        if not containers:
            raise ConvertError("the runtime's pod template has no containers")
        index = next((i for i, each in enumerate(containers) if each.get("name") == CONTAINER), 0)
        return index, containers[index]

    def apply(self, overrides: Mapping[str, tuple[str, Any]], source: Path, draft: Draft) -> None:
        """`overrides`: field of the container -> name of the TrainJob's field at `source`, and its value."""
        index, container = self._container()
        here = (*self.at, "spec", "containers", index)
        for field, (name, value) in overrides.items():
            if field == "env":
                self._add_variables(container, value, here, (*source, name), draft)
                continue
            if container.get(field) is not None:
                draft.irrelevant((*here, field), f"the TrainJob's {name} takes its place")
            container[field] = copy.deepcopy(value)
            self.origins[(*here, field)] = (*source, name)

    def _add_variables(self, container: dict[str, Any], value: Any, here: Path, source: Path, draft: Draft) -> None:
        added = a_list({"env": value}, "env")
        names = {each.get("name") for each in added}
        kept: list[Any] = []
        for index, each in enumerate(a_list(container, "env")):
            if each.get("name") in names:
                draft.irrelevant((*here, "env", index), "the TrainJob sets this variable")
            else:
                self.origins[(*here, "env", len(kept))] = (*here, "env", index)
                kept.append(each)
        for index, each in enumerate(added):
            self.origins[(*here, "env", len(kept))] = (*source, index)
            kept.append(copy.deepcopy(each))
        container["env"] = kept

    def patch(self, patch: Mapping[str, Any], path: Path, draft: Draft) -> None:
        """Changes by a patch of the TrainJob. Those of containers that the template lacks are noted."""
        spec = an_object(patch, "spec")
        wanted = copy.deepcopy(spec)
        for kind in ("containers", "initContainers"):
            there = {each.get("name") for each in a_list(self.template, "spec", kind)}
            given = a_list(spec, kind, at=(*path, "spec"))
            for index, each in enumerate(given):
                if each.get("name") not in there:
                    draft.lost((*path, "spec", kind, index), f"the runtime has no container {each.get('name')}")
            wanted |= {kind: [each for each in given if each.get("name") in there]} if kind in spec else {}
        before, self.template = self.template, patched(self.template, {**patch, "spec": wanted})
        for at, value in leaves(before):
            if get(self.template, at) != value:
                draft.irrelevant(self._origin((*self.at, *at)), "the TrainJob replaces it")
        for at in (leaf[:end] for leaf, _ in leaves(patch) for end in range(1, len(leaf) + 1)):
            place = _place(self.template, patch, at)
            if get(before, place) != get(self.template, place) and not isinstance(get(before, place), (dict, list)):
                self.origins[(*self.at, *place)] = (*path, *at)

    def _origin(self, path: Path) -> Path:
        for end in range(len(path), -1, -1):
            if path[:end] in self.origins:
                return (*self.origins[path[:end]], *path[end:])
        return path

    def moved_note(self, note: Note) -> Note:
        """The note, where the input has what it is about."""
        also = tuple(self._origin(each) for each in note.also)
        return dataclasses.replace(note, path=self._origin(note.path), also=also)

    def moved(self, launch: Launch) -> Launch:
        """The same for what the container runs."""

        def word(each: Word) -> Word:
            return dataclasses.replace(each, path=self._origin(each.path))

        def setting(each: Setting) -> Setting:
            return Setting(each.value, self._origin(each.path), tuple(self._origin(path) for path in each.also))

        return dataclasses.replace(
            launch,
            command=tuple(map(word, launch.command)),
            args=tuple(map(word, launch.args)),
            settings={name: setting(each) for name, each in launch.settings.items()},
            notes=tuple(map(self.moved_note, launch.notes)),
        )
