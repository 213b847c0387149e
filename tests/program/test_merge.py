"""`merge`: identity, parts that come back, times on resources of one part alone and of several, order of arguments, streams, edges, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Declared, Discipline, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.sections import part_of, trace_of_part
from dysharp.program.verify import verify
from tests.interpreters.random_merges import memory_ps, random_parts
from tests.program import merge_checks as checks
from tests.program.merge_checks import HARDWARE, gemms

SEEDS = range(24)


@cache
def parts_of(seed: int) -> list[Part]:
    return random_parts(seed)


# ---- what a merge is -------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
def test_merge_of_one_program_is_the_program(seed: int) -> None:
    part = parts_of(seed)[0]
    assert merge([part]) is part.program
    assert merge([part], streams=[[part.label]]) is part.program


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_comes_back_as_it_was(seed: int) -> None:
    for parts in (parts_of(seed), checks.odd_parts(seed)):
        merged = merge(parts)
        verify(merged)
        for part in parts:
            checks.comes_back(merged, part)


def test_a_part_without_extra_bytes_has_none_beside_one_with_them() -> None:
    """A column that one part lacks has the value there that it stands for."""
    first, second = (part.program for part in parts_of(0)[:2])
    extra = np.arange(1, first.n_members + 1, dtype=np.int32)
    longer, plain = (replace(p, members=replace(p.members, ext_bytes=e)) for p, e in ((first, extra), (second, None)))
    found = merge([Part("A", longer), Part("B", plain)]).members.ext_bytes
    assert found is not None
    assert sorted(found.tolist()) == [0] * second.n_members + extra.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_the_arguments_has_no_meaning(seed: int) -> None:
    parts = parts_of(seed)
    one, other = checks.both_orders(merge, parts)
    assert run_burst(one)[0].digest() == run_burst(other)[0].digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_pools_of_a_node_are_one(seed: int) -> None:
    checks.pools_are_one(merge(parts_of(seed)), parts_of(seed))


# ---- times -----------------------------------------------------------------------------------------------------------


def moved(program: Program, by: int, n_nodes: int) -> Program:
    """`program` on the nodes from `by` on, of a machine with `n_nodes`. Links are equal: where they are not, an op's number chooses its link."""
    p = replace(program, hardware=replace(program.hardware, hashed_links=False))
    nets = tuple(replace(net, rates=net.rates * (n_nodes // p.n_nodes)) for net in p.nets)
    sessions = None if p.sessions is None else replace(p.sessions, home=p.sessions.home + np.int32(by))
    at = {
        name: replace(getattr(p, name), node=getattr(p, name).node + np.int32(by))
        for name in ("ops", "members", "regions", "semaphores", "issuers", "pools")
    }
    return replace(p, n_nodes=n_nodes, nets=nets, sessions=sessions, **at)


@pytest.mark.parametrize("seed", [seed if seed < 6 else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS])
@pytest.mark.parametrize("run", [lambda p: run_burst(p)[0], run_oracle], ids=["engine", "oracle"])
def test_parts_on_nodes_of_their_own_keep_their_times(seed: int, run: Any) -> None:
    parts = parts_of(seed)
    trains = max(part.program.row_trains for part in parts)  # of the whole machine
    n = sum(part.program.n_nodes for part in parts)
    apart = [replace(part, program=replace(moved(part.program, i * part.program.n_nodes, n), row_trains=trains)) for i, part in enumerate(parts)]
    merged = merge(apart)
    verify(merged)
    trace = run(merged)
    traces = [run(part.program) for part in apart]
    for part, alone in zip(apart, traces, strict=True):
        found = trace_of_part(merged, part.label, trace)
        for name in ("ready", "issue", "start", "end", "done", "cause", "member", "row_slot", "tile_ready"):
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), f"part {part.label}, {name}")
    np.testing.assert_array_equal(trace.up_busy, sum(alone.up_busy for alone in traces))
    np.testing.assert_array_equal(trace.down_busy, sum(alone.down_busy for alone in traces))


def puts(n: int, node: int = 0) -> Program:
    """`n` PUTs of 1000 B from `node` to the other one, without acknowledgements."""
    b = ProgramBuilder(HARDWARE, 2)
    put = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store", ack=0, source_ack=0))))
    b.ops(put, [node] * n, issuer=b.issuer(node, Discipline.PROGRAM_ORDER, name="send"), bytes=1000, to=To(1, [1 - node] * n))
    return b.build(Declared(0, {"up": {"dispatch": 1000 * n}, "down": {"dispatch": 1000 * n}}))


def time_of(program: Program) -> int:
    verify(program)
    trace = run_burst(program)[0]
    assert trace.digest() == run_oracle(program).digest()
    return trace.time_ps


@pytest.mark.parametrize(
    ("one", "other"),
    [(gemms(7), gemms(5, 3)), (gemms(7), gemms(5, name="host")), (gemms(7), gemms(5, pool_of=1)), (gemms(7), puts(9)), (puts(9), puts(4, 1))],
    ids=["pools of two sizes", "pools of two names", "pools of two nodes", "pool and link", "both directions"],
)
def test_parts_on_pools_and_links_of_their_own_take_the_longer_time(one: Program, other: Program) -> None:
    assert time_of(merge([Part("A", one), Part("B", other)])) == max(time_of(one), time_of(other))


def test_gemms_of_both_parts_share_the_slots_of_a_pool() -> None:
    one, other = gemms(6), gemms(4)
    merged = merge([Part("A", one), Part("B", other)])
    assert (time_of(one), time_of(other), time_of(merged)) == (3000, 2000, 5000)


def test_transfers_of_both_parts_share_a_link() -> None:
    one, other = puts(6), puts(4)
    merged = merge([Part("A", one), Part("B", other)])
    assert run_burst(merged)[0].up_busy[0] == run_burst(one)[0].up_busy[0] + run_burst(other)[0].up_busy[0]
    assert max(time_of(one), time_of(other)) < time_of(merged) < time_of(one) + time_of(other)
    assert merged.declared.traffic["up"] == {"A.dispatch": 6000, "B.dispatch": 4000}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_merge_is_no_shorter_than_a_resource_and_no_longer_than_its_parts(seed: int) -> None:
    """docs/design/0022, M, says why memory counts, and where the upper bound ends."""
    alone, memory = [run_burst(part.program)[0] for part in parts_of(seed)], [memory_ps(part.program) for part in parts_of(seed)]
    merged = merge(parts_of(seed))
    time_ps = run_burst(merged)[0].time_ps
    for trace in alone:
        assert time_ps >= max((trace.up_busy * 1e6 / merged.port_rate).max(), (trace.down_busy * 1e6 / merged.port_rate).max())
    assert time_ps <= sum(trace.time_ps for trace in alone) + sum(memory)


def late_long_task(shares_host: bool) -> list[Part]:
    """A: a task of 10 and ten tasks of 1 on two slots, all released at 1: the long one first. B: a task of 1 on the host thread of A."""
    b = ProgramBuilder(HARDWARE, 1)
    host = b.issuer(0, Discipline.READY_FIFO, pool=b.pool(0, 1, "host"))
    short, long = (b.template(Template(f"t{d}", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, d]))) for d in (1000, 10_000))
    sm, stream = (b.issuer(0, Discipline.READY_FIFO, pool=b.pool(0, n, name)) for n, name in ((2, "sm"), (1, "stream")))
    first, other = b.ops(short, [0], issuer=host), b.ops(short, [0], issuer=stream)
    late, many = b.ops(long, [0], issuer=sm), b.ops(short, [0] * 10, issuer=sm)
    b.edges(Tail.OP_DONE, first, Head.OP_ISSUE, late)
    b.edges(Tail.OP_DONE, other, Head.OP_ISSUE, np.arange(many, many + 10))
    a = b.build()
    b = ProgramBuilder(HARDWARE, 1)
    b.ops(b.template(Template("t", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, 1000]))), [0],
          issuer=b.issuer(0, Discipline.READY_FIFO, pool=b.pool(0, 1, "host" if shares_host else "own")))  # fmt: skip
    return [Part("B", a), Part("A", b.build())]


