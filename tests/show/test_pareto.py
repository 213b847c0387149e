"""The front of a study with two objectives: no point of it is beaten, and every other point is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dysharp.show.plots import _front_of, plot_pareto

VALUES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30)


def _beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@given(VALUES)
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    front = [points[i] for i in _front_of(np.array(points, dtype=float))]
    assert sorted(set(front)) == front == sorted(p for p in set(points) if not any(_beats(other, p) for other in points))


def test_a_larger_value_may_be_better() -> None:
    axes = plot_pareto([(1.0, 5.0), (2.0, 9.0), (3.0, 4.0)], ("time_us", "-use_up"))
    points, front = axes.get_lines()
    assert points.get_xydata().tolist() == [[1, 5], [2, 9], [3, 4]]
    assert front.get_xydata().tolist() == [[1, 5], [2, 9]]
    assert axes.get_ylabel() == "use_up, larger is better"
