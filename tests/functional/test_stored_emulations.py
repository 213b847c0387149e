"""Nothing that the functional machine counts or says moves unnoticed: regression values of every system, order of events and fault."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dysharp import emulate
from dysharp.functional.emulation import Emulation
from dysharp.functional.experts import GatedExperts
from tests.functional.stored_emulations import PARTS, SMALL, STORED, rows
from tests.stored_values import SHOWN, differences


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow) if part in ("layers 1", "layers 2") else part for part in PARTS])
def test_emulations_are_the_stored_ones(part: str) -> None:
    found, stored = dict(rows(part)), json.loads(STORED.read_text())
    lines = differences(found, {name: stored[name] for name in found if name in stored})
    assert not lines, "\n".join(lines[:SHOWN])


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
