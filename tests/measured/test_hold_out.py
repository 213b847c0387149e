"""Whole shapes and GPUs held out of the fit."""

from __future__ import annotations

from dysharp.measured.classify import classify
from dysharp.measured.hold_out import hold_out
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted, fitted_values
from tests.measured.csv_lines import some_gemms


def test_hold_out_leaves_whole_shapes_out():
    classified, predicted = predict(classify(some_gemms()), fitted_values())
    table = hold_out(classified.parsed, fitted(), "shape", predicted)
    by = {row["family"]: row for row in table}
    assert by["dense-gemm"]["groups"] == 3
    assert by["macro"]["held_out"] > 0
    single = hold_out(classified.parsed, fitted(), "gpu", predicted)
    assert single[0]["held_out"] is None  # one GPU: nothing is left to fit on
