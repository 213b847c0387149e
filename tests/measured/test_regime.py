"""How measured programs ran."""

from __future__ import annotations

import pytest

from dysharp.measured.family import families_in_bars, get_family
from dysharp.measured.regime import UNKNOWN, regime_of
from tests.measured.csv_lines import GEMM, NORMAL, line, read


@pytest.mark.parametrize(
    ("given", "regime"),
    [
        ({"config": NORMAL | {"proto": "P1"}}, "cached handle"),
        ({"config": NORMAL | {"proto": "P7"}}, "drained GPU"),
        ({"config": NORMAL | {"measure": "Torch API"}}, "torch call"),
        ({"config": NORMAL | {"measure": "Only Kernel Time"}}, "kernel times"),
        ({"config": GEMM}, "CUDA graph"),
        ({"config": GEMM | {"timing": "eager (host-bound below 90 us)"}}, "chained calls"),
        ({"system": "DeepGEMM", "config": GEMM | {"timing": ""}}, "kernel times"),
        ({"config": NORMAL}, "not stated"),
    ],
)
def test_regimes(given: dict[str, object], regime: str) -> None:
    (m,) = read(line(**given))  # type: ignore[arg-type]
    assert regime_of(m) == regime


def test_a_benchmark_that_drains_the_gpu_is_known_by_its_source() -> None:
    (m,) = read(line(config=NORMAL).replace("a source", "github.com/mhoqueanik/moe_ep_benchmark @ba9f8ac"))
    assert regime_of(m) == "drained GPU"


def test_every_judged_family_says_which_regime_it_predicts() -> None:
    assert all(get_family(name).regime != UNKNOWN for name in families_in_bars())
