"""CCFuser: thread blocks that hold their room on an SM from the get of a tile to the end of its GEMM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.engine.burst.run import run_burst
from dysharp.program import Alloc, Head, Program, Tail
from dysharp.program.payload import moved_bytes
from dysharp.specs.choices import choices_overridden
from dysharp.systems import ccfuser, get_system
from dysharp.systems.building.layer import LayerBuilder
from dysharp.workload import Routing, make_routing

CCFUSER = get_system("ccfuser")
ROUTING = make_routing("lognormal:0.65", TINY, 4, 400, seed=1)  # about 100 rows for each (GPU, expert)


def plan(routing: Routing = ROUTING, machine=None, direction: str = "fwd", **given) -> Program:
    machine = cluster(routing.n_gpus) if machine is None else machine
    return CCFUSER.plan(TINY, machine, routing, direction, ccfuser.Options(**given))


def ops_of(program: Program, name: str) -> np.ndarray:
    return np.flatnonzero(np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name == name]))


def blocks_of(routing: Routing) -> tuple[LayerBuilder, np.ndarray, ccfuser._Blocks]:
    served = ccfuser.served(routing, ccfuser.Options())
    layer = LayerBuilder(TINY, cluster(routing.n_gpus), served, "fwd", tiling=ccfuser.Tiling(64, shared=True), alloc=Alloc.PREFIX)
    owner = layer.tile_slot % layer.n_gpus
    return layer, owner, ccfuser._blocks(layer, owner)


def test_every_tile_is_in_one_block_of_its_gpu() -> None:
    layer, owner, blocks = blocks_of(ROUTING)
    both = np.append(blocks.first, blocks.second)
    assert sorted(both[both >= 0].tolist()) == layer.tiles.tolist()
    assert (layer.tile_gpu[blocks.first] == blocks.gpu).all()
    whole = (owner == layer.tile_gpu) & (layer.tile_rows == 64)
    assert whole[blocks.first[~blocks.gets_first]].all()  # a pair computes a local tile first
    assert not whole[blocks.second[~blocks.gets_first]].any()
    assert 0 < (~blocks.gets_first).sum() == whole.sum()


def test_all_tokens_local_leave_pairs_of_local_tiles() -> None:
    alone = make_routing("uniform", TINY, 1, 400)
    layer, _, blocks = blocks_of(alone)
    assert not blocks.gets_first[blocks.second >= 0][: len(layer.tiles) // 4].any()
    assert moved_bytes(plan(alone))["up"].get("other", 0) == 0


@pytest.mark.parametrize("per_sm", [1, 2])
def test_a_gpu_holds_no_more_blocks_than_fit(per_sm) -> None:
    program = plan(machine=replace(cluster(4), n_sms=4), blocks_per_sm=per_sm)
    trace, _ = run_burst(program)
    h = program.holds
    for gpu in range(4):
        mine = program.ops.node[h.acquire] == gpu
        begin, end = trace.issue[h.acquire[mine]], trace.done[h.release[mine]]
        held = np.array([((begin <= t) & (end > t)).sum() for t in begin])
        assert held.max() == 4 * per_sm < mine.sum()


def test_a_pair_computes_its_local_tile_while_the_remote_one_comes() -> None:
    program = plan()
    trace, _ = run_burst(program)
    first, second = (np.flatnonzero(program.ops.template == i) for i, t in enumerate(program.templates) if t.name == "gemm1")
    e = program.edges
    pairs = (e.tail_kind == Tail.OP_DONE) & np.isin(e.tail, first) & np.isin(e.head, second)
    local, remote = e.tail[pairs], e.head[pairs]
    assert len(local) == len(second)
    assert (trace.issue[remote] >= trace.done[local]).all()
    assert (trace.issue[remote] >= trace.tile_ready[program.ops.key[remote]]).all()
    assert (trace.issue[local] < trace.tile_ready[program.ops.key[remote]]).any()


def test_bytes_are_those_of_one_copy_per_expert_and_a_word_per_get() -> None:
    other = get_system("megatron-a2a")
    moved, expected = moved_bytes(plan()), moved_bytes(other.plan(TINY, cluster(4), ROUTING, "fwd", other.options()))
    layer, owner, _ = blocks_of(ROUTING)
    far = owner != layer.tile_gpu
    step = 16384 // TINY.row_bytes
    gets = int((-(-layer.tile_rows[far] // step)).sum())
    for side in ("up", "down"):
        assert {k: v for k, v in moved[side].items() if k != "other"} == expected[side]
        assert moved[side]["other"] == 16 * gets


def test_small_gets_wait_for_many_round_trips() -> None:
    times = []
    for size in (4096, 65536):
        with choices_overridden({"ccfuser.get_bytes": size}):
            times.append(run_burst(plan())[0].time_ps)
    assert times[0] > times[1]


def test_a_block_puts_a_tile_piece_by_piece() -> None:
    layer, *_ = blocks_of(ROUTING)
    step = 8
    with choices_overridden({"ccfuser.get_bytes": step * layer.back_bytes}):
        program = CCFUSER.plan(TINY, cluster(ROUTING.n_gpus), ccfuser.served(ROUTING, ccfuser.Options()), "fwd", ccfuser.Options())
    puts, e = ops_of(program, "combine.row"), program.edges
    between = np.isin(e.head, puts) & (e.head_kind == Head.OP_ISSUE) & np.isin(e.tail, puts) & (e.tail_kind == Tail.OP_DONE)
    assert between.sum() == np.maximum(0, layer.tile_rows - step).sum() > 0
    assert len(np.unique(e.head[between])) == between.sum()  # a put waits for one put of its tile
