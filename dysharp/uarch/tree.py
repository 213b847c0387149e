"""Tournament tree over the sources of events: a few hundred sources each own one pending time. Ties go to the lower leaf."""

from dysharp.uarch.kernel import block


@block
def tree_set(times, winner, leaf, t):
    """Source `leaf` is next due at `t`. times [n] int64, winner [2n] int32 with n a power of two; winner[1] is the earliest leaf."""
    times[leaf] = t
    node = (leaf + len(times)) >> 1
    while node >= 1:
        before = winner[node]
        a = winner[2 * node]
        b = winner[2 * node + 1]
        after = b if times[b] < times[a] else a
        winner[node] = after
        if before != leaf and after != leaf:
            break  # this source neither held nor wins this match: nothing above has changed
        node >>= 1
