"""Which error an answer of the API server is."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.kube.client import (
    ApiError,
    ConflictError,
    GoneError,
    NamespaceTerminatingError,
    NotFoundError,
    RejectedError,
    error_of,
)

TERMINATING = {
    "name": "w",
    "kind": "pods",
    "causes": [{"reason": "NamespaceTerminating", "message": "namespace a is being terminated"}],
}
QUOTA = {"name": "w", "kind": "pods"}


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (403, TERMINATING, NamespaceTerminatingError),
        (404, {"name": "a", "kind": "namespaces"}, NamespaceTerminatingError),
        (403, QUOTA, RejectedError),
        (403, None, RejectedError),
        (404, {"name": "w", "kind": "pods"}, NotFoundError),
        (404, None, NotFoundError),
        (409, {"name": "w", "kind": "pods"}, ConflictError),
        (410, None, GoneError),
        (422, {"causes": [{"reason": "FieldValueInvalid"}]}, RejectedError),
        (500, None, ApiError),
    ],
)
def test_each_api_status_has_its_error(status: int, details: Any, kind: type[ApiError]) -> None:
    error = error_of(status, {"reason": "R", "message": "words", **({"details": details} if details else {})})
    assert type(error) is kind
    assert (str(error), error.status, error.reason) == ("words", status, "R")
