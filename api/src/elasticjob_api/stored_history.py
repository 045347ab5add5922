"""`status.history` as the operator keeps it: JSON, which is parsed on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema, from_json, to_json

from elasticjob_api.history import MAX_CHANGES, MAX_SAMPLES, Change, ChangeType, History


class StoredHistory:
    """A history as JSON, parsed on demand: an operator keeps the status of thousands of jobs, and hardly ever reads
    their history. As objects it takes five times the memory."""

    __slots__ = ("json", "open_round")

    def __init__(self, body: Mapping[str, Any]) -> None:
        """`body`: the object from the API server, or `History.to_api()`."""
        self.json = to_json(body)
        self.open_round = _open_round(body)
        """The newest change of type Round, if its first step is not known yet."""

    @property
    def body(self) -> dict[str, Any]:
        """Parsed on each access."""
        body: dict[str, Any] = from_json(self.json)
        return body

    def read(self) -> History:
        """Leaves out what is invalid, such as changes that another version wrote differently."""
        body = self.body
        try:
            return History.model_validate(body)
        except ValidationError:
            return History(
                changes=tuple(_valid_changes(body)),
                samples=tuple(text for text in _items(body, "samples") if isinstance(text, str))[-MAX_SAMPLES:],
            )

    def __eq__(self, other: object) -> bool:
        """The API server changes the order of fields, and writes 1.0 as 1."""
        if not isinstance(other, StoredHistory):
            return NotImplemented
        return self.json == other.json or self.body == other.body

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StoredHistory({self.body!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        def validate(value: object) -> StoredHistory:
            if isinstance(value, StoredHistory):
                return value
            if isinstance(value, History):
                return cls(value.to_api())
            if not isinstance(value, Mapping):
                raise ValueError("expected an object")
            return cls(value)

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda stored: stored.body, when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(History.__pydantic_core_schema__)


def _items(body: Mapping[str, Any], name: str) -> list[Any]:
    found = body.get(name)
    return found if isinstance(found, list) else []


def _open_round(body: Mapping[str, Any]) -> int | None:
    rounds = (
        change
        for change in reversed(_items(body, "changes"))
        if isinstance(change, Mapping) and change.get("type") == ChangeType.ROUND
    )
    newest = next(rounds, None)
    return newest.get("round") if newest is not None and newest.get("resumeSeconds") is None else None


def _valid_changes(body: Mapping[str, Any]) -> list[Change]:
    found = []
    for change in _items(body, "changes")[-MAX_CHANGES:]:
        with contextlib.suppress(ValidationError):
            found.append(Change.model_validate(change))
    return found
