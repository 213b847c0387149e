"""COMET as released: GEMM-2 in slices of columns, and sums that leave slice by slice behind a counter."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.base.errors import ConfigError, EmulationMismatch, ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.functional.experts import IntegerExperts
from dysharp.functional.layer import Tensors
from dysharp.functional.numbers import number
from dysharp.functional.reference import dense_forward, recorded_reference
from dysharp.functional.rows import run_rows
from dysharp.program import Alloc, Head, Kind, Program, Tail
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.specs.choices import choices_overridden
from dysharp.systems import comet_flux, get_system
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.comet_flux import _column_slices
from dysharp.workload import make_routing

MODEL = replace(TINY, hidden=1152)  # nine GEMM tiles wide
ROUTING = make_routing("lognormal:0.65", MODEL, 4, 100, seed=1)


def plan(slices: int, direction: str = "fwd", model=MODEL) -> Program:
    return get_system("comet-flux").plan(model, cluster(4), ROUTING, direction, comet_flux.Options(slices=slices))


def ops_of(program: Program, start: str) -> np.ndarray:
    return np.flatnonzero(np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name.startswith(start)]))


def gemm2(program: Program) -> np.ndarray:
    mine = [t.kind is Kind.COMPUTE and t.fn in ("gemm2", "gemm1_dgrad") for t in program.templates]
    return np.flatnonzero(np.array(mine)[program.ops.template])


@pytest.mark.parametrize(
    ("hidden", "most", "ends"), [(1024, 8, [128 * i for i in range(1, 9)]), (1152, 4, [384, 640, 896, 1152]), (200, 8, [128, 200])]
)
def test_slices_are_whole_gemm_tiles(hidden, most, ends):
    layer = LayerBuilder(replace(TINY, hidden=hidden), cluster(4), ROUTING, "fwd", alloc=Alloc.PREFIX)
    slices = _column_slices(layer, most)
    assert [end for _, end, _ in slices] == ends
    assert [first for first, _, _ in slices] == [0, *ends[:-1]]
    assert {width for _, _, width in slices} == {hidden}


def test_slices_are_whole_packets():
    with choices_overridden({"gemm.tile_cols": 64}):
        layer = LayerBuilder(replace(TINY, element_bytes=1), cluster(4), ROUTING, "fwd", alloc=Alloc.PREFIX)
        assert [end for _, end, _ in _column_slices(layer, 16)] == [128, 256, 384, 512]


def test_one_slice_or_more():
    with pytest.raises(ConfigError, match=r"comet-flux.slices: found 0, expected 1 or more"):
        plan(0)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_slices_move_the_bytes_of_whole_rows(direction):
    """Payload, packets, headers and tasks are what they are without slices; a token gets its row from every GPU once."""
    whole, cut = plan(1, direction), plan(4, direction)
    assert moved_bytes(whole) == moved_bytes(cut)
    wire = {}
    for name, program in (("whole", whole), ("cut", cut)):
        sums, home = ops_of(program, "combine.put"), program.members.node[program.members.ptr[:-1].clip(max=program.n_members - 1)]
        key = np.stack((program.ops.key[sums], program.ops.node[sums], home[sums]))
        pairs, pair = np.unique(key, axis=1, return_inverse=True)
        wire[name] = (
            pairs.tolist(),
            [np.bincount(pair, weights=values[program.ops.wire[sums]]).tolist() for values in (program.wires.up, program.wires.aux)],
        )
        wire[name] += (np.bincount(pair, weights=program.ops.bytes[sums]).tolist(),)
    assert wire["whole"] == wire["cut"]
    assert set(wire["cut"][2]) == {MODEL.row_bytes}


def test_slices_take_the_sm_time_of_the_whole_gemm():
    took = []
    for program in (plan(1), plan(4)):
        ops = gemm2(program)
        template = program.ops.template[ops]
        tasks, duration = (np.array([getattr(t, name) for t in program.templates])[template] for name in ("tasks", "duration"))
        took.append(int((tasks * program.durations[duration, program.ops.rows[ops]]).sum()))
    assert took[0] == took[1] > 0


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_counter_stands_in_front_of_every_slice(direction):
    program = plan(4, direction)
    trace, edges, ends = run_burst(program)[0], program.edges, (384, 640, 896, 1152)
    done: dict[tuple[int, int], int] = {}  # (GPU, slice) -> when all tiles of the GPU have it
    for op in gemm2(program):
        key = int(program.ops.node[op]), ends.index(program.templates[program.ops.template[op]].columns[1])
        done[key] = max(done.get(key, 0), int(trace.done[op]))
    sent = (edges.tail_kind == Tail.OP_DONE) & (edges.head_kind == Head.OP_ISSUE) & np.isin(edges.tail, ops_of(program, "combine.comm"))
    for copy, put in zip(edges.tail[sent], edges.head[sent], strict=True):
        last_byte = int(program.ops.offset[put] + program.ops.bytes[put])
        assert trace.ready[copy] == done[int(program.ops.node[put]), ends.index(last_byte // MODEL.element_bytes)]
        assert trace.ready[put] == trace.done[copy]
    assert sent.sum() == 4 * len(np.unique(program.ops.key[ops_of(program, "combine.put")] * 4 + program.ops.node[ops_of(program, "combine.put")]))


def test_the_sms_of_gemm2_return_the_last_slice():
    program = plan(4)
    copies = ops_of(program, "combine.comm")
    slots = program.pools.slots[program.issuers.pool[program.ops.issuer[copies]]]
    pairs = len(ops_of(program, "combine.put")) // 4
    assert (slots == 28).sum() == 3 * pairs
    assert (slots == cluster(4).n_sms - 28).sum() == pairs
    gemms = gemm2(program)
    assert set(program.ops.issuer[gemms]) == set(program.ops.issuer[copies[slots > 28]])
    assert program.ops.prio[copies[slots > 28]].min() > program.ops.prio[gemms].max()


def test_sums_leave_while_the_next_slices_are_computed():
    routing = make_routing("uniform", MODEL, 4, 800)
    program = get_system("comet-flux").plan(MODEL, cluster(4), routing, "fwd", comet_flux.Options(slices=4))
    trace, sums, gemms = run_burst(program)[0], ops_of(program, "combine.comm"), gemm2(program)
    for gpu in range(4):
        assert trace.start[sums[program.ops.node[sums] == gpu]].min() < trace.done[gemms[program.ops.node[gemms] == gpu]].max()


def test_all_gpus_send_to_different_gpus():
    """The first sum that leaves a GPU is for the next GPU."""
    program = plan(4)
    sums = ops_of(program, "combine.put")
    home = program.members.node[program.members.ptr[sums]]
    far = home != program.ops.node[sums]
    for gpu in range(4):
        mine = home[far & (program.ops.node[sums] == gpu)]
        turn = (mine - gpu) % 4
        assert (np.diff(turn) >= 0).all()
        assert turn[0] == 1


def test_the_verifier_notices_a_slice_of_a_tile_that_is_computed_twice():
    program = plan(4)
    first, second = gemm2(program)[:2]
    key = program.ops.key.copy()
    key[second] = key[first]
    with pytest.raises(ProgramError, match=rf"gemm2 of tile {key[first]}: found columns \(0, 384, 1152\) computed 2 times"):
        verify(replace(program, ops=replace(program.ops, key=key)))


# ---- tensors ---------------------------------------------------------------------------------------------


def tensors(hidden: int = 36) -> Tensors:
    rng = np.random.default_rng(3)
    n = number("int32")
    tokens = n.store(rng.integers(-3, 4, (ROUTING.n_tokens, hidden)))
    weight = rng.integers(1, 4, (ROUTING.n_tokens, ROUTING.topk))
    return Tensors(ROUTING, n, IntegerExperts(ROUTING.n_experts, hidden, 8), tokens, weight)


@pytest.mark.parametrize("slices", [1, 2, 4, 9])
def test_integers_are_exact(slices):
    outcome = run_rows(plan(slices), tensors(), "random", seed=slices)
    assert (outcome.out == dense_forward(tensors())).all()
    assert {columns[2] for fn, _, _, columns in outcome.record.tiles if fn == "gemm2"} == ({1} if slices == 1 else {1152})


def test_a_sum_that_does_not_wait_for_its_slice_is_wrong():
    """Without the counter of one slice its sums add columns that nobody has computed yet."""
    program = plan(4)
    counters, e = ops_of(program, "slice.3"), program.edges
    keep = ~((e.head_kind == Head.OP_ISSUE) & np.isin(e.head, counters))
    cut = replace(program, edges=replace(e, **{name: getattr(e, name)[keep] for name in ("tail_kind", "tail", "head_kind", "head")}))
    assert (run_rows(cut, tensors(), "newest").out != dense_forward(tensors())).any()


def test_the_reference_notices_a_slice_that_is_missing_or_computed_twice():
    outcome = run_rows(plan(4), tensors())
    record = outcome.record
    last = next(i for i, tile in enumerate(record.tiles) if tile[0] == "gemm2")
    for tiles, found in (
        ([*record.tiles, record.tiles[last]], "computed 2 times"),
        (record.tiles[:last] + record.tiles[last + 1 :], "computed 0 times"),
    ):
        with pytest.raises(EmulationMismatch, match=rf"gemm2: found token .* {found} .* in columns \(0, 384, 1152\), expected once"):
            recorded_reference(tensors(), replace(record, tiles=tiles))
    without = [tile for tile in record.tiles if tile[3][1] != 1152]
    with pytest.raises(EmulationMismatch, match=r"gemm2: found the columns .* expected ranges that follow each other from 0 to 1152"):
        recorded_reference(tensors(), replace(record, tiles=without))


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_gpu_never_computes_on_more_sms_than_it_has(slices, direction):
    """Each stage of a forward pass has a pool of SMs, and the second one begins when the first has ended. A backward pass has one pool."""
    few = replace(cluster(4), n_sms=6)
    program = get_system("comet-flux").plan(MODEL, few, ROUTING, direction, comet_flux.Options(slices=slices, n_comm=2))
    trace, _ = run_burst(program)
    pool, computes = program.issuers.pool[program.ops.issuer], program.kinds() == Kind.COMPUTE
    for gpu in range(4):
        here = computes & (program.ops.node == gpu)
        pools = sorted(set(pool[here]), key=lambda p: -program.pools.slots[p])
        assert [program.pools.slots[p] for p in pools] == ([6, 4] if direction == "fwd" else [4])
        assert all(trace.end[here & (pool == one)].max() <= trace.start[here & (pool == other)].min() for one, other in pairwise(pools))
