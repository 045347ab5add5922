"""A run id that is used again: people type the same --rdzv-id for years, and torchrun lets them."""

from __future__ import annotations

from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd.interface import Compare, Delete, Get, KeyRange, Store


def clear_ended_run(store: Store, keys: Keys) -> bool:
    """Removes what a job left behind that has ended and whose agents have all gone; says whether there was one. Raises
    StoreError.

    While one of them is there, its outcome is news for whoever comes late. With an operator (spec), the outcome stands.
    """
    reads = [
        Get(KeyRange(keys.outcome)),
        Get(KeyRange(keys.spec)),
        Get(KeyRange.prefix(keys.members), limit=1, keys_only=True),
    ]
    outcome, spec, members = store.txn([], reads).reads
    if not outcome or spec or members:
        return False
    # Who registers looks at the outcome in the same transaction: as long as it is there, no new member is.
    guard = Compare(keys.outcome, mod_revision=outcome[0].mod_revision)
    # Key by key and folder by folder: below `<prefix>/<run id>/` there may be another job, whose prefix is that.
    ranges = [*map(KeyRange, keys.single), *map(KeyRange.prefix, keys.folders)]
    return store.txn([guard], [Delete(each) for each in ranges]).succeeded
