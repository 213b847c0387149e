"""Programs predict where a family has one, closed forms elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import SimulationError
from dysharp.measured.ep_kernels import kernel_times
from dysharp.measured.family import classify
from dysharp.measured.predictions import ClosedForms, predict, predict_folds
from dysharp.measured.validation import validate_measurements
from dysharp.show.validation_page import _page_of
from dysharp.specs.fitted import fitted, fitted_values
from tests.measured.csv_lines import ep_line, line, read


def test_systems_are_judged_by_their_programs() -> None:
    lines = ep_line("a", 16), ep_line("b", 16, kind="ep_combine"), ep_line("c", 16, system="DeepEP-LL"), line()
    classified, predicted = predict(classify(read(*lines)), fitted_values())
    assert [entry.family.program_us is not None for entry in classified.parsed] == [True, True, True, False]
    times = kernel_times("deepep", classified.parsed[0].case, fitted_values())
    assert predicted[:2] == pytest.approx([times["dispatch"], times["combine"]])
    done = validate_measurements(classified, fitted(), predicted)
    assert {row["family"]: row["by"] for row in done.families} == {
        "deepep-dispatch": "program",
        "deepep-combine": "program",
        "deepep-ll": "program",
        "dense-gemm": "rate form",
    }
    forms = {row["family"]: row for row in done.forms}
    assert set(forms) == {"deepep-dispatch", "deepep-combine", "deepep-ll"}  # nothing to compare a rate form with
    closed = ClosedForms(classified.parsed).values(fitted_values())[0]
    assert forms["deepep-dispatch"]["closed_over_program"] == pytest.approx(100 * (closed / predicted[0] - 1))
    assert "program" in _page_of(done)


def test_a_row_that_its_program_refuses_does_not_end_the_others() -> None:
    lines = ep_line("a", 16), ep_line("b", 16, hidden=16384), line("c")
    classified, predicted = predict(classify(read(*lines)), fitted_values())
    assert [entry.measurement.id for entry in classified.parsed] == ["a", "c"]
    assert np.isfinite(predicted).all()
    (missing,) = classified.missing
    assert (missing.measurement.id, missing.counted) == ("b", True)
    assert "found rows of 32768 B" in missing.reason
    done = validate_measurements(classified, fitted(), predicted)
    assert [(row["ids"], row["n"]) for row in done.unsupported] == [(["b"], 1)]
    parsed = classify(read(lines[1])).parsed
    with pytest.raises(SimulationError, match=r"measurement b: no prediction: .*32768 B"):
        predict_folds(parsed, [(np.ones(1, bool), fitted_values())])


def test_low_latency_rows_in_bf16_take_longer() -> None:
    lines = [ep_line(dtype, 128, system="DeepEP-LL", hidden=4096, dtype=dtype) for dtype in ("fp8", "bf16")]
    classified, predicted = predict(classify(read(*lines)), fitted_values())
    assert predicted[1] > 1.3 * predicted[0]
    closed = ClosedForms(classified.parsed).values(fitted_values())
    assert closed[1] > 1.3 * closed[0]
