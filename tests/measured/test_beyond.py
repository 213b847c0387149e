"""Families beyond the bars: they stay out of the means, and the errors on the packaged measurements."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.base.units import MiB
from dysharp.cli.app import cli
from dysharp.measured.beyond import beyond_errors
from dysharp.measured.families.allreduce import BY_NCCL
from dysharp.measured.family import classify
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import GEMM, VLLM, allreduce_line, line, write

TABLE = Path(__file__).parents[2] / "docs" / "validation-tables" / "beyond.csv"
KEYS = ("family", "by", "system", "hardware")


def test_they_are_in_no_mean(tmp_path: Path) -> None:
    gemm = line("g-1", hardware="B200", config=GEMM)
    path = write(tmp_path, gemm, allreduce_line(VLLM, bytes=64), allreduce_line(VLLM, id_="a-2", bytes=128 * MiB))
    page = tmp_path / "a.md"
    shown = CliRunner().invoke(cli, ["validate", "--data", str(path), "--json", "--page", str(page), "-j", "1"])
    fields = json.loads(shown.stdout)
    assert [row["family"] for row in fields["families"]] == ["dense-gemm"]
    assert (fields["overall"]["n_rows"], fields["unsupported"]) == (1, [])
    assert [(row["family"], row["by"], row["system"], row["n"], row["n_rows"]) for row in fields["beyond"]] == [
        ("custom-allreduce", "program", "all", 1, 2),
        ("custom-allreduce", "program", VLLM, 1, 2),
    ]
    assert fields["beyond"][0]["unpredicted"] == f"1 {BY_NCCL}"
    assert "## Beyond the bars" in page.read_text()
    write(tmp_path, allreduce_line(VLLM, bytes=64))
    assert "custom-allreduce" in CliRunner().invoke(cli, ["validate", "--data", str(path), "-j", "1"]).stdout


@pytest.mark.long
def test_the_table_of_the_page_is_current(packaged_measurements) -> None:
    """Counts and errors of families in one domain, with nothing fitted to these measurements. They are regression values."""
    known = classify(packaged_measurements)._keep(lambda family: family is not None and not family.between).beyond_bars()
    classified, predicted = predict(known, fitted_values())
    entries = beyond_errors(classified, fitted_values(), predicted)
    found = {tuple(row[key] for key in KEYS): row for row in entries}
    with TABLE.open(newline="") as file:
        shown = {tuple(row[key] for key in KEYS): row for row in csv.DictReader(file) if row["family"] in {family for family, *_ in found}}
    assert {key: (row["n"], row["n_rows"]) for key, row in found.items()} == {key: (int(row["n"]), int(row["n_rows"])) for key, row in shown.items()}
    for error in ("median_ape", "p90_ape", "bias"):
        errors = {key: float(row[error]) for key, row in shown.items() if row["n"] != "0"}
        assert {key: row[error] for key, row in found.items() if row["n"]} == pytest.approx(errors, rel=1e-3)
        assert len(errors) > 40
