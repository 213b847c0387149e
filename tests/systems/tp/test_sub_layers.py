"""Every system of sub-layers: tensors, engine and oracle, declared bytes, merging under evictions, coordination."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dysharp.analysis.bound import collective_bound_us
from dysharp.analysis.count import group_transfers, loads_that_went_on, sums_that_passed, traffic_bytes
from dysharp.base.errors import ConfigError, DysharpError
from dysharp.costs.gemm import gemm_gang
from dysharp.engine.burst.run import run_burst
from dysharp.functional.orders import ORDERS
from dysharp.functional.sub_layers import emulate_sub_layer
from dysharp.oracle.run import run_oracle
from dysharp.program import Kind, Program
from dysharp.program.verify import verify
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.building.tp.sublayer import Machine
from dysharp.systems.building.tp.ways import Ways
from dysharp.systems.collectives import all_tensor_parallel, get_collective
from dysharp.systems.tp import library
from dysharp.workload.sublayer import SubLayer, norm, parse_sub_layer, sub_layer

SYSTEMS = tuple(all_tensor_parallel())
CAIS = ("cais", "cais-base", "cais-no-coord", "cais-partial")


def machine(gpus: int, **keys: int) -> Cluster:
    return replace(load_cluster("paper-cais-h100").with_gpus(gpus), **keys)


def toy(gpus: int, blocks: int = 1) -> SubLayer:
    return SubLayer("toy", gpus, 128 * gpus * blocks, 256, 32, 256)


def planned(name: str, work: SubLayer, cluster: Cluster) -> Program:
    system = get_collective(name)
    program = system.plan(work, cluster, system.options(chunk_bytes=8192))
    verify(program)  # declared bytes on the links among others
    return program


@pytest.mark.sampled
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("gpus", [2, 3])
def test_tensors_are_those_of_the_reference_and_engine_and_oracle_agree(name: str, gpus: int) -> None:
    work, cluster = toy(gpus), machine(gpus)
    program = planned(name, work, cluster)
    trace = run_burst(program)[0]
    assert run_oracle(program).digest() == trace.digest()
    assert trace.time_ps >= 1e6 * collective_bound_us(work, cluster)
    for order in ORDERS:
        assert emulate_sub_layer(name, program, work, order=order, trace=trace).holds, order


@pytest.mark.parametrize("name", SYSTEMS)
def test_one_gpu_is_refused_with_a_line_of_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: found a sub-layer on one GPU, expected 2 GPUs or more"):
        planned(name, toy(1), machine(1))


@pytest.mark.parametrize("name", CAIS)
def test_sums_and_loads_are_exact_under_bypass_and_timeouts(name: str) -> None:
    work = toy(4)
    program = planned(name, work, machine(4))
    for places, expire in ((1, 0.0), (2, 0.5), (0, 1.0)):
        assert emulate_sub_layer(name, program, work, places=places, expire=expire, seed=places).holds


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_op_that_moves_nothing_is_noticed(name: str) -> None:
    work = toy(2)
    program = planned(name, work, machine(2))
    moves = [i for i, t in enumerate(program.templates) if t.fn in ("merge", "add", "sum", "load", "copy", "gemm1", "norm", "gemm2")]
    for template in moves:
        idle = tuple(replace(t, fn="control" if t.kind is not Kind.COMPUTE else "") if i == template else t for i, t in enumerate(program.templates))
        with suppress(DysharpError):  # a chunk is missing
            assert not emulate_sub_layer(name, replace(program, templates=idle), work).holds


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_merging_moves_s_each_way(gpus: int) -> None:
    """Payload of all GPUs, in activations S: the table of CAIS's traffic, with an unlimited table."""
    work, cluster = toy(gpus), machine(gpus, reduction_buffer_bytes=0)
    program = planned("cais", work, cluster)
    trace = run_burst(program)[0]
    assert not sums_that_passed(program, trace).any()
    moved = traffic_bytes(program, trace, group_transfers(program, passed=sums_that_passed(program, trace), trace=trace))
    size, n = work.size, gpus
    assert {op: moved["up"][op] for op in ("reduce", "gather")} == {"reduce": (n - 1) * size, "gather": size}
    assert {op: moved["down"][op] for op in ("reduce", "gather")} == {"reduce": size, "gather": (n - 1) * size}


def test_one_load_of_an_address_goes_on_and_its_place_is_free_after_the_others() -> None:
    program = planned("cais", toy(4), machine(4, reduction_buffer_bytes=0))
    on = loads_that_went_on(program, run_burst(program)[0])
    loads = program.kinds() == Kind.MERGED_LOAD
    assert (np.bincount(program.ops.session[loads & on], minlength=len(program.sessions.home))[program.ops.session[loads]] == 1).all()


