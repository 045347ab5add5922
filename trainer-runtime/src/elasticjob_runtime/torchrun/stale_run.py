"""Clearing a stale run: torchrun lets users reuse an --rdzv-id, and many use the same one for years."""

from __future__ import annotations

from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd.interface import Compare, Delete, Get, KeyRange, Store


def clear_ended_run(store: Store, keys: Keys) -> bool:
    """Deletes the keys of a job that has ended and whose agents have all gone. Returns whether there was one. Raises
    StoreError.

    While one of its agents is still registered, the keys stay: an agent that arrives late must see the outcome. If an
    operator manages the job (there is a spec), the outcome is never deleted.
    """
    reads = [
        Get(KeyRange(keys.outcome)),
        Get(KeyRange(keys.spec)),
        Get(KeyRange.prefix(keys.members), limit=1, keys_only=True),
    ]
    outcome, spec, members = store.txn([], reads).reads
    if not outcome or spec or members:
        return False
    # Registering checks the outcome in the same transaction: while there is one, no member can register.
    guard = Compare(keys.outcome, mod_revision=outcome[0].mod_revision)
    # Not the whole `<prefix>/<run id>/`: it may contain another job that uses it as its prefix.
    ranges = [*map(KeyRange, keys.single), *map(KeyRange.prefix, keys.folders)]
    return store.txn([guard], [Delete(span) for span in ranges]).succeeded
