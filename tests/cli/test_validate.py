"""`dysharp validate`: what it prints, writes and says about measurements that it left out."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dysharp.api.validation import validate
from dysharp.cli.app import cli
from dysharp.errors import ConfigError
from tests.measured.csv_lines import GEMM, line, write


def test_command(tmp_path):
    path = write(tmp_path)
    run = CliRunner()
    done = run.invoke(cli, ["validate", "--data", str(path), "--json"])
    assert done.exit_code == 0
    fields = json.loads(done.stdout)
    assert set(fields) >= {"groups", "overall", "families", "fitted_constants", "unsupported"}
    assert set(fields["groups"][0]) >= {"family", "kind", "system", "hardware", "n", "mape", "median_ape", "p90_ape", "bias"}
    assert set(fields["overall"]) >= {"n", "median_ape", "p90_ape", "macro_median_ape", "macro_p90_ape"}
    shown = run.invoke(cli, ["validate", "--data", str(path), "--groups", "--plot", str(tmp_path / "a.svg"), "--page", str(tmp_path / "a.md")])
    assert "dense-gemm" in shown.stdout
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert (tmp_path / "a.md").read_text().startswith("<!-- Generated: dysharp validate --hold-out")


def test_command_says_which_rows_it_left_out(tmp_path):
    path = write(tmp_path)
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    path.write_text(path.read_text() + f"{odd}\n{line('a-4').replace('H100-SXM', '8xMI300X')}\n")
    run = CliRunner()
    shown = run.invoke(cli, ["validate", "--data", str(path)]).stdout
    assert "all 2 rows with a prediction" in shown
    assert "2 rows without a prediction; 0 count against coverage" in shown
    for part in ("not of a family that is predicted", "routing_stat", "a-3", "no packaged GPU of this kind", "a-4"):
        assert part in shown
    every = run.invoke(cli, ["validate", "--data", str(path), "--groups"]).stdout
    assert "routing_stat" in every
    page = tmp_path / "a.md"
    run.invoke(cli, ["validate", "--data", str(path), "--page", str(page)])
    assert "1 more measurements belong to no family: routing_stat 1." in page.read_text()


def test_own_constants_are_judged(tmp_path):
    gemms = [line(f"g-{m}", config=GEMM | {"m": m}, value=0.06 * m) for m in (1024, 2048, 4096, 8192, 16384)]
    path, own = write(tmp_path, *gemms), tmp_path / "own.toml"
    run = CliRunner()
    assert run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own)]).exit_code == 0
    packaged, fitted_ = (json.loads(run.invoke(cli, ["validate", "--data", str(path), "--json", *more]).stdout)["overall"]["median_ape"]
                         for more in ([], ["--constants", str(own)]))
    assert fitted_ < packaged
    text = own.read_text()
    for wrong, message in ((text.replace("[link.fraction]", "[link.part]"), "unknown constant"), (text.split("[link.fraction]")[0], "expected also")):
        own.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            validate(path, constants=own)
    done = run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own), "--constants", str(own)])
    assert "found --refit beside --constants" in str(done.exception)
