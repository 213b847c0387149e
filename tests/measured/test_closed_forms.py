"""Closed forms of many measurements at once."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.family import classify
from dysharp.measured.predictions import ClosedForms, stack
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from tests.measured.csv_lines import GEMM, ep_line, line, read


def test_numbers_are_stacked_and_all_else_is_kept() -> None:
    cases = [entry.case for entry in classify(read(ep_line("a", 16), ep_line("b", 32))).parsed]
    stacked = stack(cases)
    assert stacked.tokens.tolist() == [16, 32]
    assert (stacked.verb, stacked.fp8, stacked.gpu) == ("dispatch", True, "h100-sxm")


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    lines = [ep_line(f"e-{t}-{kind}", t, kind=kind) for t in (8, 99) for kind in ("ep_dispatch", "ep_combine")]
    lines += [line("g", config=GEMM | {"timing": "eager"}, value=500), line("h", value=1.0, unit="ms")]
    parsed, constants = classify(read(*lines)).parsed, fitted_values()
    forms = ClosedForms(parsed)
    alone = [float(e.family.closed_us(e.case, load_gpu(e.case.gpu), constants)) for e in parsed]
    assert forms.us(constants) == pytest.approx(alone, rel=1e-15)
    assert forms.values(constants)[-1] == alone[-1] / 1e3
    assert forms.times(forms.values(constants)) == pytest.approx(alone)


def test_families_without_a_closed_form_have_nan() -> None:
    config = {"ep": 8, "hidden": 1024, "local_experts": 4, "topk": 4, "tokens_per_rank": 64, "sms": 4, "dtype": "fp8"}
    hybrid = {"kind": "ep_dispatch", "system": "Hybrid-EP", "hardware": "8xB200", "metric": "bandwidth", "unit": "GB/s"}
    parsed = classify(read(line(config=config | {"measure": "Kernel only"}, **hybrid), line("b"))).parsed
    assert np.isnan(ClosedForms(parsed).values(fitted_values())).tolist() == [True, False]
