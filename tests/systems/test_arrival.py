"""Who arrives first decides which rows share a tile and when, never how many rows and bytes there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import cluster

from dysharp.engine.burst.run import run_burst
from dysharp.program import Alloc, Program, Trace
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.specs import Model
from dysharp.systems import get_system
from dysharp.workload import Routing, make_routing

GPUS, TOKENS = 4, 256
MODEL = Model(
    name="few-experts", hidden=512, expert_hidden=256, n_experts=8, topk=4, tokens_per_gpu=TOKENS, n_matrices=2, element_bytes=2, gemm_dtype="fp8"
)


def run(name: str, routing: Routing, **options: int) -> tuple[Program, Trace]:
    system = get_system(name)
    program = system.plan(MODEL, cluster(GPUS), routing, "fwd", system.options(**options))
    verify(program)
    return program, run_burst(program)[0]


def tiles(program: Program, trace: Trace, original: np.ndarray) -> set[tuple[int, frozenset[int]]]:
    """(region, tokens) of every tile of the experts; `original` maps this Routing's tokens to names."""
    r = program.regions
    region = np.repeat(np.arange(program.n_regions), np.diff(r.row_ptr))
    tile = r.tile_ptr[region] + trace.row_slot // r.tile_rows[region]
    rows = np.flatnonzero(r.alloc[region] == Alloc.FIRST_TOUCH)
    contents: dict[tuple[int, int], set[int]] = {}
    for row in rows.tolist():
        contents.setdefault((int(region[row]), int(tile[row])), set()).add(int(original[r.row_key[row]]))
    return {(where, frozenset(tokens)) for (where, _), tokens in contents.items()}


def shuffled(routing: Routing, seed: int) -> tuple[Routing, np.ndarray]:
    """The tokens of every GPU in another order, and the original token of each."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([g * TOKENS + rng.permutation(TOKENS) for g in range(GPUS)])
    return replace(routing, expert=routing.expert[order], slot=routing.slot[order]), order


def assert_same_totals(one: Program, two: Program) -> None:
    assert one.declared == two.declared
    assert moved_bytes(one) == moved_bytes(two)
    assert one.n_rows == two.n_rows
    assert one.n_ops == two.n_ops


@pytest.mark.parametrize("name", ["dysharp", "dysharp-comet", "fusion-only", "comet", "deepep", "nvls"])
def test_token_order_changes_tiles_and_times_not_totals(name):
    routing = make_routing("uniform", MODEL, GPUS, TOKENS)
    other, order = shuffled(routing, 1)
    (one, a), (two, b) = run(name, routing), run(name, other)
    assert_same_totals(one, two)
    assert a.digest() != b.digest()
    assert a.tile_ready.tolist() != b.tile_ready.tolist()
    assert tiles(one, a, np.arange(GPUS * TOKENS)) != tiles(two, b, order)


def test_dispatch_window_changes_tiles_and_times_not_totals():
    routing = make_routing("uniform", MODEL, GPUS, TOKENS)
    (one, a), (two, b) = (run("dysharp", routing, dispatch_window=w) for w in (4, 64))
    assert_same_totals(one, two)
    assert a.digest() != b.digest()
    assert a.time_ps != b.time_ps
    names = np.arange(GPUS * TOKENS)
    assert tiles(one, a, names) != tiles(two, b, names)
