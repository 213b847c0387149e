"""Bit sets in words of 32 bits held in int64 (unsigned arithmetic would turn into floats), and round robin over them."""

import numpy as np

from dysharp.engine.kernel import block

_ctz = np.zeros(32, np.int64)
for _i in range(32):
    _ctz[(((1 << _i) * 0x077CB531) & 0xFFFFFFFF) >> 27] = _i
CTZ = _ctz


@block
def bit_lowest(word):
    """Index of the lowest set bit of a non-zero 32-bit word (de Bruijn)."""
    return CTZ[(((word & -word) * 0x077CB531) & 0xFFFFFFFF) >> 27]


@block
def bit_after(word, cursor):
    """Lowest set bit of a non-zero word above `cursor` (-1 .. 31), else the lowest of all."""
    high = word & ~((2 << cursor) - 1)
    if cursor < 0 or high == 0:
        high = word
    return bit_lowest(high)


@block
def set_after(words, row, cursor):
    """Round robin: lowest member above `cursor` of the bit set words[row] [n_words], else the lowest; -1 if empty."""
    n = words.shape[1]
    found = -1
    start = (cursor + 1) >> 5
    if start < n:
        w = words[row, start] & ~((1 << ((cursor + 1) & 31)) - 1)
        while w == 0 and start + 1 < n:
            start += 1
            w = words[row, start]
        if w != 0:
            found = (start << 5) + bit_lowest(w)
    if found < 0:
        for i in range(n):
            if words[row, i] != 0:
                found = (i << 5) + bit_lowest(words[row, i])
                break
    return found


@block
def set_empty(words, row):
    """Whether the bit set words[row] [n_words] has no member."""
    empty = True
    for i in range(words.shape[1]):
        if words[row, i] != 0:
            empty = False
    return empty


@block
def bit_take(words, word):
    """Remove and return the lowest member of a non-empty word of the bit set `words` [n_words]."""
    low = bit_lowest(words[word])
    words[word] &= ~(1 << low)
    return (word << 5) + low


@block
def bit_take_after(words, word, low):
    """Remove and return the lowest bit above `low` (-1 .. 31) of a word of the bit set `words` [n_words]; -1 if there is none."""
    above = words[word] & ~((2 << low) - 1 if low >= 0 else 0)
    bit = -1
    if above != 0:
        bit = bit_lowest(above)
        words[word] &= ~(1 << bit)
    return bit
