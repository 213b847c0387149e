"""Groups rows of a table by their owner, counts within groups, and sorts small integers."""

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import I32, I64, Array, Bools, Ints


def stable_order(key: Ints) -> I64:
    """The entries of `key` (`[n]`, 0 or more) in rising order; equal entries stay in their order.

    NumPy sorts 16-bit integers by counting, which takes a tenth of the time of another sort.
    """
    order: I64 = np.argsort(key.astype(np.uint16), kind="stable")
    most, shift = int(key.max(initial=0)), 16
    while most >> shift:
        digit = (key >> shift).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += 16
    return order


def csr_ptr(counts: ArrayLike) -> I32:
    """Row pointer `[n + 1]` int32 of `counts` `[n]`."""
    counts = np.asarray(counts)
    out = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=out[1:], dtype=np.int32)
    return out


def group(owner: I32, n: int) -> tuple[I32, I64]:
    """Rows of a table by owner: (`ptr` `[n + 1]` int32, `order` `[rows]`). Rows of one owner stay in table order.

    Owner i has the rows `order[ptr[i]:ptr[i + 1]]`.
    """
    ptr = csr_ptr(np.bincount(owner, minlength=n))
    if len(owner) == 0 or (owner[1:] >= owner[:-1]).all():
        return ptr, np.arange(len(owner))
    return ptr, stable_order(owner)


def owners(ptr: I32) -> I32:
    """`[rows]` the owner of each row, where owner i has the rows ptr[i] to ptr[i + 1] - 1."""
    owner = np.arange(len(ptr) - 1, dtype=np.int32)
    counts = np.diff(ptr)
    return owner if len(owner) == ptr[-1] and (counts == 1).all() else np.repeat(owner, counts)


def spans(first: Ints | int, count: Ints) -> I64:
    """The numbers `first[i]` .. `first[i] + count[i] - 1` of every i, one after the other, int64. An int: the same for every i."""
    before = np.cumsum(count, dtype=np.int64) - count
    return np.asarray(np.arange(int(np.sum(count))) + np.repeat(first - before, count))


def starts(*columns: Array) -> Bools:
    """`[n]` bool: whether an entry differs in any of `columns` from the one before it. The first entry does."""
    new = np.ones(len(columns[0]), bool)
    new[1:] = False
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def runs(*columns: Array) -> tuple[I64, I64]:
    """(first entry, length) of every run of neighbours that are equal in all `columns`."""
    first = np.flatnonzero(starts(*columns))
    return first, np.diff(np.append(first, len(columns[0])))


def chain_steps(chain: I32 | None) -> tuple[I32, I32]:
    """(op, next op of its chain). `chain`: `Ops.chain`."""
    if chain is None:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    ops = np.flatnonzero(chain >= 0).astype(np.int32)
    ops = ops[np.argsort(chain[ops], kind="stable")]
    same = chain[ops[1:]] == chain[ops[:-1]]
    return ops[:-1][same], ops[1:][same]


def place_in(key: Array, order: I64 | None = None) -> I64:
    """`[n]` how many entries of the same `key` stand before each entry, in `order` (sorted by `key`; by default they keep their order)."""
    order = np.argsort(key, kind="stable") if order is None else order
    place = np.empty(len(key), np.int64)
    place[order] = spans(0, runs(key[order])[1])
    return place
