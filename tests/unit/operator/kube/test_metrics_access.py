"""How long an answer of the API server about a token counts."""

from __future__ import annotations

from http import HTTPStatus

from elasticjob_operator.kube.metrics_access import (
    ALLOWED_SECONDS,
    DENIED_SECONDS,
    MAX_TOKENS,
    Access,
    AnswerCache,
    access_review_of,
)

ALLOWED = Access(HTTPStatus.OK)
DENIED = Access(HTTPStatus.FORBIDDEN, "no")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_counts_for_a_while_and_a_refusal_for_less() -> None:
    clock = Clock()
    cache = AnswerCache(clock)
    cache.put("good", ALLOWED)
    cache.put("bad", DENIED)
    assert (cache.get("good"), cache.get("bad"), cache.get("other")) == (ALLOWED, DENIED, None)
    clock.now += DENIED_SECONDS
    assert (cache.get("good"), cache.get("bad")) == (ALLOWED, None)
    clock.now += ALLOWED_SECONDS - DENIED_SECONDS
    assert cache.get("good") is None


def test_a_flood_of_tokens_takes_no_memory() -> None:
    cache = AnswerCache(Clock())
    for number in range(MAX_TOKENS + 1):
        cache.put(str(number), DENIED)
    assert cache.get("0") is None
    assert cache.get(str(MAX_TOKENS)) == DENIED
    assert len(cache._answers) == MAX_TOKENS


def test_tokens_are_not_kept() -> None:
    cache = AnswerCache(Clock())
    cache.put("secret-token", ALLOWED)
    assert "secret-token" not in repr(cache._answers)


def test_the_review_is_about_the_user_with_groups_and_extra() -> None:
    """Rights may come from either."""
    user = {"username": "system:serviceaccount:a:b", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}
    assert access_review_of(user) == {
        "user": "system:serviceaccount:a:b",
        "uid": "1",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }
