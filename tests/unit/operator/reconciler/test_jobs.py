from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.api import InvalidJobError
from elasticjob_operator.reconciler.jobs import Jobs

from tests.unit.operator.builders import TEMPLATE

KEY = ("ml", "digits")


def body(version: int, uid: str = "u", replicas: Any = 1) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": "digits", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"workers": {"replicas": replicas, "template": TEMPLATE}}}


def test_an_event_older_than_our_own_write_is_no_news() -> None:
    """The answer to a status write is ahead of the watch: the old status must not come back."""
    jobs = Jobs()
    assert jobs.put(body(5))
    assert not jobs.put(body(4, replicas=9))
    assert not jobs.put(body(5))
    job = jobs.get(KEY)
    assert job is not None
    assert job.replicas == 1
    assert jobs.put(body(6, replicas=2))
    assert jobs.version(KEY) == 6


def test_a_new_job_of_the_name_takes_the_place() -> None:
    jobs = Jobs()
    jobs.put(body(5, "old"))
    assert jobs.put(body(9, "new"))
    assert not jobs.remove(KEY, "old"), "the late DELETED of the old one"
    assert jobs.get(KEY) is not None
    assert jobs.remove(KEY, "new")
    assert jobs.get(KEY) is None
    assert list(jobs) == []


def test_what_cannot_be_read_says_which_field() -> None:
    jobs = Jobs()
    jobs.put(body(1, replicas="many"))
    with pytest.raises(InvalidJobError, match=r"spec\.workers\.replicas"):
        jobs.get(KEY)
