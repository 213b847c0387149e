"""Bit sets in words of int64 (unsigned arithmetic would turn into floats), and round robin over them.

Words hold 64 bits, those of `mark` (blocks/ready.py), `bit_take` and `bit_take_after` 32.
"""

from dysharp.engine.kernel import block, lowest


@block
def split(word):
    """The lowest member of a non-empty set, and the set without it."""
    return lowest(word), word & (word - 1)


@block
def pick(word, start):
    """Round robin: lowest member at or above `start` (0 .. 63) of a non-empty set, else the lowest."""
    high = word & (-1 << start)
    return lowest(high if high != 0 else word)


@block
def set_after(words, row, cursor):
    """Round robin: lowest member above `cursor` of the bit set words[row] [n_words], else the lowest; -1 if empty."""
    n = words.shape[1]
    found = -1
    at = (cursor + 1) >> 6
    if at < n:
        w = words[row, at] & (-1 << ((cursor + 1) & 63))
        while w == 0 and at + 1 < n:
            at += 1
            w = words[row, at]
        if w != 0:
            found = (at << 6) + lowest(w)
    if found < 0:
        for i in range(n):
            if words[row, i] != 0:
                found = (i << 6) + lowest(words[row, i])
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
    low = lowest(words[word])
    words[word] &= ~(1 << low)
    return (word << 5) + low


@block
def bit_take_after(words, word, low):
    """Remove and return the lowest bit above `low` (-1 .. 31) of a word of the bit set `words` [n_words]; -1 if there is none."""
    above = words[word] & ~((2 << low) - 1 if low >= 0 else 0)
    bit = -1
    if above != 0:
        bit = lowest(above)
        words[word] &= ~(1 << bit)
    return bit
