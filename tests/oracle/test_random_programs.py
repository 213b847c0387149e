"""Random Programs are legal, repeatable, end on the oracle, and go where they are meant to go."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.oracle import run_oracle
from dysharp.oracle.run import OracleRun
from dysharp.program.tables import Kind
from tests.interpreters.random_programs import coverage, random_program

SEEDS = range(60)
MUST_OCCUR = (
    *(f"kind.{k.name}" for k in list(Kind)[: Kind.PULL_REDUCE + 1]),
    *("issued by.PROGRAM_ORDER", "issued by.READY_FIFO", "issued by.SMALLEST_KEY", "issued by.ROUND_ROBIN"),
    *("tail.OP_DONE", "tail.TILE_READY", "head.OP_ISSUE", "head.TILE_NOTIFY"),
    *("alloc.FIRST_TOUCH", "alloc.PREFIX", "region without rows", "short last tile"),
    *("hold given back by itself", "hold given back by another op", "issuers that share a pool"),
    *("op without members", "op with local members only", "op with local and remote members"),
    *("member fills several rows", "copy with extra bytes", "notify.local", "notify.remote"),
    *("single node", "infinite buffers", "pull answered in its own class"),
    *("run: channels full", "run: train above its channel", "run: behind another train"),
    *("run: semaphore full", "run: no free slot", "run: cut-through wait"),
    *("tie.ready", "tie.start", "tie.done", "tie.member", "tie.tile_ready"),
)


def test_same_seed_same_program_and_run():
    runs = [run_oracle(random_program(7)).digest() for _ in range(2)]
    assert runs[0] == runs[1]
    assert run_oracle(random_program(8)).digest() != runs[0]


@pytest.mark.slow
def test_every_branch_is_visited():
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        program = random_program(seed)
        run = OracleRun(program)
        run.play()
        seen.update(coverage(program, run))
    print("\n".join(f"{n:8d} {name}" for name, n in sorted(seen.items())))
    assert [name for name in MUST_OCCUR if seen[name] == 0] == []


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_columns_are_in_order(seed):
    program = random_program(seed)
    trace = run_oracle(program)
    for earlier, later in (("ready", "issue"), ("issue", "start"), ("start", "end"), ("end", "done")):
        assert np.all(getattr(trace, earlier) <= getattr(trace, later)), (earlier, later)
    assert np.all(trace.tile_ready >= 0)
    for r in range(program.n_regions):
        slots = trace.row_slot[program.regions.row_ptr[r] : program.regions.row_ptr[r + 1]]
        assert sorted(slots.tolist()) == list(range(len(slots)))


def test_unknown_size_is_refused():
    with pytest.raises(ConfigError, match="found size 'huge', expected one of tiny, small"):
        random_program(0, size="huge")
