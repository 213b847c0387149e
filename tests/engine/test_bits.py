"""Bit sets and their round robin, against Python sets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dysharp.engine.blocks.bits import bit_take, bit_take_after, lowest, pick, set_after, set_empty, split
from dysharp.engine.kernel import kernel
from dysharp.engine.packet.links import dirty_mark, dirty_take


@kernel
def _lowest(word):
    return lowest(word)


@kernel
def _split(word):
    return split(word)


@kernel
def _after(word, cursor):
    return pick(word, cursor + 1)


@kernel
def _set_after(words, cursor):
    return set_after(words, 0, cursor)


@kernel
def _empty(words):
    return set_empty(words, 0)


def after(members: set[int], cursor: int) -> int:
    """The member that round robin serves behind `cursor`; -1 of an empty set."""
    return min((m for m in members if m > cursor), default=min(members, default=-1))


def words_of(members: set[int], n_words: int, bits: int) -> np.ndarray:
    values = [sum(1 << (m % bits) for m in members if m // bits == w) for w in range(n_words)]
    return np.array([[v - (1 << 64) if v >> 63 else v for v in values]], np.int64)


def test_every_single_bit() -> None:
    assert [_lowest(1 << i) for i in range(63)] == list(range(63))
    assert [_split(7 << i) for i in range(60)] == [(i, 6 << i) for i in range(60)]


@pytest.mark.parametrize("seed", range(10))
def test_round_robin(seed: int) -> None:
    draw = random.Random(seed)
    members = set(draw.sample(range(32), draw.randint(1, 6)))
    for cursor in range(-1, 32):
        assert _after(int(words_of(members, 1, 32)[0, 0]), cursor) == after(members, cursor)


@pytest.mark.parametrize("seed", range(10))
def test_round_robin_over_several_words(seed: int) -> None:
    draw = random.Random(seed)
    members = set(draw.sample(range(3 * 64), draw.randint(0, 6)))
    words = words_of(members, 3, 64)
    assert _empty(words) == (not members)
    for cursor in range(-1, 3 * 64):
        assert _set_after(words, cursor) == after(members, cursor)


@kernel
def _take_all(words, word, out):
    n = 0
    low = bit_take_after(words, word, -1)
    while low >= 0:
        out[n] = low
        n += 1
        low = bit_take_after(words, word, low)
    return n


@kernel
def _take(words, word):
    return bit_take(words, word)


def test_taking_in_order_empties_a_word() -> None:
    words, out = np.array([0, 0b1010_0001, 1 << 31], np.int64), np.zeros(32, np.int64)
    assert out[: _take_all(words, 1, out)].tolist() == [0, 5, 7]
    assert _take(words, 2) == 2 * 32 + 31
    assert not words.any()


@kernel
def _mark(dirty, i):
    dirty_mark(dirty, i)


@kernel
def _dirty_take(dirty):
    return dirty_take(dirty)


def test_dirty_set_gives_its_members_in_order() -> None:
    dirty, order = np.zeros(1 + 3, np.int64), []
    for i in (150, 3, 63, 64, 3):
        _mark(dirty, i)
    while dirty[0] != 0:
        order.append(_dirty_take(dirty))
    assert order == [3, 63, 64, 150]
