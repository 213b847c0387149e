"""`program.csr`: sorts by counting, runs and places in groups."""

import numpy as np
import pytest

from dysharp.program.csr import group, place_in, runs, spans, stable_order, starts


@pytest.mark.parametrize("most", [0, 1, 255, 65_535, 65_536, 1 << 31, 1 << 40])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_stable_order_is_a_stable_sort(most: int, n: int) -> None:
    key = np.random.default_rng(most).integers(0, most, n, np.int64, endpoint=True)
    np.testing.assert_array_equal(stable_order(key), np.argsort(key, kind="stable"))


def test_rows_of_an_owner_stay_in_table_order() -> None:
    ptr, order = group(np.array([2, 0, 2, 0], np.int32), 3)
    assert ptr.tolist() == [0, 2, 2, 4]
    assert order.tolist() == [1, 3, 0, 2]


def test_runs_and_places_in_groups() -> None:
    key, none = np.array([5, 5, -1, 5, -1]), np.zeros(0, np.int32)
    assert starts(key).tolist() == [True, False, True, True, True]
    assert starts(key, np.array([0, 1, 1, 1, 1])).all()
    assert [part.tolist() for part in runs(key)] == [[0, 2, 3, 4], [2, 1, 1, 1]]
    assert place_in(key).tolist() == [0, 1, 0, 2, 1]
    assert place_in(key, np.array([4, 2, 3, 1, 0])).tolist() == [2, 1, 1, 0, 0]
    assert spans(np.array([7, 3, 1]), np.array([2, 0, 1])).tolist() == [7, 8, 1]
    assert spans(0, np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    assert [len(part) for part in (*runs(none), starts(none), place_in(none), spans(0, none))] == [0] * 5
