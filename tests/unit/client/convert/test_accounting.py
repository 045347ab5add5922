"""No field of an input is dropped silently: it is in the ElasticJob, or the report names it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from elasticjob.convert import Converted, ConvertError, Note, Outcome, convert_all
from elasticjob.convert.conversion import describe
from elasticjob.convert.paths import Path, get, leaves
from elasticjob.decisions.documents import Document, parse
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.convert.goldens import CASES, GOLDEN

Inputs = list[Document]
EXTRA, VALUE = "anExtraField", "the value of an extra field"


def inputs(case: str) -> Inputs:
    """The case's objects, with the runtime of a TrainJob."""
    return copy.deepcopy(_read(case))


@cache
def _read(case: str) -> Inputs:
    return [
        item
        for path in sorted((GOLDEN / case).glob("*.yaml"))
        if path.name != "elasticjob.yaml"
        for item in parse(path.read_text(), path.name)
    ]


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all objects, in which a field can be added."""
    if isinstance(value, dict):
        yield path
        for key, item in value.items():
            yield from objects(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from objects(item, (*path, index))


def of_jobs(documents: Inputs) -> list[int]:
    """Indices of the documents that are converted, rather than kept."""
    return [
        i for i, document in enumerate(documents) if document["kind"] not in ("ConfigMap", "HorizontalPodAutoscaler")
    ]


PLACES = [
    (case, index, path) for case in CASES for index in of_jobs(inputs(case)) for path in objects(inputs(case)[index])
]


def notes_on(converted: list[Converted], document: Document, path: Path) -> list[Note]:
    """Those on the field or one of its parents."""
    return [
        note
        for item in converted
        for note in item.notes
        if (note.document or item.source) == describe(document)
        if path[: len(note.path)] == note.path
    ]


def texts(converted: list[Converted]) -> set[str]:
    """All scalars of the output."""
    return {str(leaf) for item in converted for _, leaf in leaves(item.manifest)}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from([VALUE, 7_654_321, [VALUE], {"deep": {"deeper": VALUE}}, {}]))
def test_an_unexpected_field_anywhere_is_kept_or_reported(place: tuple[str, int, Path], value: Any) -> None:
    case, index, path = place
    documents = inputs(case)
    get(documents[index], path)[EXTRA] = value
    converted, refusal = converted_or_refused(documents)
    if refusal:  # such as a label that is a number
        assert EXTRA in refusal
        return
    for leaf, scalar in leaves(value, (*path, EXTRA)):
        notes = notes_on(converted, documents[index], leaf)
        assert notes, f"{leaf} is not in the report"
        if all(note.outcome is Outcome.CARRIED for note in notes):
            kept = str(scalar) in texts(converted) or any(EXTRA in str(item.manifest) for item in converted)
            assert kept, f"{leaf} is not carried over"


def converted_or_refused(documents: Inputs) -> tuple[list[Converted], str]:
    try:
        return convert_all(documents), ""
    except ConvertError as error:
        return [], str(error)


FLAGS = ("command", "args")
AS_A_NUMBER = ("nprocPerNode", "numProcPerNode", "restartPolicy", "replicas", "numNodes")
"""Fields of which the ElasticJob has the meaning, not the text."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_reported_as_carried_is_in_the_elasticjob(case: str) -> None:
    documents = inputs(case)
    converted = convert_all(documents)
    for index in of_jobs(documents):
        for path, value in leaves(documents[index]):
            notes = notes_on(converted, documents[index], path)
            assert notes or value in ({}, [], None), f"{path} is not in the report"
            exact = not set(path) & {*FLAGS, *AS_A_NUMBER}
            if exact and notes and all(note.outcome is Outcome.CARRIED for note in notes):
                labels = any("elasticjob.dev" in note.why for note in notes)
                assert labels or str(value) in texts(converted), f"{path} is not carried over"


@pytest.mark.parametrize("case", CASES)
def test_the_output_does_not_depend_on_the_order_of_fields(case: str) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    documents = inputs(case)
    there = [one.manifest for one in convert_all(documents)]
    assert documents == inputs(case), "the input is not changed"
    assert [one.manifest for one in convert_all([turned(one) for one in inputs(case)])] == there


def every_path(value: Any, path: Path = ()) -> Iterator[Path]:
    """All paths below the document's root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        yield (*path, step)
        yield from every_path(item, (*path, step))


LEAVES = [
    (case, index, path) for case in CASES for index in of_jobs(inputs(case)) for path in every_path(inputs(case)[index])
]
OTHER_TYPES: list[Any] = [
    *("", "text", "7", 0, -1, 3, 10**12, 1.5, True, None),
    *([], ["a"], [1], [{}], {}, {"a": "b"}, {"name": 1}),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(LEAVES), st.sampled_from(OTHER_TYPES))
def test_a_value_of_a_wrong_type_is_converted_or_refused_in_a_sentence(
    place: tuple[str, int, Path], value: Any
) -> None:
    case, index, path = place
    documents = inputs(case)
    get(documents[index], path[:-1])[path[-1]] = value
    converted, refusal = converted_or_refused(documents)
    assert converted or refusal
