"""Label selectors mean what they mean to the API server."""

from __future__ import annotations

import pytest
from elasticjob.decisions.label_selectors import selects, terms_of
from elasticjob.errors import UsageError


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("team=nlp", True),
        ("team==nlp,kind=", True),
        ("team = nlp, kind", True),
        ("team=nlp,owner=ann", False),
        ("team!=nlp", False),
        ("owner!=ann", True),
        ("team", True),
        ("owner", False),
        ("!owner", True),
        ("!team", False),
        ("x.dev/team=nlp", False),
    ],
)
def test_labels_are_selected_as_on_a_cluster(selector: str, selected: bool) -> None:
    assert selects(terms_of(selector), {"team": "nlp", "kind": ""}) == selected


@pytest.mark.parametrize("selector", ["team in (nlp, vision)", "!team=nlp", "team>1", "=nlp"])
def test_a_selector_that_is_not_understood_is_refused(selector: str) -> None:
    with pytest.raises(UsageError, match="Use key=value"):
        terms_of(selector)
