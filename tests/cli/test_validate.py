"""`dysharp validate`: what it prints, writes and says about measurements that it left out."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dysharp.api.validation import validate
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.cli.texts.validate_text import FAMILIES, print_families, print_more, print_own_rows
from dysharp.measured.family import all_families
from dysharp.measured.validation import Validation
from tests.measured.csv_lines import GEMM, ep_line, line, write


def test_command(tmp_path):
    path = write(tmp_path)
    run = CliRunner()
    done = run.invoke(cli, ["validate", "--data", str(path), "--json"])
    assert done.exit_code == 0
    fields = json.loads(done.stdout)
    assert set(fields) >= {"groups", "overall", "families", "fitted_constants", "unsupported"}
    assert set(fields["groups"][0]) >= {"family", "kind", "system", "hardware", "n", "mape", "median_ape", "p90_ape", "bias"}
    assert set(fields["overall"]) >= {"n", "median_ape", "p90_ape", "macro_median_ape", "macro_p90_ape"}
    assert [row["id"] for row in fields["rows"]] == ["a-1", "a-2"]
    shown = run.invoke(cli, ["validate", "--data", str(path), "--groups", "--plot", str(tmp_path / "a.svg"), "--page", str(tmp_path / "a.md")])
    assert "dense-gemm" in shown.stdout
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert (tmp_path / "a.md").read_text().startswith("<!-- Generated: dysharp validate --page docs/validation.md -->")


OWN_ROWS = """\
mine.csv: 3 of 5 rows are predicted; median error 16.6 %, 1 outside the interval of nine of ten.

id   what             measured  predicted  unit     nine of ten  error %  note
d-1  deepep-dispatch       620      481.2  us        450 to 550    -22.4
g-1  dense-gemm           1200       1331  TFLOPS  1100 to 1500    +10.9
w-1  dense-gemm             12         10  us           9 to 13    -16.7  weak

rows without a prediction
id   why
s-1  nothing predicts the kind 'routing_stat' of the system 'x'
a-4  no packaged GPU of this kind

what: the kind of measurement; the list below explains each kind
error: predicted over measured, minus 1
weak: the file marks the row so; the error is in no mean
nine of ten: nine of ten measurements of such a prediction lie there, if nobody fitted to them
your own constants: dysharp calibrate mine.csv -o mine.toml fits them, where the rows determine them

"""
FAMILY_TABLE = """\
                                                                            median  nine of ten
what             that is                              in scope  predicted  error %     within %
deepep-dispatch  Dispatch of DeepEP's normal kernels         1          1     22.4         22.4
hybrid-ep        Hybrid-EP's kernels                        40         38      9.1         21.0

in scope: rows of one NVLink domain, or node without a switch, that a prediction is promised for
median error: distance of the prediction from the measured value, in percent of the measured value
not used for error bars: hybrid-ep

between NVLink domains (nodes of 8 GPUs with NICs); in no number above
                                                                                 median  nine of ten
what              that is                                  in scope  predicted  error %     within %
deepep-internode  Dispatch and Combine of DeepEP's normal        40         38      9.1         21.0
                  kernels, without their notify

their rows without a prediction
what              rows and why
deepep-internode  2 GPU or NIC not named

2 rows have no prediction. 2: no packaged GPU of this kind
more: --groups (every group, the worst rows, all reasons), --bars (limits that each version of
  dysharp keeps)
