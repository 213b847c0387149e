"""The packaged tables: they parse, hold what their page says, and travel with the package."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.measured.data import TABLES, read_table
from dysharp.measured.family import REPRINTED, classify
from dysharp.measured.measurements import NO_SWITCH, RETIRED, read_measurements

FOLDER = files("dysharp.measured.data")
PAGE = FOLDER.joinpath("README.md").read_text(encoding="utf-8")
ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 400_000


def test_the_page_counts_the_rows_of_every_table() -> None:
    counts = {name: int(n) for name, n in re.findall(r"^\| `(\w+)` \| (\d+) \| [^|]+ \| [^|]+ \|$", PAGE, flags=re.MULTILINE) if name in TABLES}
    assert counts == {name: len(list(csv.DictReader(io.StringIO(read_table(name))))) for name in TABLES}


def test_the_page_names_every_source_with_its_rows() -> None:
    named = re.findall(r"^\| `([\w-]+)` \| (\d+) \| [^|]+ \| [^|]+ \|$", PAGE, flags=re.MULTILINE)
    counts = {name: int(n) for name, n in named if name not in TABLES}
    assert counts == Counter(re.sub(r"-?\d+$", "", m.id) for m in read_measurements())
    assert all(m.source for m in read_measurements())
    assert {m.config["proto"] for m in read_measurements() if "proto" in m.config} == set(re.findall(r"^\| `(P\d)` \|", PAGE, flags=re.MULTILINE))


def test_files_are_small_and_hold_no_time() -> None:
    """Bytes 4 to 7 of a gzip file are its time; flag 8 of byte 3 says that it has a name."""
    packed = [FOLDER.joinpath(f"{name}.csv.gz").read_bytes() for name in TABLES]
    assert sum(map(len, packed)) < MOST_BYTES
    assert {(data[:3], data[3], data[4:8]) for data in packed} == {(b"\x1f\x8b\x08", 0, bytes(4))}


def test_a_name_that_is_no_table() -> None:
    with pytest.raises(ConfigError, match=r"packaged table 'measurement': unknown.*measurements"):
        read_table("measurement")


@pytest.mark.slow
def test_rows_that_nothing_judges() -> None:
    """Withdrawn rows and other vendors' GPUs have no prediction and do not count; a reprinted number counts once."""
    done = classify(read_measurements())
    assert not any("status" in entry.measurement.config for entry in done.parsed)
    reasons = Counter(entry.reason for entry in done.missing)
    assert (reasons[RETIRED], reasons[REPRINTED]) == (45, 36)
    assert not any(entry.counted for entry in done.missing if entry.reason in (RETIRED, REPRINTED))
    amd = [entry for entry in done.missing if re.search(r"MI3\d\d", entry.measurement.hardware)]
    predicted = Counter(entry.family.name for entry in done.parsed if "MI3" in entry.measurement.hardware)
    assert len(amd) + predicted.total() == sum("MI3" in m.hardware for m in read_measurements())
    assert set(predicted) == {"mori-intranode", "mori-internode"}
    assert Counter(entry.reason for entry in amd)[NO_SWITCH] == 12
    assert not any(entry.counted for entry in amd)


@pytest.mark.slow
def test_the_tables_are_in_wheel_and_sdist(tmp_path: Path) -> None:
    builder = pytest.importorskip("hatchling.builders.wheel")
    wheel = next(builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"dysharp/measured/data/{name}.csv.gz" for name in TABLES} | {"dysharp/engine/flit/router_curves.csv.gz"} <= set(names)
    assert "dysharp/measured/data/README.md" in names
    assert {"dysharp/figures/papers/claims.csv", "dysharp/figures/papers/stored/gain-map.json"} <= set(names)
    sdist = pytest.importorskip("hatchling.builders.sdist")

    included = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {f"dysharp/measured/data/{name}.csv.gz" for name in TABLES} | {"tests/workload/data/olmoe_counts.csv"} <= included
