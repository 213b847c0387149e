"""`program.csr`: sorts by counting."""

import numpy as np
import pytest

from dysharp.program.csr import group, stable_order


@pytest.mark.parametrize("most", [0, 1, 255, 65_535, 65_536, 1 << 31, 1 << 40])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_stable_order_is_a_stable_sort(most: int, n: int) -> None:
    key = np.random.default_rng(most).integers(0, most, n, np.int64, endpoint=True)
    np.testing.assert_array_equal(stable_order(key), np.argsort(key, kind="stable"))


def test_rows_of_an_owner_stay_in_table_order() -> None:
    ptr, order = group(np.array([2, 0, 2, 0], np.int32), 3)
    assert ptr.tolist() == [0, 2, 2, 4]
    assert order.tolist() == [1, 3, 0, 2]