your own rows: --data FILE.csv
"""


def report() -> Validation:
    """Three rows with a prediction, one of them left out of the bars, and two without."""
    keys = ("id", "family", "measured", "predicted", "unit", "error", "interval90", "note", "doubt")
    rows = [
        ("d-1", "deepep-dispatch", 620.0, 481.2, "us", -22.4, [450.0, 550.0], "", ""),
        ("g-1", "dense-gemm", 1200.0, 1331.0, "TFLOPS", 10.9, [1100.0, 1500.0], "", ""),
        ("s-1", "", 43.0, None, "bits", None, None, "nothing predicts the kind 'routing_stat' of the system 'x'", ""),
        ("w-1", "dense-gemm", 12.0, 10.0, "us", -16.7, [9.0, 13.0], "weak", ""),
        ("a-4", "dense-gemm", 43.0, None, "us", None, None, "no packaged GPU of this kind", ""),
    ]
    family = {"family": "deepep-dispatch", "n_rows": 1, "n": 1, "median_ape": 22.4, "p90_ape": 22.4}
    beyond = {"family": "hybrid-ep", "system": "all", "n_rows": 40, "n": 38, "median_ape": 9.1, "p90_ape": 21.0}
    beyond |= {"between": "", "unpredicted": ""}
    nodes = beyond | {"family": "deepep-internode", "between": "bars", "unpredicted": "2 GPU or NIC not named"}
    missing = {"reason": "no packaged GPU of this kind", "n": 2}
    return Validation([], [family], [], [], {}, [missing], [], [], beyond=[beyond, nodes], rows=[dict(zip(keys, row, strict=True)) for row in rows])


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_own_rows_as_text(capsys):
    print_own_rows(report(), "mine.csv")
    assert stripped(capsys.readouterr().out) == OWN_ROWS


def test_kinds_of_measurements_as_text(capsys):
    print_families(report())
    print_more(report(), own=False)
    assert stripped(capsys.readouterr().out) == FAMILY_TABLE


def test_every_family_has_a_text():
    assert set(FAMILIES) >= set(all_families())


def test_own_rows_come_first_and_bars_on_request(tmp_path):
    path = write(tmp_path)
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    bare = line("b-1", kind="kernel_launch", system="torch add", config={"timing": "eager"}, value=4)
    path.write_text(path.read_text() + f"{odd}\n{ep_line('a-4', 128).replace('8xH100', '8xMI300X')}\n{bare}\n")
    run = CliRunner()
    shown = run.invoke(cli, ["validate", "--data", str(path)]).stdout
    assert " ".join(shown.split()).startswith(f"{path}: 2 of 5 rows are predicted; median error ")
    assert max(map(len, shown.replace(str(path), "m.csv").splitlines())) <= 100
    for part in ("'routing_stat'", "a-3", "only MoRI's kernels and kernels of one GPU are predicted there", "a-4", "`dysharp calibrate` reads it"):
        assert part in shown
    assert "macro median" not in shown
    for flag in ("--bars", "--groups"):
        assert "macro median error" in run.invoke(cli, ["validate", "--data", str(path), flag]).stdout
    every = run.invoke(cli, ["validate", "--data", str(path), "--groups"]).stdout
    assert "all 2 rows with a prediction" in every
    assert "3 rows without a prediction; 0 count against coverage" in every
    page = tmp_path / "a.md"
    run.invoke(cli, ["validate", "--data", str(path), "--page", str(page)])
    assert "2 more measurements belong to no family: " in page.read_text()


def test_own_constants_are_judged(tmp_path):
    gemms = [line(f"g-{m}", config=GEMM | {"m": m}, value=0.06 * m) for m in (1024, 2048, 4096, 8192, 16384)]
    path, own = write(tmp_path, *gemms), tmp_path / "own.toml"
    run = CliRunner()
    assert run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own)]).exit_code == 0
    packaged, fitted_ = (
        json.loads(run.invoke(cli, ["validate", "--data", str(path), "--json", *more]).stdout)["overall"]["median_ape"]
        for more in ([], ["--constants", str(own)])
    )
    assert fitted_ < packaged
    text = own.read_text()
    for wrong, message in ((text.replace("[link.fraction]", "[link.part]"), "unknown constant"), (text.split("[link.fraction]")[0], "expected also")):
        own.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            validate(path, constants=own)
    done = run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own), "--constants", str(own)])
    assert "found --refit beside --constants" in str(done.exception)
