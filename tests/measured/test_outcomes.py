"""Regression values: what every family makes of its measurements, and of the same measurements with one cell or key changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dysharp.measured.family import all_families
from dysharp.measured.measurements import Measurement
from tests.measured.checksums import changed, read
from tests.measured.outcomes import FILE, cases_of, packaged, programs_of, with_programs, without_engine

STORED = read(FILE)
ByName = dict[tuple[str, str], Measurement]
AGAIN = "python tests/measured/write_tables.py writes the table anew"


@pytest.fixture(scope="module")
def by_name() -> ByName:
    """The measurements of the table, by family and id."""
    found = {m.id: m for m in packaged()}
    return {(family, name): found[name] for family, name, *_ in (key.split(" ") for key in STORED)}


@pytest.fixture
def _no_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_engine(patch)
        yield


def of_family(name: str, by_name: ByName) -> list[Measurement]:
    """The measurements of a family, in the order of the table."""
    return [by_name[name, one] for one in dict.fromkeys(key.split(" ")[1] for key in STORED if key.startswith(f"{name} "))]


def stored(name: str, programs: bool) -> dict[str, float]:
    """The part of the table of a family."""
    return {key: value for key, value in STORED.items() if key.startswith(f"{name} ") and (key.split(" ")[2] == "Program") == programs}


@pytest.mark.parametrize("name", list(all_families()))
def test_cases_and_closed_forms_are_the_stored_ones(name: str, by_name: ByName) -> None:
    assert changed(cases_of(name, of_family(name, by_name)), stored(name, programs=False)) == [], AGAIN


@pytest.mark.parametrize("name", with_programs())
@pytest.mark.usefixtures("_no_engine")
def test_programs_of_families_are_the_stored_ones(name: str, by_name: ByName) -> None:
    assert changed(programs_of(name, of_family(name, by_name)), stored(name, programs=True)) == [], AGAIN
