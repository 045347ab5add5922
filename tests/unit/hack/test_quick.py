"""`make quick` tests the packages that a change touches."""

from __future__ import annotations

from hack.quick import packages


def test_the_unit_tests_of_touched_packages_run_once() -> None:
    assert packages(
        [
            "operator/src/elasticjob_operator/policies/failures.py",
            "trainer-runtime/src/elasticjob_runtime/training/memory/copies.py",
            "trainer-runtime/src/elasticjob_runtime/training/progress.py",
            "client/src/elasticjob/views/table.py",  # client's tests have no folder for it
            "hack/quick.py",
            "tests/unit/api/test_job.py",
            "tests/integration/test_docs.py",
            "examples/session/train.py",
        ]
    ) == [
        "tests/unit/api",
        "tests/unit/client",
        "tests/unit/hack",
        "tests/unit/operator/policies",
        "tests/unit/runtime/training",
    ]
