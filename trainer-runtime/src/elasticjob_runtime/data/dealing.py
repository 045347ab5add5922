"""How the rest of an epoch is divided into global batches, and a global batch into the shares of the ranks. Pure."""

from __future__ import annotations


def next_batch(left: int, batch_size: int, world_size: int, *, drop_last: bool) -> int:
    """Returns the number of samples in the next global batch if `left` are left in the epoch; 0: there is none.

    If fewer samples than ranks would remain for the last batch, this one leaves some of its own for it. If it cannot
    spare any, it takes all, so that some ranks have two samples and the others one.

    >>> [next_batch(left, 8, 4, drop_last=False) for left in (17, 9, 4)]    # not 8, 8, 1
    [8, 5, 4]
    """
    if drop_last:
        return batch_size if left >= batch_size else 0
    remainder = left - batch_size
    if remainder <= 0:
        return left
    if remainder >= world_size or batch_size < world_size:
        return batch_size
    return left - world_size if left >= 2 * world_size else left


def count_batches(left: int, batch_size: int, world_size: int, *, drop_last: bool) -> int:
    """Returns the number of global batches that `next_batch` makes of `left` samples.

    >>> count_batches(17, 8, 4, drop_last=False)
    3
    """
    full, remainder = divmod(left, batch_size)
    if drop_last or not remainder:
        return full
    merged = full > 0 and batch_size >= world_size and batch_size + remainder < 2 * world_size
    return full if merged else full + 1


def share(start: int, end: int, rank: int, world_size: int) -> range:
    """Returns the positions of this rank in the global batch from `start` to `end`. Shares differ by at most one."""
    return range(start + rank, end, world_size)
