"""What the agent does about a store that is unreachable, and about one that rejects its requests."""

from __future__ import annotations

import logging

import pytest
from elasticjob_runtime.contract import ExitCode, FailureValue
from elasticjob_runtime.etcd import Denied, Full, NotEtcd, StoreError, Unavailable
from elasticjob_runtime.membership.actions import PublishFailure
from elasticjob_runtime.rendezvous.executor import StoreExecutor, describe_error, retry_pause

FAILURE = FailureValue(member="a", round=1, rank=0, local_rank=0, exit_code=1, reason="", message="")
ACTION = PublishFailure(reason="", failure=FAILURE)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unavailable("no answer"), "etcd is unreachable"),
        (Full("database space exceeded"), "etcd takes no writes"),
        (Denied("permission denied"), "etcd refuses this member"),
        (NotEtcd("an nginx"), "no etcd 3.4 or newer"),
        (StoreError("request is too large"), "etcd does not take what this member writes"),
    ],
)
def test_each_store_error_is_reported_once_for_what_it_is(
    caplog: pytest.LogCaptureFixture, error: StoreError, words: str
) -> None:
    with caplog.at_level(logging.INFO):
        reported: list[str] = []
        executor = StoreExecutor(lambda _action: None, reported.append)
        for _ in range(3):
            executor.done(ACTION, error, started=True)
    assert executor.fatal is None, "workers run"
    assert reported == [str(error)], "once"
    assert caplog.text.count(words) == 1
    assert describe_error(error) in caplog.text


def test_an_unreachable_store_is_retried_sooner_than_one_that_rejects() -> None:
    assert [retry_pause(Unavailable(""), tries) for tries in (0, 10)] == [0.05, 1.0]
    assert [retry_pause(Full(""), tries) for tries in (0, 10)] == [1.0, 30.0]


def test_a_denied_action_before_the_start_is_fatal() -> None:
    executor = StoreExecutor(lambda _action: None, lambda _trouble: None)
    executor.done(ACTION, Denied("no"), started=False)
    assert executor.fatal is not None
    assert executor.fatal.code is ExitCode.DENIED