def test_a_task_that_comes_late_may_cost_more_than_the_other_part_takes() -> None:
    """List scheduling: the long task of one part gets its slot behind the short ones. Graham's bound holds."""
    alone = [time_of(part.program) for part in late_long_task(True)]
    assert alone == [11_000, 1000]
    assert time_of(merge(late_long_task(False))) == 11_000
    whole = time_of(merge(late_long_task(True)))
    assert whole == 16_000 > sum(alone)
    chain, busy = 11_000, 20_000 / 2 + 2000 + 1000  # of the two slots, the host thread and the stream
    assert whole <= chain + busy


# ---- streams and edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_a_stream_follow_each_other_on_every_node(seed: int) -> None:
    parts = random_parts(seed, packets=True)
    merged = merge(parts, streams=[[part.label for part in parts]])
    verify(merged)
    checks.follows(merged, run_burst(merged)[0])


def test_a_node_without_ops_passes_the_stream_on() -> None:
    parts = [Part("A", gemms(4)), Part("B", gemms(2, pool_of=1)), Part("C", gemms(4))]
    merged = merge(parts, streams=[["A", "B", "C"]])
    trace = run_burst(merged)[0]
    assert time_of(merged) == 4000  # B is on the other node
    assert trace.issue[merged.sections[2].ops.start] == 2000


