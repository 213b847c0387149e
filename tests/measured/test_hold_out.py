"""Whole shapes and GPUs held out of the fit."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.classify import classify
from dysharp.measured.hold_out import held_out, hold_out_table, neutral_ratio
from dysharp.measured.predictions import predict
from dysharp.measured.refit import NEUTRAL
from dysharp.specs.fitted import fitted, fitted_values
from tests.measured.csv_lines import some_gemms

NAMES = ("hbm.fraction", "gpu.kernel_us", "hopper.bf16_sustained", "gemm.tile_us", "gemm.rowwise_part", "sm.overlap")
GEMMS = {name: c for name, c in fitted().items() if name in NAMES}
"""The constants of dense GEMMs on Hopper."""


def test_hold_out_leaves_whole_shapes_out() -> None:
    classified, predicted = predict(classify(some_gemms()), fitted_values())
    ratio = neutral_ratio(classified.parsed, GEMMS)
    assert ratio == pytest.approx(np.ones(9))  # no Programs
    shapes = held_out(classified.parsed, GEMMS, "shape", ratio)
    by = {row["family"]: row for row in hold_out_table(classified.parsed, predicted, shapes.predicted, "shape")}
    assert by["dense-gemm"]["groups"] == 3
    assert by["macro"]["held_out"] > 0
    gpus = held_out(classified.parsed, GEMMS, "gpu", ratio)
    single = hold_out_table(classified.parsed, predicted, gpus.predicted, "gpu")
    assert single[0]["held_out"] is None  # one GPU: nothing is left to fit on
    assert {row["from"] for row in gpus.borrowed} == {NEUTRAL}
