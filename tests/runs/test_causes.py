"""One table names what takes the time: every cause of a Row has words, and all outputs print the same ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp
from dysharp.api.comparison import limits_sentence
from dysharp.cli.texts.comparison_text import print_comparison
from dysharp.cli.texts.row_text import print_row
from dysharp.runs.causes import STALLS, cause_names, causes, short_names
from dysharp.show.html_report import render, report_of_rows

ONE = {"gpus": 4, "tokens": 16}
RUNS: dict[str, dict[str, Any]] = {
    "late": ONE | {"start": "fixed:500"},
    "hw": ONE | {"cluster": "hw-dgx-h100"},
    "domains": {"cluster": "paper-dgx-h100-x4", "model": "S-8", "gpus": 16, "tokens": 16},
    "pairs": {"cluster": "hw-mi300x", "gpus": 8, "tokens": 16},
}


@pytest.fixture(scope="module", params=RUNS)
def row(request: pytest.FixtureRequest) -> dysharp.Row:
    return dysharp.run("mori" if request.param == "pairs" else "deepep", **RUNS[request.param])


def test_every_cause_has_words(row: dysharp.Row) -> None:
    assert set(row.attribution) <= set(causes())
    assert set(row.stalls) == set(STALLS)


def test_a_run_and_a_page_print_the_same_words(row: dysharp.Row, capsys: pytest.CaptureFixture[str]) -> None:
    print_row(row)
    printed = " ".join(capsys.readouterr().out.split())
    page = render(report_of_rows([row.to_dict()], "x"))
    short = short_names()
    for cause, us in row.attribution.items():
        assert (f"{short[cause]} {us:.1f} us" in printed) == (f"{us:.1f}" != "0.0")
        assert us < 0.05 or f"{short[cause]}: " in page or f">{short[cause]}<" in page


def test_sentences_say_more_than_lists(row: dysharp.Row) -> None:
    names = cause_names(row)
    assert set(names) == set(causes())
    assert names["nic_out_us"] == short_names()["nic_out_us"] == "NICs out"
    assert ("copies" in names["sm_us"]) == (row.form == "real")
    alone = replace(row, attribution={cause: 0.0 for cause in row.attribution} | {"host_us": row.time_us})
    assert "launches, barriers and other software (100%)" in limits_sentence((alone,), {row.form: row.system})
    small = replace(row, workload_bound_us=0.0123)  # "0.0 us" bounds nothing
    assert "can take less than 0.01 us" in limits_sentence((small,), {row.form: row.system})


@pytest.mark.parametrize(("system", "copies"), [("cann-ep", True), ("moe-hub", False), ("ideal", False)])
def test_cores_that_copy_rows_in_a_paper_form_are_no_gemms(system: str, copies: bool) -> None:
    """cann-ep's vector cores take most of the time; the sentence called it expert GEMMs."""
    row = dysharp.run(system, **ONE)
    assert cause_names(row)["sm_us"] == ("GEMMs and copies of communication kernels on the SMs" if copies else "expert GEMMs on the SMs")
    dense = replace(row, workload="sub-layer L1")
    assert copies or cause_names(dense)["sm_us"] == "GEMMs on the SMs"


def test_sub_layers_name_the_system_whose_loads_did_not_merge_and_what_they_charge(capsys: pytest.CaptureFixture[str]) -> None:
    """Three systems said "688 of 768 loads did not merge", and the table had "without software costs" where launches took 35 % of the path."""
    done = dysharp.compare(["cais", "cais-base"], workload="sub-layer:2048x1024x256x1024", cluster="paper-cais-h100", gpus=4)
    print_comparison(done)
    assert "paper forms, with launches at different times; speed-up over cais" in capsys.readouterr().out
    assert [line.split(" of ")[0] for line in done.header if "did not merge" in line] == ["warning: cais-base: 688"]
