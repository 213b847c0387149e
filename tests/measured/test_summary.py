"""The packaged table of errors: what is written is read back."""

from __future__ import annotations

from dysharp.measured.family import classify
from dysharp.measured.predictions import measured_values, predict
from dysharp.measured.summary import summarise
from dysharp.measured.trust import family_errors
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import ep_line, line, read


def test_the_summary_is_read_back(tmp_path) -> None:
    classified, predicted = predict(classify(read(ep_line("a", 16), line())), fitted_values())
    path = tmp_path / "validated.toml"
    path.write_text(summarise(classified.parsed, predicted))
    table = family_errors(path)
    assert table["deepep-dispatch", "h100-sxm"].by == "program"
    assert table["dense-gemm", "h100-sxm"].by == "rate form"


def test_bars_elsewhere_are_errors_of_rows_that_were_held_out(tmp_path) -> None:
    """Not those of the fit: twice the measured value while a GPU is held out is 100 % off. One GPU alone has no such entry."""
    other = line("b").replace("H100-SXM", "H800-SXM5").replace("vLLM linear", "DeepGEMM")
    classified, predicted = predict(classify(read(ep_line("a", 16), line(), other)), fitted_values())
    path = tmp_path / "validated.toml"
    path.write_text(summarise(classified.parsed, predicted, 2 * measured_values(classified.parsed)))
    table = family_errors(path)
    assert {gpu for family, gpu in table if family == "dense-gemm"} == {"h100-sxm", "h800", "other"}
    assert (table["dense-gemm", "other"].n, table["dense-gemm", "other"].p90) == (2, 100)
    assert ("deepep-dispatch", "other") not in table
