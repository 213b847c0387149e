"""On random Programs of all kinds that the engine takes: wire bytes, attribution and bound hold."""

import numpy as np
import pytest

from dysharp.analysis import attribute, program_bound, wire_table
from dysharp.analysis.phases import LastGpu
from dysharp.engine.burst.run import run_burst
from tests.interpreters.random_programs import random_program


@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 2, 3))])
def test_random_programs(chunk: int) -> None:
    for seed in range(50 * chunk, 50 * chunk + 50):
        program = random_program(seed)
        trace, _ = run_burst(program)
        table = wire_table(program)
        np.testing.assert_array_equal(table.up.sum(axis=1), trace.up_busy, f"seed {seed}")
        np.testing.assert_array_equal(table.down.sum(axis=1), trace.down_busy, f"seed {seed}")
        parts = attribute(program, trace)
        assert sum(parts.values()) == trace.time_ps, seed
        assert min(parts.values()) >= 0, seed
        assert program_bound(program, table).us <= trace.time_ps / 1e6, seed
        last = LastGpu(program, trace)
        assert 0 <= last.exposed_ps() <= trace.time_ps, seed
        assert max(phase["end"] for phase in last.phases_us().values()) <= trace.time_ps / 1e6, seed
