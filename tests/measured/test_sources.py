"""How far the sources of one kernel differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.measured.beyond import disagreements, source_of
from dysharp.measured.family import Parsed, classify
from tests.measured.csv_lines import GEMM, line, read


def parsed(*rows: tuple[str, int, float]) -> list[Parsed]:
    """Dense GEMMs of `m` rows on B200 that `source` measured."""
    entries = []
    for at, (source, m, us) in enumerate(rows):
        (measurement,) = read(line(f"g-{at}", hardware="B200", config=GEMM | {"m": m}, value=us))
        entries += classify([replace(measurement, source=source)]).parsed
    return entries


def test_each_case_of_two_sources_counts_once() -> None:
    """The median of one source's repetitions against the other source; the source with more cases comes first."""
    rows = ("b/c@2:x", 64, 10.0), ("b/c@2:y", 64, 20.0), ("b/c@2:x", 128, 20.0), ("b/c@2:x", 256, 40.0), ("a", 64, 18.0), ("a", 128, 19.0)
    (entry,) = disagreements(parsed(*rows))
    assert (entry["family"], entry["source"], entry["other"], entry["n"]) == ("dense-gemm", "b/c", "a", 2)
    assert (entry["least"], entry["median"], entry["most"]) == pytest.approx((-5.0, 7.5, 20.0))


def test_one_source_disagrees_with_nobody() -> None:
    assert disagreements(parsed(("a", 64, 10.0), ("a", 64, 20.0), ("b", 128, 20.0))) == []


@pytest.mark.parametrize("text", ["https://github.com/o/p/pull/3", "github.com/o/p/pull/3", "o/p/pull/3@abc:file", "o/p/pull/3 table 2"])
def test_versions_and_files_are_no_sources(text: str) -> None:
    assert source_of(text) == "o/p/pull/3"
