"""Models to structural schemas: what the API server would reject is rejected here."""

from __future__ import annotations

from typing import Annotated

import pytest
from elasticjob_api.crd.schema import SchemaError, structural_schema
from elasticjob_api.fields import Int32, Model
from pydantic import Field


class Leaf(Model, frozen=True):
    """A leaf."""

    size: Annotated[Int32, Field(ge=1)] = 3
    """How
    big.

    Really.
    """


class Tree(Model, frozen=True):
    """A tree."""

    leaf_of_mine: Leaf = Leaf()
    """Mine."""
    other: Leaf | None = None
    needed: str


class Recursive(Model, frozen=True):
    inner: Recursive | None = None


class OneOfTwo(Model, frozen=True):
    either: int | str


class Odd(Model, frozen=True):
    above: Annotated[float, Field(gt=0)]


def test_references_nulls_and_titles_are_resolved() -> None:
    size = {
        "type": "integer",
        "format": "int32",
        "minimum": 1,
        "maximum": 2**31 - 1,
        "description": "How big.\nReally.",
        "default": 3,
    }
    leaf = {"type": "object", "properties": {"size": size}}
    assert structural_schema(Tree) == {
        "description": "A tree.",
        "type": "object",
        "required": ["needed"],
        "properties": {
            "leafOfMine": {**leaf, "description": "Mine.", "default": {}},
            "other": {**leaf, "description": "A leaf."},
            "needed": {"type": "string"},
        },
    }


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        pytest.param(Recursive, "Recursive.inner: Recursive contains itself", id="recursion"),
        pytest.param(OneOfTwo, "OneOfTwo.either: a union has no structural form", id="union"),
        pytest.param(
            Odd,
            "Odd.above: no structural form for exclusiveMinimum",
            id="a keyword that OpenAPI 3.0 writes differently",
        ),
    ],
)
def test_what_a_crd_cannot_express_is_rejected_with_its_location(model: type[Model], complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        structural_schema(model)
