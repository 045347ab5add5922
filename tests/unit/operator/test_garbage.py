from __future__ import annotations

import gc
import weakref

from elasticjob_operator import garbage


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


def test_a_full_collection_leaves_out_what_has_survived_one_for_an_hour() -> None:
    now = 0.0
    with garbage.in_short_pauses(lambda: now):
        first, second = Node(), Node()
        first.other, second.other = second, first
        gone = weakref.ref(first)
        gc.collect()
        assert gc.get_freeze_count() > 1000
        del first, second
        gc.collect()
        assert gone() is not None, "it is left out"
        now = garbage.ALL_SECONDS
        gc.collect()
        assert gone() is None


def test_what_is_no_cycle_is_freed_at_once() -> None:
    with garbage.in_short_pauses():
        alone = Node()
        gone = weakref.ref(alone)
        gc.collect()
        del alone
        assert gone() is None
    assert gc.get_freeze_count() == 0
