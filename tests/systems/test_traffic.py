"""The paper's traffic numbers for L-8 on 32 GPUs, counted in Routings and Programs without a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import cluster

from dysharp.program import Kind, Program
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.specs import load_model
from dysharp.systems import get_system
from dysharp.workload import distinct_gpus, make_routing, uniform_traffic

GPUS, TOKENS, SEEDS = 32, 512, 4
CHUNKS = 112  # packets of 128 B in a row of L-8
FLIT = 16


@pytest.fixture(scope="module")
def programs() -> dict[str, list[Program]]:
    """Forward Programs of L-8 with 512 tokens per GPU, one per seed of uniform routing."""
    model = load_model("L-8")
    out: dict[str, list[Program]] = {}
    for name in ("deepep", "nvls", "dysharp", "explicit"):
        system = get_system(name)
        for seed in range(SEEDS):
            routing = make_routing("uniform", model, GPUS, TOKENS, seed=seed)
            program = system.plan(model, cluster(GPUS), routing, "fwd", system.options())
            verify(program)
            out.setdefault(name, []).append(program)
    return out


def vectors(programs: list[Program], *, side: str = "", operator: str = "") -> float:
    """Token vectors per token on links (both directions and operators unless named)."""
    total = 0
    for program in programs:
        moved = moved_bytes(program)
        for direction in [side] if side else ["up", "down"]:
            total += sum(moved[direction][o] for o in ([operator] if operator else ["dispatch", "combine"]))
    return total / (SEEDS * GPUS * TOKENS * CHUNKS * 128)


def test_distinct_remote_gpus_per_token():
    model = load_model("L-8")
    counted = [distinct_gpus(make_routing("uniform", model, GPUS, 2048, seed=s)).without_source for s in range(8)]
    assert f"{np.mean(counted):.2f}" == "7.04"
    assert f"{uniform_traffic(256, 32, 8).remote_gpus:.2f}" == "7.04"


def test_payload_ratios(programs):
    deepep, nvls, dysharp = (vectors(programs[name]) for name in ("deepep", "nvls", "dysharp"))
    assert nvls == 64.0
    assert f"{1 - dysharp / deepep:.1%}" == "42.9%"
    assert f"{deepep / dysharp:.3f}" == "1.751"
    needed = vectors(programs["deepep"], side="down", operator="dispatch")
    gathered = vectors(programs["nvls"], side="down", operator="dispatch")
    assert f"{(gathered - needed) / needed:.2f}" == "3.40"


def flits(program: Program, operator: str) -> tuple[float, float]:
    """(up, down) flits of one operator per token and 128 B chunk with headers, requests, acknowledgements.

    Gate weights ride in packets of their own behind a row (class *other*) and are left out.
    """
    p, w = program, program.wires
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    mine = np.array([t.operator == operator for t in p.templates])[p.ops.template]
    remote = (p.members.node != p.ops.node[owner]) & mine[owner]
    ops = np.unique(owner[remote])
    of_member, of_op = p.ops.wire[owner[remote]], p.ops.wire[ops]
    kind = next(t.kind for t in p.templates if t.operator == operator)
    if kind is Kind.PULL_REDUCE:
        up = w.up[of_op].sum() + w.response[of_member].sum()
        down = w.down[of_member].sum() + w.result[of_op].sum()
    else:
        up = without_aux(p, w.up, of_op).sum() + without_aux(p, w.ack_up, of_member, data=False).sum()
        down = without_aux(p, w.down, of_member).sum() + without_aux(p, w.ack_down, of_op, data=False).sum()
    per_token = FLIT * CHUNKS * GPUS * TOKENS
    return up / per_token, down / per_token


def without_aux(p: Program, column: np.ndarray, wire: np.ndarray, *, data: bool = True) -> np.ndarray:
    """Entries `wire` of a column of Wires less the aux packets: overhead per packet is the same in all."""
    carried = np.zeros(len(p.wires.up), np.int64)
    wired = p.ops.wire >= 0
    carried[p.ops.wire[wired]] = p.ops.bytes[wired]
    aux, payload = p.wires.aux[wire], carried[wire]
    chunks, row_data = payload // 128, payload if data else 0
    per_packet, rest = np.divmod(column[wire] - row_data - aux * data, chunks - (-aux // 128))
    assert (rest == 0).all()
    without: np.ndarray = chunks * per_packet + row_data
    return without


def mean_flits(programs: list[Program], operator: str) -> tuple[float, float]:
    up, down = zip(*(flits(p, operator) for p in programs), strict=True)
    return float(np.mean(up)), float(np.mean(down))


def test_wire_flits_per_chunk(programs):
    """20R for DeepEP, 280 + 280 for NVLS, DySHARP 1.71x of it (lean replicas), explicit addressing 1.49x.

    The closed form 24 + 10R of explicit addressing lists all eight targets; a Program lists only those on
    other GPUs, 7.75 of 8, worth 0.25 flits in the request of Dispatch and 0.25 in that of Combine.
    """
    both = {name: (mean_flits(runs, "dispatch"), mean_flits(runs, "combine")) for name, runs in programs.items()}
    (up_d, down_d), (up_c, down_c) = both["deepep"]
    assert up_d + up_c == down_d + down_c
    deepep = up_d + up_c
    assert f"{deepep:.1f}" == "140.8"
    assert both["nvls"] == ((40.0, 280.0), (280.0, 40.0))
    (up_d, down_d), (up_c, down_c) = both["dysharp"]
    assert (up_d - down_c, up_c - down_d) == (1.0, 1.0)  # the target list is all that is not symmetric
    assert f"{deepep / (up_d + up_c):.2f}" == "1.71"
    (up_d, down_d), (up_c, down_c) = both["explicit"]
    assert up_d + up_c == pytest.approx(down_d + down_c)  # a read mirrors a write with the same totals (section 2.2)
    local_targets = 8 - uniform_traffic(256, 32, 8).remote_rows
    assert local_targets == 0.25
    assert f"{deepep / (up_d + up_c + 2 * local_targets):.2f}" == "1.49"
    assert f"{deepep / (up_d + up_c):.2f}" == "1.50"


@pytest.mark.parametrize("name", ["deepep", "comet", "nvls", "fusion-only", "explicit", "dysharp"])
def test_a_model_whose_dispatch_is_fp8_moves_smaller_rows_there_only(name: str) -> None:
    model, system = load_model("S-8"), get_system(name)
    routing = make_routing("uniform", model, 4, 32, seed=0)
    moved = []
    for word in ("rows", "fp8"):
        program = system.plan(replace(model, dispatch_format=word), cluster(4), routing, "fwd", system.options())
        verify(program)
        moved.append(program.declared.traffic)
    for side in ("up", "down"):
        assert moved[1][side]["dispatch"] * 2 * 2048 == moved[0][side]["dispatch"] * (2048 + 4 * 16)
        assert moved[1][side]["combine"] == moved[0][side]["combine"]
