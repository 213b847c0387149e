"""docs/measurements.md against the queries: every example is read, every key that is read is written down, and needed where it says so."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dysharp.api.validation import PAGE
from dysharp.measured.cluster_fit import BARE, fit_cluster
from dysharp.measured.family import classify, families_in_bars, family_of
from dysharp.measured.measurements import LIMITS, Measurement, measurements_from_csv
from dysharp.specs.fitted import fitted

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
ODD: tuple[Any, ...] = (None, True, "x", "", 0, 0.5, 1, 3, 1e12, [1], {}, "power_law_1", "power_law_x", "int3")
ANYWHERE = {"nodes", "link", "bottleneck", "ep", "status", "refused", "crosses_nodes_by_rdma", "library", "regime", "timing"}
"""Read of every row, to tell whether it is of one NVLink domain and was not withdrawn."""


@dataclass
class Section:
    """Of the page: `needed` by key, "yes", "no" or "one"."""

    title: str
    needed: dict[str, str]
    rows: list[Measurement]


with (ROOT / "docs/measurements/keys.csv").open(newline="", encoding="utf-8") as _file:
    KEYS = list(csv.DictReader(_file))


def keys_of(family: str) -> dict[str, str]:
    """{key: whether it is needed} of a section of the page."""
    return {line["key"]: line["needed"] for line in KEYS if line["family"] == family}


def sections() -> Iterator[Section]:
    for part in TEXT.split("\n## ")[1:]:
        title, blocks = part.splitlines()[0], re.findall(r"```csv\n(.*?)```", part, flags=re.DOTALL)
        if blocks:
            keys = keys_of(title) | (keys_of("all families") if "calibrate" not in title else {})
            yield Section(title, keys, [row for block in blocks for row in measurements_from_csv(block, PAGE)])


SECTIONS = list(sections())
PREDICTED = [(section, row) for section in SECTIONS if "calibrate" not in section.title for row in section.rows]
IDS = [row.id for _, row in PREDICTED]


class Watched(dict[str, Any]):
    """A configuration that notes which keys were asked for."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


def is_predicted(row: Measurement, config: dict[str, Any]) -> bool:
    return len(classify([replace(row, config=config)]).parsed) == 1


def test_every_family_has_a_section() -> None:
    titles = ", ".join(section.title.split(":")[0] for section in SECTIONS)
    assert set(families_in_bars()) <= set(titles.split(", "))
    families = [family_of(row) for _, row in PREDICTED]
    assert {family.name for family in families if family is not None} == set(families_in_bars())


@pytest.mark.parametrize(("section", "row"), PREDICTED, ids=IDS)
def test_every_example_is_predicted_as_its_family(section: Section, row: Measurement) -> None:
    (parsed,) = classify([row]).parsed
    assert parsed.family.name in section.title
    assert set(row.config) <= set(section.needed)


@pytest.mark.parametrize(("section", "row"), PREDICTED, ids=IDS)
def test_every_key_that_is_read_is_written_down(section: Section, row: Measurement) -> None:
    config = Watched(dict(row.config))
    assert is_predicted(row, config)
    assert config.read <= set(section.needed) | ANYWHERE


@pytest.mark.parametrize(("section", "row"), PREDICTED, ids=IDS)
def test_a_key_is_needed_where_the_page_says_so(section: Section, row: Measurement) -> None:
    for key in row.config:
        rest = {name: value for name, value in row.config.items() if name != key}
        assert is_predicted(row, rest) == (section.needed[key] == "no"), key
    assert {key for key, needed in section.needed.items() if needed == "yes"} <= set(row.config)


@pytest.mark.parametrize(("section", "row"), PREDICTED, ids=IDS)
def test_odd_values_never_end_the_others(section: Section, row: Measurement) -> None:
    for key in section.needed:
        for value in ODD:
            assert len(classify([replace(row, config=dict(row.config) | {key: value})]).entries) == 1


def test_rows_for_calibrate_alone_are_used() -> None:
    (section,) = (section for section in SECTIONS if "calibrate" in section.title)
    fit = fit_cluster(section.rows, "h100-sxm", fitted())
    assert (fit.n_rows, fit.skipped) == (3, ())
    assert [row.family for row in fit.errors] == [*(family.name for family in BARE), "all"]


def test_ranges_are_those_of_the_queries() -> None:
    rows = [(line["key"], (int(line["least"]), int(line["most"]))) for line in KEYS if line["least"]]
    assert dict(rows) == LIMITS
    assert set(rows) == set(LIMITS.items()), "one range for each key"
