"""Label selectors, as kubectl's -l, for jobs that no API server selects. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from elasticjob.errors import UsageError

_TERM = re.compile(r"\s*(?:(!?)\s*([\w./-]+)|([\w./-]+)\s*(==?|!=)\s*([\w.-]*))\s*")


class Term(NamedTuple):
    """`value`: None for any. `wanted`: whether labels must have it, or must not."""

    key: str
    value: str | None
    wanted: bool


def terms_of(selector: str) -> list[Term]:
    """Raises UsageError.

    >>> terms_of("team=nlp,!queue")
    [Term(key='team', value='nlp', wanted=True), Term(key='queue', value=None, wanted=False)]
    """
    terms = []
    for part in filter(None, selector.split(",")):
        found = _TERM.fullmatch(part)
        if found is None:
            raise UsageError(
                f"Jobs on this machine cannot be selected by {selector!r}.", "Use key=value, key!=value, key or !key."
            )
        absent, alone, key, operator, value = found.groups()
        terms.append(Term(alone, None, not absent) if alone else Term(key, value, operator != "!="))
    return terms


def selects(terms: Sequence[Term], labels: Mapping[str, str]) -> bool:
    """Whether all terms hold for an object's labels."""
    return all(
        (term.key in labels if term.value is None else labels.get(term.key) == term.value) == term.wanted
        for term in terms
    )
