"""Small binary heaps in shared arrays: (key, id) ascending, offset `base`, size kept by the caller.

Tree of minima over the sources of events: a few hundred sources each own one pending time. Ties go to the lower source.
"""

from dysharp.engine.kernel import block


@block
def heap_push(keys, ids, base, size, key, entry):
    """Push; the caller adds one to its size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        pk = keys[base + parent]
        if pk < key or (pk == key and ids[base + parent] < entry):
            break
        keys[base + i] = pk
        ids[base + i] = ids[base + parent]
        i = parent
    keys[base + i] = key
    ids[base + i] = entry


@block
def heap_pop(keys, ids, base, size):
    """Drop the smallest of `size` entries; the caller takes one off its size."""
    last = size - 1
    key = keys[base + last]
    entry = ids[base + last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        right = child + 1
        if right < last and (
            keys[base + right] < keys[base + child] or (keys[base + right] == keys[base + child] and ids[base + right] < ids[base + child])
        ):
            child = right
        if key < keys[base + child] or (key == keys[base + child] and entry < ids[base + child]):
            break
        keys[base + i] = keys[base + child]
        ids[base + i] = ids[base + child]
        i = child
    keys[base + i] = key
    ids[base + i] = entry


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
