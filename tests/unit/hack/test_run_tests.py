"""`make test` says what it lacks before it starts anything."""

from __future__ import annotations

from hack.run_tests import DISK, too_little_disk


def test_a_disk_that_is_too_small_is_reported_with_a_remedy() -> None:
    assert too_little_disk("/scratch", DISK) == ""
    assert too_little_disk("/scratch", 2**30) == (
        "/scratch has 1.0 GiB free, the tests need 10 GiB: free some, or set TMPDIR to a folder on a larger disk"
    )
