"""Whole shapes and GPUs held out of the fit."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.family import classify
from dysharp.measured.hold_out import SAMPLE, _sample, held_out, hold_out_table
from dysharp.measured.predictions import predict
from dysharp.measured.refit import NEUTRAL
from dysharp.specs.fitted import fitted, fitted_values
from tests.measured.csv_lines import ep_line, line, read, some_gemms

NAMES = ("hbm.fraction", "gpu.kernel_us", "hopper.bf16_sustained", "gemm.tile_us", "sm.quantise_values", "sm.overlap", "attention.light_us")
GEMMS = {name: c for name, c in fitted().items() if name in NAMES}
"""The constants of dense GEMMs on Hopper."""


@pytest.mark.slow
def test_hold_out_leaves_whole_shapes_out() -> None:
    classified, predicted = predict(classify(some_gemms()), fitted_values())
    shapes = held_out(classified.parsed, GEMMS, "shape")
    by = {row["family"]: row for row in hold_out_table(classified.parsed, predicted, shapes.predicted, "shape")}
    assert by["dense-gemm"]["groups"] == 3
    assert by["macro"]["held_out"] > 0
    gpus = held_out(classified.parsed, GEMMS, "gpu")
    single = hold_out_table(classified.parsed, predicted, gpus.predicted, "gpu")
    assert single[0]["held_out"] is None  # one GPU: nothing is left to fit on
    assert {row["from"] for row in gpus.borrowed} == {NEUTRAL}


def test_a_fold_samples_families_that_programs_predict() -> None:
    parsed = classify(read(*(ep_line(f"d-{tokens}", tokens) for tokens in range(1, 101)), line())).parsed
    keep = np.ones(101, bool)
    keep[:50] = False
    chosen = _sample(parsed, keep)
    assert chosen[:50].sum() == 0
    assert chosen[50:100].sum() == SAMPLE
    assert chosen[50]
    assert chosen[99:].all()  # the last call, and the GEMM, which has no Program


def test_folds_of_programs_are_predicted_by_programs_with_their_own_constants() -> None:
    parsed = classify(read(*(ep_line(f"d-{hidden}-{tokens}", tokens, hidden=hidden) for hidden in (512, 1024) for tokens in (8, 16, 24)))).parsed
    held = held_out(parsed, fitted(), "shape")
    assert np.isfinite(held.predicted).all()
    first = {n: source for row in held.borrowed if row["held_out"] == "fold 1 of 2" for n, source in [(row["constant"], row["from"])]}
    assert first["link.fraction"] == NEUTRAL  # of a stage without rows
    assert first["trt.token_us"] == NEUTRAL
