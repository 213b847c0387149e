"""`dysharp sweep`: what the points share, what tells them apart, CSV, and the example."""

from __future__ import annotations

import csv
import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dysharp.cli.texts.sweep_text import print_sweep, sweep_csv
from dysharp.figures import Point

BASE = "paper-gh200-nvl32"
ROW: dict[str, Any] = {"gpus": 8, "tokens_per_gpu": 64, "bound_us": 10.25, "exposed_comm_us": 4.0, "bound_resource": "gpu[0].down"}
ROWS = {
    Point("deepep", "S-8", BASE, "uniform", gpus=8): ROW | {"time_us": 20.5},
    Point("dysharp", "S-8", BASE, "uniform", gpus=8, options=(("dispatch_window", 32),)): ROW | {"time_us": 13.6},
    Point("dysharp", "S-8", f"{BASE},link_GBps=900", "uniform", gpus=8, options=(("dispatch_window", 32),)): ROW | {"time_us": 9.0},
    Point("dysharp", "S-8", "paper-nvl72", "uniform", gpus=8, options=(("dispatch_window", 32),)): ROW | {"time_us": 8.0},
}
TABLE = """\
all points: model S-8, gpus 8, tokens 64, routing uniform, seed 0, direction fwd, fidelity burst

system   cluster            dispatch_window  cluster.link_GBps  layer us  bound us  exposed comm us
deepep   paper-gh200-nvl32  -                -                      20.5      10.2              4.0
dysharp  paper-gh200-nvl32  32               -                      13.6      10.2              4.0
dysharp  paper-gh200-nvl32  32               900                     9.0      10.2              4.0
dysharp  paper-nvl72        32               -                       8.0      10.2              4.0
bound us: time that the busiest resource of this system needs
"""


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(ROWS)
    assert "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines()) == TABLE


def test_csv_has_a_line_per_point_and_a_column_per_axis() -> None:
    lines = list(csv.DictReader(io.StringIO(sweep_csv(ROWS))))
    assert [line["time_us"] for line in lines] == ["20.5", "13.6", "9.0", "8.0"]
    assert [line["cluster.link_GBps"] for line in lines] == ["", "", "900", ""]
    assert [line["dispatch_window"] for line in lines] == ["", "32", "32", "32"]
    assert {line["tokens"] for line in lines} == {"64"}


def test_an_empty_sweep_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep({})
    assert capsys.readouterr().out == ""
    assert sweep_csv({}).count("\n") == 1


def test_the_example_needs_no_file(dysharp: Any) -> None:
    done = dysharp("sweep", "--example")
    assert (done.code, done.err) == (0, "")
    assert "systems" in tomllib.loads(done.out)["points"]
    assert "dysharp sweep --example" in dysharp("sweep").err


@pytest.mark.slow
def test_files_are_written_where_they_are_asked_for(dysharp: Any, tmp_path: Path) -> None:
    sweep, store = tmp_path / "one.toml", ("--store", str(tmp_path / "store"))
    sweep.write_text(f'[points]\nsystems = ["ideal"]\nmodels = ["S-8"]\ncluster = ["{BASE}"]\ngpus = [4]\ntokens = [4, 8]\n')
    assert dysharp("sweep", str(sweep), *store).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.toml", "store"]
    assert dysharp("sweep", str(sweep), *store, "--csv", str(tmp_path / "all.csv")).code == 0
    assert [line["tokens"] for line in csv.DictReader((tmp_path / "all.csv").read_text().splitlines())] == ["4", "8"]
