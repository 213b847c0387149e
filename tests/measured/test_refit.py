"""The fit of the packaged constants."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.classify import classify
from dysharp.measured.family import all_families
from dysharp.measured.refit import ratios, refit, stages, to_toml
from dysharp.measured.validation import BARS
from dysharp.specs.fitted import fitted, fitted_from_toml, fitted_values
from tests.measured.csv_lines import some_gemms


def test_constants_have_meaning_unit_and_rows_and_are_few():
    table = fitted()
    assert len(table) <= BARS.constants
    for constant in table.values():
        assert constant.low <= constant.value <= constant.high
        assert constant.meaning
        assert constant.fitted_on
    assert {family for families, _ in stages(table) for family in families} <= set(all_families())
    again = fitted_from_toml(to_toml(table, "head"), "x")
    assert {n: c.value for n, c in again.items()} == pytest.approx(fitted_values(), rel=1e-3)


def test_refit_moves_only_constants_with_rows():
    new = refit(classify(some_gemms()).parsed, fitted())
    assert new["link.fraction"] == fitted()["link.fraction"]
    assert new["hopper.bf16_sustained"].value != fitted()["hopper.bf16_sustained"].value


def test_hosts_are_inputs_of_a_machine() -> None:
    """A fit leaves them alone, with or without their rows."""
    parsed = classify(some_gemms()).parsed
    new = refit(parsed, fitted(), np.zeros(len(parsed), bool))
    hosts = {name: c.value for name, c in fitted().items() if name.endswith("host_call_us")}
    assert {name: c.value for name, c in new.items() if c.stage == "given"} == hosts


def test_stages_go_from_one_gpu_to_whole_layers() -> None:
    first = [families[0] for families, _ in stages(fitted())]
    assert first == ["dense-gemm", "nccl", "deepep-dispatch", "hybrid-ep", "fused-layer"]


@pytest.mark.slow
def test_the_packaged_constants_are_what_the_packaged_measurements_give(packaged_predictions) -> None:
    classified, predicted = packaged_predictions
    ratio = ratios(classified.parsed, fitted(), predicted)
    new = {n: c.value for n, c in refit(classified.parsed, fitted(), ratio=ratio).items()}
    packaged = fitted_values()
    # Programs take whole tokens: nothing of them says where between two counts the constant lies.
    assert new.pop("deepep.tokens_in_flight") == pytest.approx(packaged.pop("deepep.tokens_in_flight"), abs=0.5)
    assert new == pytest.approx(packaged, rel=0.05)
