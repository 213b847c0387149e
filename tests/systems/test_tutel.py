"""Tutel: a capacity that pads and drops, and chunks whose exchanges overlap GEMMs."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY, cluster, dropping, layers

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.program.payload import moved_bytes
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system, tutel
from dysharp.testing.conformance import conformance
from dysharp.testing.conformance.suite import RULES
from dysharp.workload import Routing, in_parts, make_routing, routing_from

TUTEL = get_system("tutel")
ROUTING = make_routing("lognormal:1.0", TINY, 4, 24, seed=3)


def options(**given) -> tutel.Options:
    return tutel.Options(**given)


def plan(routing: Routing = ROUTING, direction: str = "fwd", model=TINY, **given) -> Program:
    return TUTEL.plan(model, cluster(routing.n_gpus), routing, direction, options(**given))


def ops_of(program: Program, *names: str) -> np.ndarray:
    return np.flatnonzero(np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name in names]))


def sent(routing: Routing) -> np.ndarray:
    """`[GPUs, slots]` rows that each GPU has for each slot."""
    source = np.arange(routing.n_tokens) // routing.tokens_per_gpu
    out = np.zeros((routing.n_gpus, routing.placement.n_slots), int)
    np.add.at(out, (np.broadcast_to(source[:, None], routing.slot.shape)[routing.slot >= 0], routing.slot[routing.slot >= 0]), 1)
    return out


@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "given", "rows"),
    [
        (256, 64, 8, {}, 32),  # the mean
        (250, 64, 8, {}, 32),  # tokens per expert are rounded up
        (24, 16, 4, {"degree": 3}, 9),  # 8, rounded up to a multiple of the degree
        (256, 64, 8, {"capacity": 150}, 48),
        (6, 64, 8, {}, 8),
    ],
)
def test_capacity_is_topk_times_the_tokens_of_an_expert(tokens, experts, topk, given, rows) -> None:
    expert = np.tile(np.arange(topk), (tokens * 2, 1))
    assert tutel._capacity_rows(routing_from(expert, experts, 2), options(**given)) == rows


def test_automatic_capacity_is_that_of_the_fullest_expert_and_drops_nothing() -> None:
    given = options(capacity=0, degree=1)
    assert tutel._capacity_rows(ROUTING, given) == sent(ROUTING).max()
    assert np.array_equal(tutel.served(ROUTING, given).slot, ROUTING.slot)


@pytest.mark.parametrize("degree", [1, 2])
def test_choices_beyond_the_capacity_are_dropped(degree) -> None:
    """A GPU fills the places of an expert by top-k column, then by token."""
    given = options(degree=degree)
    capacity, kept = tutel._capacity_rows(ROUTING, given), tutel.served(ROUTING, given)
    assert (kept.slot >= 0).sum() == np.minimum(sent(ROUTING), capacity).sum() < ROUTING.slot.size
    assert ((kept.slot >= 0) == (kept.expert >= 0)).all()
    assert np.array_equal(kept.slot[kept.slot >= 0] // degree, ROUTING.slot[kept.slot >= 0])
    gpu, slot = np.argwhere(sent(ROUTING) > capacity)[0]
    mine = slice(gpu * 24, gpu * 24 + 24)
    in_order = (slot == ROUTING.slot[mine].T).ravel()
    assert (kept.slot[mine].T.ravel()[in_order] >= 0).tolist() == [i < capacity for i in range(in_order.sum())]


def test_a_served_routing_is_served_as_it_is() -> None:
    for given in (options(), options(degree=1), options(capacity=0)):
        once = tutel.served(ROUTING, given)
        again = tutel.served(once, given)
        assert np.array_equal(once.slot, again.slot)
        assert once.placement.n_slots == again.placement.n_slots == 16 * given.degree
    with pytest.raises(ConfigError, match="found slots that are 2 parts already, expected whole expert slots"):
        in_parts(tutel.served(ROUTING, options()), ROUTING.slot * 0, 2)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bytes_depend_on_the_capacity_and_not_on_the_routing(direction) -> None:
    """Every GPU sends the capacity of 8 rows to each of 12 experts on other GPUs."""
    expected = 4 * 12 * 8 * TINY.row_bytes
    for routing in (ROUTING, make_routing("uniform", TINY, 4, 24), dropping(ROUTING, 3)):
        moved = moved_bytes(plan(routing, direction))
        assert {moved[side][operator] for side in ("up", "down") for operator in ("dispatch", "combine")} == {expected}


def test_padding_is_computed() -> None:
    """Tiles of all experts, in both GEMMs of every chunk: useful tiles and padding are those of the full capacity."""
    tokens = 512  # 4 GPUs x 128 rows for every expert: 4 tiles, 2 in each chunk
    routing = dropping(make_routing("uniform", TINY, 4, tokens, seed=1), 2)
    program = plan(routing)
    for fn in ("gemm1", "gemm2"):
        assert len(ops_of(program, fn)) + len(ops_of(program, f"{fn}.padding")) == 16 * 4
    assert len(ops_of(program, "gemm1.padding")) > 0
    assert len(ops_of(plan(make_routing("uniform", TINY, 4, tokens), capacity=100, degree=1), "gemm1.padding")) == 0


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_the_next_exchange_overlaps_the_gemms_of_a_chunk(degree) -> None:
    program = plan(make_routing("uniform", TINY, 4, 256), degree=degree)
    trace, _ = run_burst(program)
    gemms, rows, back = ops_of(program, "gemm1"), ops_of(program, "dispatch.row"), ops_of(program, "combine.row")
    assert (trace.issue[gemms].min() < trace.done[rows].max()) == (degree > 1)
    assert trace.issue[back].min() >= trace.done[rows].max() - program.hardware.ack - 2 * program.hardware.lat  # one stream


def test_overlap_hides_time_and_padding_costs_time() -> None:
    times = [ds.run("tutel", model="S-8", gpus=8, tokens=128, options={"capacity": c, "degree": d}).time_us for c, d in ((0, 2), (0, 1), (100, 1))]
    alone = ds.run("megatron-a2a", model="S-8", gpus=8, tokens=128).time_us
    assert alone < times[0] < times[1]
    assert times[2] < times[1]


def test_dropped_rows_are_counted_and_said() -> None:
    model = load_model("S-8")
    row = ds.run("tutel", model="S-8", gpus=4, tokens=32, routing="uniform")
    routing = make_routing("uniform", model, 4, 32)
    dropped = int(np.maximum(sent(routing) - 8, 0).sum())  # ceil(32 / 64) tokens per expert, top-8
    assert dropped > 0
    assert row.dropped_rows == row.to_dict()["dropped_rows"] == dropped
    assert row.warnings[-1] == f"tutel computes {1024 - dropped} of 1024 (token, expert) rows: it drops {100 * dropped / 1024:.1f} %"
    both = ds.run("tutel", model="S-8", gpus=4, tokens=32, routing="uniform", direction="both")
    assert both.dropped_rows == dropped
    whole = ds.run("tutel", model="S-8", gpus=4, tokens=32, routing="uniform", options={"capacity": 0})
    assert whole.dropped_rows == 0
    assert "dropped_rows" not in whole.to_dict()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("degree", [1, 3])
def test_copies_per_gpu_move_the_bytes_of_deepep(direction: str, degree: int) -> None:
    """Nothing is padded or dropped, and a token's rows share its copy whatever the chunks."""
    deepep = get_system("deepep")
    other = deepep.plan(TINY, cluster(4), ROUTING, direction, deepep.options())
    assert moved_bytes(plan(direction=direction, copies="gpu", degree=degree)) == moved_bytes(other)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"degree": 1}, {"degree": 2}, {"degree": 3, "compute": False}, {"mediation": True}])
def test_layers_with_copies_per_gpu_conform(given) -> None:
    rules = [r.name for r in RULES if r.name != "pure_communication_has_no_surroundings" and not r.slow]  # refused in real form
    assert conformance("tutel", *layers()["lognormal"], "both", {"copies": "gpu", **given}, rules).failed == ()


def test_copies_per_gpu_overlap_and_are_refused_in_real_form() -> None:
    """In two chunks GEMMs of the first begin before the last row of the second has come."""
    program = plan(copies="gpu", degree=2)
    trace = run_burst(program)[0]
    assert trace.issue[ops_of(program, "gemm1")].min() < trace.done[ops_of(program, "dispatch.put")].max()
    with pytest.raises(ConfigError, match=r'tutel.copies: found "gpu" in real form, expected "expert"'):
        TUTEL.plan(TINY, load_cluster("hw-dgx-h100"), make_routing("uniform", TINY, 8, 8), "fwd", options(copies="gpu"))
    with pytest.raises(ConfigError, match=r"tutel.copies: found 'gpus'; did you mean \"gpu\""):
        plan(copies="gpus")
