"""When an emulated layer holds, and what its experts compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp import emulate
from dysharp.functional.emulation import Emulation
from dysharp.functional.experts import GatedExperts
from tests.functional.stored_emulations import SMALL


def test_a_layer_holds_if_it_is_exact_and_near() -> None:
    found = emulate("dysharp", **SMALL)
    assert isinstance(found, Emulation)
    near, far = replace(found, bound=0.25, max_rel_error=0.25), replace(found, bound=0.25, max_rel_error=0.5)
    assert [one.holds for one in (near, far, replace(near, exact=False), replace(far, exact=False))] == [True, False, False, False]


def test_products_of_gated_experts_keep_the_size_of_their_rows() -> None:
    experts = GatedExperts(6, 40, 30, seed=4)
    rows = np.random.default_rng(1).standard_normal((500, 40)).astype(np.float32)
    first = experts.gemm1(2, rows)
    assert first.shape == (500, 60)
    assert first.std() == pytest.approx(1, rel=0.1)
    assert experts.gemm2(2, rows[:, :30]).std() == pytest.approx(1, rel=0.1)