def test_a_group_starts_half_a_microsecond_behind_its_last_gpu_and_every_gpu_sends_and_gets_one_flit_for_it() -> None:
    gpus = 4
    program = planned("cais", toy(gpus, blocks=4), machine(gpus))
    trace = run_burst(program)[0]
    ops, edges = program.ops, program.edges
    kinds = program.kinds()
    told = np.flatnonzero((ops.template == [t.name for t in program.templates].index("access1")) & (kinds == Kind.PUT))
    late = []
    for group in np.unique(ops.prio[told]):
        mine = told[ops.prio[told] == group]
        assert sorted(ops.node[mine]) == sorted(program.members.node[program.members.ptr[mine]]) == list(range(gpus))
        last = max(trace.done[edges.tail[np.isin(edges.head, mine) & (edges.head_kind == 0)]])
        late.append(trace.member[program.members.ptr[mine]].max() - last)
    assert 500_000 < min(late) < 501_000  # idle links: two hops of 250 ns and a flit; behind sums of others it waits
    wires, used = program.wires, ops.wire[told]
    assert {*wires.up[used], *wires.down[used]} == {16}
    assert {*wires.ack_up[used], *wires.ack_down[used]} == {0}


@pytest.mark.parametrize("name", ["flux", "tokenweave"])
def test_the_real_form_of_a_library_gives_the_same_tensors_and_takes_longer(name: str) -> None:
    work, cluster, system = toy(2, blocks=3), load_cluster("hw-dgx-h100").with_gpus(2), get_collective(name)
    times = {}
    for form in ("paper", "real"):
        program = system.plan(work, cluster, system.options(form=form, chunk_bytes=8192))
        verify(program)
        trace = run_burst(program)[0]
        assert run_oracle(program).digest() == trace.digest()
        assert emulate_sub_layer(name, program, work, trace=trace).holds
        times[form] = trace.time_ps
    assert times["real"] > times["paper"]
    with pytest.raises(ConfigError, match="expected an hw"):
        system.plan(work, machine(2), system.options(form="real"))


@pytest.mark.parametrize(("sms", "first"), [(2, 6), (17, 7)])
def test_tokenweave_cuts_the_tokens_where_no_wave_is_added(sms: int, first: int) -> None:
    """11 blocks of each GPU: 4 thread blocks each in both GEMMs on `sms - 1` free SMs; halves of whole waves where there are such."""
    work = toy(2, blocks=11)
    build = Ways(work, machine(2, n_sms=sms), Machine(comm_sms=1))
    assert (build.cuts.tiles, gemm_gang(work.outer)) == (2, 2)
    cut = library._first_part(build, real=False)
    waves = [sum(-(-blocks * 2 // (sms - 1)) for blocks in part) for part in ((cut, 22 - cut), (22, 0))]
    assert (cut // 2, waves[0]) == (first, waves[1])


def test_wrong_sub_layers_are_refused() -> None:
    cases = {
        "sub-layer": "expected sub-layer:MODEL:LAYER",
        "sub-layer:llama-7b": "expected sub-layer:MODEL:LAYER",
        "sub-layer:lama-7b:L1": "llama-7b",
        "sub-layer:llama-7b:L5": "L5",
        "sub-layer:llama-7b*3:L1": "expected sub-layer:MODEL:LAYER",
        "sub-layer:0x1x1x1": "found 0",
        "sub-layer:8x8x8x8:fp8": "fp8",
    }
    for text, found in cases.items():
        with pytest.raises(ConfigError, match=found):
            parse_sub_layer(text, 8)
    with pytest.raises(ConfigError, match="found 100 tokens on 8 GPUs"):
        planned("cais", SubLayer("odd", 8, 100, 64, 8, 8), machine(8))


def test_shapes_are_those_of_the_paper() -> None:
    one = sub_layer("llama-7b", "L2", 8)
    assert (one.tokens, one.hidden, one.inner, one.outer, one.size) == (9216, 4096, 1408, 1536, 75_497_472)
    assert sub_layer("llama-7b", "L1", 32, times=4).hidden == 16384


def test_norm_reads_the_whole_row() -> None:
    rows = np.arange(8.0).reshape(1, 8) ** 2
    for column in range(8):
        other = rows.copy()
        other[0, column] += 64
        assert (norm(other) != norm(rows)).sum() > 1
