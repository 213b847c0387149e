"""Tree of minima over the sources of events: a few hundred sources each own one pending time. Ties go to the lower source."""

from dysharp.uarch.kernel import block


@block
def tree_set(tree, leaf, t):
    """Source `leaf` is next due at `t`. tree [2n] int64, n a power of two: leaf i at n + i, a node's minimum over its two children.

    The siblings on the way up do not depend on each other, so their loads overlap; it stops where nothing changes.
    """
    node = (len(tree) >> 1) + leaf
    tree[node] = t
    while node > 1:
        t = min(t, tree[node ^ 1])
        node >>= 1
        if tree[node] == t:
            break
        tree[node] = t


@block
def tree_first(tree):
    """The lowest source among the sources due first; their time is tree[1]."""
    n = len(tree) >> 1
    t = tree[1]
    node = 1
    while node < n:
        node <<= 1
        if tree[node] != t:
            node += 1
    return node - n
