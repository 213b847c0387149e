"""The changes that advice tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.api.what_if import _sizes
from dysharp.specs import load_cluster


@pytest.mark.parametrize(("used", "most", "tried"), [(32, 72, [16, 64]), (64, 72, [32]), (8, 0, [4]), (2, 8, [4]), (1, 2, [2])])
def test_half_and_twice_the_gpus_that_the_machine_has(used: int, most: int, tried: list[int]) -> None:
    """`most` = 0: the machine has no more GPUs than those in use. One GPU is no size to compare with."""
    assert _sizes(replace(load_cluster("paper-gh200-nvl32"), n_gpus=used, max_gpus=most)) == tried
