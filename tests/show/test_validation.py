"""The validation page and its plot."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.api.validation import validate
from dysharp.base.errors import ConfigError
from dysharp.measured.family import families_in_bars
from dysharp.show.plots import save_figure
from dysharp.show.validation_page import plot_validation, write_page
from tests.measured.csv_lines import write


def test_the_page_shows_its_plot(tmp_path):
    write_page(validate(write(tmp_path)), tmp_path / "v.md")
    assert "](figures/v.svg)" in (tmp_path / "v.md").read_text()
    assert (tmp_path / "figures" / "v.svg").stat().st_size > 1000
    tables = {path.stem: path.read_text().splitlines() for path in (tmp_path / "v-tables").iterdir()}
    assert {"groups", "sizes", "worst", "constants", "counted"} <= set(tables)
    assert tables["groups"][0] == "family,kind,system,hardware,regime,n,median_ape,p90_ape,mape,bias"
    assert len(tables["groups"]) == 2
    assert "| [groups.csv](v-tables/groups.csv) | 1 |" in (tmp_path / "v.md").read_text()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "figures").write_text("no folder")
    with pytest.raises(ConfigError, match="figures: File exists, expected a folder to write to"):
        write_page(validate(write(tmp_path)), tmp_path / "w" / "v.md")


def test_plot_has_a_point_per_case():
    ax = plot_validation((("a", 1.0, 1.1), ("a", 2.0, 2.1), ("b", 3.0, 2.0)))
    assert [len(drawn.get_xdata()) for drawn in ax.get_lines()] == [2, 1, 2]  # families, then the line of equality
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("measured (us)", "predicted (us)")


def test_a_plot_of_many_points_is_a_small_file(tmp_path):
    rng = np.random.default_rng(0)
    real = 10 ** rng.uniform(0.5, 4.5, 4000)
    points = tuple((families_in_bars()[i % 9], float(us), float(us * rng.normal(1, 0.1))) for i, us in enumerate(real))
    save_figure(plot_validation(points), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size < 200_000
