"""Small binary heaps in shared arrays: (key, id) ascending, offset `base`, size kept by the caller."""

from dysharp.uarch.kernel import kernel


@kernel
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


@kernel
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
