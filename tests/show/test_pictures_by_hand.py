"""Pictures and tables from values made by hand: titles, squares of a heat map, operators that share a band, names of long tables."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.analysis.load import Load
from dysharp.show.html_report import LEVELS, _heat
from dysharp.show.plots import plot_pareto
from dysharp.show.timeline import BINS, _at_once
from dysharp.show.validation_page import _long_tables


def load(pairs: list[list[int]]) -> Load:
    tokens = np.array(pairs, np.int64)
    return Load("auto", "", tokens, np.ones(len(tokens), np.int64))


def test_a_picture_has_the_title_that_it_is_given() -> None:
    records = [(1.0, 5.0), (2.0, 9.0)]
    assert plot_pareto(records, ("time_us", "use"), "a study").get_title(loc="left") == "a study"
    assert plot_pareto(records, ("time_us", "use")).get_title(loc="left") == ""


@pytest.mark.parametrize("most", [0, 3, 17, 1000])
def test_a_heat_map_has_each_pair_of_gpus_once_in_the_colour_of_its_tokens(most: int) -> None:
    n = 5
    tokens = np.random.default_rng(most).integers(0, most + 1, (n, n))
    paths, bounds = _heat(load(tokens.tolist()))
    assert len(paths) == len(bounds) <= LEVELS
    seen = [(int(y), int(x), low, high) for path, (low, high) in zip(paths, bounds, strict=True) for x, y in re.findall(r"M(\d+) (\d+)h", path)]
    assert sorted((y, x) for y, x, _, _ in seen) == [(y, x) for y in range(n) for x in range(n) if x != y]
    assert all(low <= tokens[y, x] <= high for y, x, low, high in seen)


def test_the_busiest_receiver_is_over_the_mean_of_what_comes_from_others() -> None:
    """GPU 2 gets 3 + 5 of the 12 tokens that go by a link; what stays on a GPU does not count."""
    found = load([[9, 1, 3], [1, 9, 5], [0, 2, 0]])
    assert found.received_max_mean == pytest.approx(8 / (12 / 3))
    assert found.pair_max_mean == pytest.approx(5 / (12 / 6))


@pytest.mark.parametrize(("share", "bins", "shown"), [(0.25, BINS // 100, True), (0.24, BINS, False), (1.0, BINS // 100 - 1, False), (0.3, 30, True)])
def test_two_operators_are_shown_together_from_a_quarter_of_each_in_a_hundredth_of_the_time(share: float, bins: int, shown: bool) -> None:
    used = np.zeros((3, BINS))
    used[0] = 1.0
    used[2, :bins] = share
    assert _at_once({(0, 0): used, (1, 2): np.zeros((3, BINS))}) == ([(0, 2)] if shown else [])


@pytest.mark.slow
def test_long_tables_have_the_name_of_a_file_and_columns() -> None:
    rows: list[dict[str, Any]] = [{"between": "", "family": "f"}, {"between": "bars", "family": "f"}]
    kinds = ("beyond", "unsupported", "groups", "regimes", "sizes", "worst", "borrowed", "fitted_constants", "counted_numbers", "bars", "hold_out")
    done: Any = SimpleNamespace(**dict.fromkeys(kinds, rows), out_of_sight=rows)
    tables = _long_tables(done)
    assert len(tables) == 13
    assert all(table.file.replace("-", "_").isidentifier() and not table.meaning.isidentifier() for table, _ in tables)
    names = [[one.name for one in table.columns.own] for table, _ in tables]
    assert all(len(own) > 1 and all(map(str.isidentifier, own)) for own in names)