def test_a_stream_waits_for_rows_that_others_send() -> None:
    merged = merge(checks.late_rows(), streams=[["A", "B"]])
    verify(merged)
    trace = run_burst(merged)[0]
    assert trace.issue[merged.sections[1].ops.start] == trace.tile_ready[0] > 0


def test_ops_wait_for_the_ops_that_edges_name() -> None:
    merged = merge([Part("A", gemms(4)), Part("B", gemms(2, pool_of=1))], edges=[Cross("B", [0, 1], "A", 3)])
    trace = run_burst(merged)[0]
    assert time_of(merged) == 3000
    assert trace.issue[4:].tolist() == [2000, 2000]
    assert trace.cause[4:].tolist() == [3, 3]


def test_edges_in_a_circle_are_refused() -> None:
    merged = merge([Part("A", gemms(1)), Part("B", gemms(1))], edges=[Cross("B", 0, "A", 0), Cross("A", 0, "B", 0)])
    with pytest.raises(ProgramError, match="op 0"):
        verify(merged)


# ---- names and refusals ----------------------------------------------------------------------------------------------


def test_labels_are_in_every_name() -> None:
    merged = merge([Part("B", puts(1), layer=3, microbatch=1, direction="bwd"), Part("A", gemms(1))])
    assert merged.operator_names[:5] == ("A.dispatch", "A.gemm1", "A.gemm2", "A.combine", "A.other")
    assert [t.name for t in merged.templates] == ["A.gemm1", "B.put"]
    assert merged.issuers.name == ("node[0].A.sm", "node[0].B.send")
    assert [(s.label, s.layer, s.microbatch, s.direction) for s in merged.sections] == [("A", 0, 0, "fwd"), ("B", 3, 1, "bwd")]
    assert (merged.templates[1].layer, merged.templates[1].microbatch) == (3, 1)


OTHER_MACHINE = replace(gemms(1), hardware=replace(HARDWARE, lat=7))


@pytest.mark.parametrize(
    ("parts", "more", "text"),
    [
        ([], {}, "at least one part"),
        ([Part("A", gemms(1)), Part("A", gemms(2))], {}, r"labels \['A', 'A'\]"),
        ([Part("a.b", gemms(1))], {}, "a word of its own"),
        ([Part("A", gemms(1)), Part("B", OTHER_MACHINE)], {}, "found hardware .* expected one machine"),
        ([Part("A", gemms(1)), Part("B", replace(gemms(1), n_nodes=3))], {}, "found n_nodes 2 in part 'A' and 3 in part 'B'"),
        ([Part("A", gemms(1)), Part("B", gemms(1))], {"streams": [["A", "C"]]}, "found streams"),
        ([Part("A", gemms(1)), Part("B", gemms(1))], {"streams": [["A", "B", "A"]]}, "in one place at most"),
        ([Part("A", gemms(1)), Part("B", gemms(1))], {"edges": [Cross("B", 1, "A", 0)]}, "part 'B': op: found 1, expected 0 .. 0"),
        ([Part("A", gemms(1)), Part("B", gemms(1))], {"edges": [Cross("C", 0, "A", 0)]}, "part 'C', expected one of A, B"),
        ([Part("A", gemms(3)), Part("B", gemms(3))], {"edges": [Cross("B", [0, 1], "A", [0, 1, 2])]}, "3 and 2 ops"),
        ([Part("A", gemms(1)), Part("B", merge([Part("C", gemms(1)), Part("D", gemms(1))]))], {}, "part 'B' that is a merge"),
    ],
)
def test_merges_that_cannot_be_are_refused(parts: list[Part], more: dict[str, Any], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        merge(parts, **more)


def test_a_part_that_names_another_part_is_refused() -> None:
    merged = merge([Part("A", gemms(2)), Part("B", gemms(2))])
    e = merged.edges
    wrong = replace(e, tail=np.array([0], np.int32), tail_kind=np.zeros(1, np.int32), head=np.array([3], np.int32), head_kind=np.zeros(1, np.int32))
    section = replace(merged.sections[1], edges=range(0, 1))
    with pytest.raises(ProgramError, match=r"part 'B': found 0, expected an id of the part itself, 2 \.\. 3"):
        verify(replace(merged, edges=wrong, sections=(merged.sections[0], section)))
    with pytest.raises(ProgramError, match="part 'C': found no such part, expected one of A, B"):
        part_of(merged, "C")
