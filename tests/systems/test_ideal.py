"""The ideal layer's tiles: those of a GEMM library, or those of a fused kernel."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY

import dysharp as ds
from dysharp.specs import choice_int, load_cluster
from dysharp.systems import get_system
from dysharp.systems.building.paper_layers import tile_rows
from dysharp.workload import make_routing


@pytest.mark.parametrize("gemms", ["auto", "library", "fused", "fused-second"])
def test_tiles_of_a_real_gpu(gemms: str) -> None:
    """4 GPUs x 20 tokens, top-4 of 16 experts: 20 rows per expert, a fused tile has 64."""
    system = get_system("ideal")
    program = system.plan(TINY, load_cluster("hw-dgx-h100").with_gpus(4), make_routing("uniform", TINY, 4, 20), "fwd", system.options(gemms=gemms))
    assert tile_rows(20) == 64 != choice_int("gemm.tile_rows")
    expected = 64 if gemms.startswith("fused") else choice_int("gemm.tile_rows")
    assert np.unique(program.regions.tile_rows[program.regions.tile_rows > 1]).tolist() == [expected]


def test_no_system_beats_it_by_the_order_of_tiles() -> None:
    """One real GPU, S-2: SMs that prefer the second GEMM read its weights from early on. Systems with this order took 3 of 55 us less."""
    machine = {"model": "S-2", "cluster": "hw-dgx-h100", "gpus": 1, "tokens": 64}
    bound, found = (ds.run(name, **machine) for name in ("ideal", "reduction-only"))
    assert bound.options["gemms"] == "fused-second"
    assert bound.layer_us <= found.layer_us
