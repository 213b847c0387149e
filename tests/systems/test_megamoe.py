"""Mega MoE: rows arrive by expert, tiles start as they fill, results leave as they finish; three barriers around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY

from dysharp.base.errors import ConfigError
from dysharp.costs import mean_share, tile_task
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.specs import load_cluster
from dysharp.systems import get_system
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.systems.building.gpus import Software
from dysharp.systems.building.paper_layers import tile_rows
from dysharp.workload import make_routing

CLUSTER = load_cluster("hw-dgx-b200").with_gpus(4)
LARGE = replace(TINY, hidden=2048, expert_hidden=1024)


def plan(tokens: int = 128, **options: object) -> Program:
    megamoe = get_system("megamoe")
    return megamoe.plan(LARGE, CLUSTER, make_routing("uniform", LARGE, 4, tokens), "fwd", megamoe.options(**options))


def ops_of(program: Program, name: str) -> np.ndarray:
    mine = [i for i, t in enumerate(program.templates) if t.name == name]
    return np.flatnonzero(np.isin(program.ops.template, mine))


def run(program: Program) -> Trace:
    return run_burst(program)[0]


def test_experts_arrive_one_after_the_other() -> None:
    """A GPU's first expert has its rows before its last one; with it the first tile starts while rows still come."""
    program = plan(512)
    trace, first, rows = run(program), ops_of(program, "gemm1"), ops_of(program, "dispatch.row")
    region = np.repeat(np.arange(program.n_regions), np.diff(program.regions.tile_ptr))[program.ops.key[first]]
    starts = [trace.issue[first[region == expert]].min() for expert in range(4)]  # the four experts of GPU 0
    assert starts == sorted(starts)
    assert starts[0] < trace.done[rows].max()


def test_rows_leave_by_expert_then_token_then_receiver_in_turn() -> None:
    program = plan()
    rows = ops_of(program, "dispatch.row")
    member = program.members.ptr[rows]
    region = np.searchsorted(program.regions.row_ptr, program.members.fill_row[program.members.fill_ptr[member]], side="right") - 1
    source, receiver = program.ops.node[rows], program.members.node[member]
    keys = list(zip(region % (LARGE.n_experts // 4), program.ops.key[rows] % 128, (receiver - source) % 4, strict=True))
    for gpu in range(4):
        mine = [tuple(map(int, key)) for key, node in zip(keys, source, strict=True) if node == gpu]
        assert len(mine) > 200
        assert mine == sorted(mine)


def test_results_leave_while_others_are_computed() -> None:
    program = plan(512)
    trace = run(program)
    assert trace.issue[ops_of(program, "combine.row")].min() < trace.done[ops_of(program, "gemm1")].max()


def test_pulls_and_pushes_share_the_pace_of_a_gpu() -> None:
    program = plan()
    pools = {name: set(program.issuers.pool[program.ops.issuer[ops_of(program, f"{name}.stores")]]) for name in ("dispatch", "combine")}
    assert pools["dispatch"] == pools["combine"]
    assert len(pools["dispatch"]) == 4


def test_three_barriers() -> None:
    program = plan()
    words = [len(ops_of(program, f"{name}.barrier")) for name in ("dispatch", "combine", "end")]
    assert words == [16, 16, 16]
    trace = run(program)
    assert trace.issue[ops_of(program, "combined")].min() > trace.done[ops_of(program, "combine.row")].max()


def test_rows_and_weights_may_be_narrow() -> None:
    rows, narrow = plan(), plan(dispatch="mxfp8", weights="fp4")
    up = rows.declared.traffic["up"], narrow.declared.traffic["up"]
    assert up[0]["combine"] == up[1]["combine"]
    assert up[1]["dispatch"] * LARGE.row_bytes == up[0]["dispatch"] * ROW_BYTES["mxfp8"](LARGE)
    assert run(narrow).time_ps < run(rows).time_ps


def test_results_may_be_narrow_and_gemms_run_in_fp4() -> None:
    rows, narrow = plan(), plan(dispatch="nvfp4", weights="nvfp4", combine="nvfp4")
    up = rows.declared.traffic["up"], narrow.declared.traffic["up"]
    for side in ("dispatch", "combine"):
        assert up[1][side] * LARGE.row_bytes == up[0][side] * ROW_BYTES["nvfp4"](LARGE)
    assert run(narrow).time_ps < run(plan(dispatch="mxfp8", weights="nvfp4", combine="nvfp4")).time_ps


def test_a_kernel_alone_has_no_cast_in_front() -> None:
    """The cast is a kernel of its own that reads BF16 and writes FP8."""
    whole, alone = run(plan()), run(plan(cast=False))
    cast = Software(CLUSTER, 4).memory_ps(128 * LARGE.hidden * 3)
    assert whole.time_ps - alone.time_ps == pytest.approx(cast, rel=1e-3)


def test_hopper_has_tiles_of_64_or_128_rows() -> None:
    assert [tile_rows(n, "hopper") for n in (1, 64.5, 65, 1e6)] == [64, 64, 128, 128]


def test_tiles_are_as_high_as_their_rows_need() -> None:
    """Heights at and behind each threshold; the Program has that of its mean load: 128 tokens of 4 GPUs to 4 of 16 experts, 128 rows each."""
    assert [tile_rows(n) for n in (0.1, 8.5, 8.6, 16.5, 17, 32.5, 33, 64.5, 65, 96.5, 97, 1e6)] == [
        16,
        16,
        32,
        32,
        64,
        64,
        96,
        96,
        128,
        128,
        192,
        192,
    ]
    for tokens, high in ((4, 16), (64, 96), (128, 192)):
        regions = plan(tokens).regions
        assert set(regions.tile_rows[[name == "expert" for name in regions.name]]) == {high}


def test_a_partial_tile_costs_its_rows() -> None:
    whole, partial = (tile_task(CLUSTER, "fp8", 4096, 4096, 128, mean_share(128, 1e9), row_step=step).ps for step in (None, 16))
    assert (whole == whole[0]).all()
    assert partial[128] == whole[128]
    assert partial[16] == partial[1] < partial[17] == partial[32]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dispatch": "fp8"}, "megamoe.dispatch: found 'fp8', expected one of rows, mxfp8"),
        ({"weights": "fp8"}, "megamoe.weights: found 'fp8', expected one of model, fp4"),
        ({"form": "unreal"}, "form: found 'unreal', expected one of auto, paper, real"),
    ],
)
def test_wrong_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan(**options)
