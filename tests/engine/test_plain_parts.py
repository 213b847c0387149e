"""Parts of kernels as plain Python (`tests/interpreters/plain.py`), so that nothing is compiled: packed words and cleared tables."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.engine.blocks import tables
from dysharp.engine.flit import columns as u
from tests.interpreters.plain import PlainEngine


def test_the_parts_of_a_flit_lie_side_by_side() -> None:
    """Tail and head have a bit each, a slot lies above them, the cycle above the slot."""
    assert u.TAIL_BIT | u.HEAD_BIT == (1 << u.SLOT_SHIFT) - 1
    assert u.TAIL_BIT & u.HEAD_BIT == 0
    assert u.SLOT_MASK << u.SLOT_SHIFT == (1 << u.TIME_SHIFT) - (1 << u.SLOT_SHIFT)


@pytest.mark.parametrize(("n_keys", "n_hubs"), [(0, 1), (3, 1), (20, 4)])
def test_a_cleared_table_has_no_key_and_an_empty_ring_for_every_hub(n_keys: int, n_hubs: int) -> None:
    plain = PlainEngine()._load("engine.blocks.tables")
    keys, hubs = np.full((n_keys + n_hubs, 6), 77), np.full((n_hubs, 8), 55)
    plain.al_clear(n_keys, keys, hubs)
    rings = np.arange(n_keys, n_keys + n_hubs)
    assert (keys[:n_keys] == tables.KEY_EMPTY).all()
    assert (keys[n_keys:, [tables.KEY_PREV, tables.KEY_NEXT]] == rings[:, None]).all()
    assert (keys[n_keys:, tables.KEY_FIRST] == -1).all()
    emptied = [tables.HUB_CACHED, tables.HUB_PENDING, tables.HUB_ALLOCATED]
    assert not hubs[:, emptied].any()
    assert (np.delete(hubs, emptied, axis=1) == 55).all()
