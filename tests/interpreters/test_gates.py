"""Gates of the switch: the oracle tells every mutant of the engine's rules, and no copy passes before all nodes are ready."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.oracle import run_oracle
from dysharp.oracle.run import OracleRun
from dysharp.program import Kind, Program
from dysharp.program.trace import Trace
from dysharp.program.verify import verify
from tests.interpreters.mutants import GATE_MUTANTS, Mutant, caught, difference, engine
from tests.interpreters.random_gates import random_gates

SEEDS = range(60)


def test_engine_equals_oracle_and_copies_wait() -> None:
    plain, waited, generations = engine(), 0, set()
    for seed in SEEDS:
        program = random_gates(seed)
        verify(program)
        run = OracleRun(program)
        run.play()
        assert difference(plain, program, run.trace()) is None, seed
        waited += run.world.counts["copy at a closed gate"]
        generations.add(0 if program.ops.gate is None else len(np.unique(program.ops.gate[program.ops.gate >= 0])))
    assert waited > 200
    assert {1, 2} <= generations


@pytest.mark.parametrize("mutant", GATE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_gates_is_caught(mutant: Mutant) -> None:
    assert caught(mutant, range(200), random_gates), f"no Program of 200 told {mutant.name!r} from the oracle"


def early(program: Program, trace: Trace) -> int:
    """Copies of a Program on two nodes that are delivered before the last READY of their generation can have been in the switch."""
    m, ops, found = program.members, program.ops, 0
    gate, session, hop = np.asarray(ops.gate), np.asarray(ops.session), program.hardware.lat
    for first in np.unique(gate[gate >= 0]).tolist():
        ready = (program.kinds() == Kind.PUSH_REDUCE) & (session >= first) & (session < first + program.n_nodes)
        in_switch = trace.start[ready].max() + hop
        for op in np.flatnonzero(gate == first).tolist():
            far = [k for k in range(m.ptr[op], m.ptr[op + 1]) if m.node[k] != ops.node[op]]
            found += sum(int(trace.member[k]) < in_switch + hop for k in far)
    return found


@pytest.mark.slow
def test_no_copy_passes_before_the_last_ready() -> None:
    programs = [p for p in map(random_gates, range(200)) if p.ops.gate is not None and p.n_nodes == 2]
    assert len(programs) > 20
    traces = [run_oracle(p) for p in programs]
    assert sum(map(early, programs, traces)) == 0
    forgotten = 0
    for p, trace in zip(programs, traces, strict=True):
        without = run_oracle(replace(p, ops=replace(p.ops, gate=None)))
        forgotten += int((without.member != trace.member).any())
    assert forgotten > 10  # the rule changes something


def test_a_gate_needs_sums_of_all_nodes_and_a_push() -> None:
    program = next(p for p in map(random_gates, range(100)) if p.ops.gate is not None and {0, p.n_nodes} <= set(p.ops.gate.tolist()))
    assert program.ops.gate is not None
    with pytest.raises(ProgramError, match="expected one per node in order"):
        verify(replace(program, ops=replace(program.ops, gate=np.where(program.ops.gate == 0, 1, program.ops.gate).astype(np.int32))))
    delay = int(np.flatnonzero(program.kinds() == Kind.DELAY)[0])
    gate = program.ops.gate.copy()
    gate[delay] = 0
    with pytest.raises(ProgramError, match="expected it of a PUT or MULTICAST of one train by NVLink"):
        verify(replace(program, ops=replace(program.ops, gate=gate)))
