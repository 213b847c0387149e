"""Tournament tree over the sources of events: a few hundred sources each own one pending time. Ties go to the lower leaf."""

from dysharp.uarch.kernel import block


@block
def tree_set(times, winner, leaf, t):
    """Source `leaf` is next due at `t`. times [n] int64, winner [2n] int32 with n a power of two; winner[1] is the earliest leaf."""
    times[leaf] = t
    node = (leaf + len(times)) >> 1
    while node >= 1:
        a = winner[2 * node]
        b = winner[2 * node + 1]
        if times[b] < times[a]:
            winner[node] = b
        else:
            winner[node] = a
        node >>= 1
