"""`merge`: identity, parts that come back, times on resources of one part alone and of several, order of arguments, streams, edges, refusals."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.errors import ProgramError
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Declared, Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To, Trace
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.sections import part_of
from dysharp.program.verify import verify
from dysharp.testing.random_merges import random_parts

HARDWARE = Hardware(rate=1_000_000, lat=1000, ack=0, notify=0, responder=0, local=0, n_vcs=1, vc_bytes=0, n_links=1)
SEEDS = range(24)


@cache
def parts_of(seed: int) -> list[Part]:
    return random_parts(seed)


def columns(program: Program) -> dict[str, Any]:
    """Every column of the tables that a part has for itself."""
    tables = {name: getattr(program, name) for name in ("ops", "members", "regions", "edges", "holds")}
    return {f"{name}.{f.name}": getattr(table, f.name) for name, table in tables.items() for f in fields(table)}


def same(one: Program, other: Program) -> None:
    for name, column in columns(one).items():
        np.testing.assert_array_equal(column, columns(other)[name], name)


# ---- what a merge is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_merge_of_one_program_is_the_program(seed: int) -> None:
    part = parts_of(seed)[0]
    assert merge([part]) is part.program
    assert merge([part], streams=[[part.label]]) is part.program


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_comes_back_as_it_was(seed: int) -> None:
    merged = merge(parts_of(seed))
    verify(merged)
    for part in parts_of(seed):
        was, found = part.program, part_of(merged, part.label)
        for name in OWN:
            np.testing.assert_array_equal(columns(was)[name], columns(found)[name], name)
        assert (found.regions.name, found.operators, found.declared) == (was.regions.name, was.operators, was.declared)
        templates, own = found.ops.template, was.ops.template
        for i, j in {*zip(own.tolist(), templates.tolist(), strict=True)}:
            assert equal_but_ids(was, was.templates[i], found, found.templates[j]), (part.label, i, j)
        assert len({*zip(own.tolist(), templates.tolist(), strict=True)}) == len({*own.tolist()})
        for table, ours, theirs in (
            ("wires", found.ops.wire, was.ops.wire),
            ("issuers", found.ops.issuer, was.ops.issuer),
            ("semaphores", found.holds.sem, was.holds.sem),
            ("sessions", found.ops.session, was.ops.session),
            ("pools", np.append(found.issuers.pool, -1)[found.ops.issuer], np.append(was.issuers.pool, -1)[was.ops.issuer]),
        ):
            equal_entries(getattr(found, table), ours, getattr(was, table), theirs, part.label)


OWN = [
    *(f"ops.{name}" for name in ("node", "bytes", "key", "prio", "rows", "threshold")),
    *(f"members.{name}" for name in ("ptr", "node", "fill_ptr", "fill_row")),
    *(f"regions.{name}" for name in ("node", "alloc", "tile_rows", "row_bytes", "row_ptr", "tile_ptr", "row_key", "row_notify")),
    *(f"edges.{name}" for name in ("tail_kind", "tail", "head_kind", "head")),
    *(f"holds.{name}" for name in ("amount", "acquire_kind", "acquire", "release_kind", "release")),
]
"""Columns without ids of tables that the parts share."""


def equal_entries(table: Any, ids: np.ndarray | None, other: Any, theirs: np.ndarray | None, label: str) -> None:
    """Whether `ids` of `table` mean what `theirs` of `other` mean: equal columns, and names with the label."""
    if theirs is None or other is None:
        return
    assert ids is not None
    np.testing.assert_array_equal(ids >= 0, theirs >= 0)
    ids, theirs = ids[theirs >= 0], theirs[theirs >= 0]
    for f in fields(other):
        column, found = getattr(other, f.name), getattr(table, f.name)
        if isinstance(column, np.ndarray) and f.name != "pool":
            np.testing.assert_array_equal(found[ids], column[theirs], f.name)
        if f.name == "name":
            assert [found[i].replace(f"].{label}.", "].") for i in ids] == [column[i] for i in theirs]


def equal_but_ids(was: Program, a: Template, merged: Program, b: Template) -> bool:
    """Whether a template means in the merge what it means in its part."""
    if a.duration >= 0:
        np.testing.assert_array_equal(was.durations[a.duration], merged.durations[b.duration][: was.durations.shape[1]])
        np.testing.assert_array_equal(was.task_bytes[a.duration], merged.task_bytes[b.duration][: was.durations.shape[1]])
    names = (was.classes[a.cls], was.classes[a.response_cls], was.tables[a.table] if a.table >= 0 else None, was.framings[a.framing])
    found = (merged.classes[b.cls], merged.classes[b.response_cls], merged.tables[b.table] if b.table >= 0 else None, merged.framings[b.framing])
    ids = {"cls": 0, "response_cls": 0, "framing": 0, "table": 0, "duration": 0, "layer": 0, "microbatch": 0}
    return names == found and replace(a, **ids) == replace(b, **ids)


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_the_arguments_has_no_meaning(seed: int) -> None:
    parts = parts_of(seed)
    edges = [Cross("B", 0, "A", parts[0].program.n_ops - 1), Cross("B", [1, 0], "A", [0, 1])]
    one, other = merge(parts, edges=edges), merge(parts[::-1], edges=edges[::-1])
    same(one, other)
    assert (one.templates, one.sections, one.pools.name) == (other.templates, other.sections, other.pools.name)
    assert run_burst(one)[0].digest() == run_burst(other)[0].digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_pools_of_a_node_are_one(seed: int) -> None:
    def items(p: Program) -> list[tuple[int, int, str]]:
        return list(zip(p.pools.node.tolist(), p.pools.slots.tolist(), p.pools.name, strict=True))

    found = items(merge(parts_of(seed)))
    assert len(set(found)) == len(found)
    assert set(found) == {item for part in parts_of(seed) for item in items(part.program)}


# ---- times -----------------------------------------------------------------------------------------------------------


def moved(program: Program, by: int, n_nodes: int) -> Program:
    """`program` on the nodes from `by` on, of a machine with `n_nodes`."""
    p = program
    nets = tuple(replace(net, rates=net.rates * (n_nodes // p.n_nodes)) for net in p.nets)
    sessions = None if p.sessions is None else replace(p.sessions, home=p.sessions.home + np.int32(by))
    at = {
        name: replace(getattr(p, name), node=getattr(p, name).node + np.int32(by))
        for name in ("ops", "members", "regions", "semaphores", "issuers", "pools")
    }
    return replace(p, n_nodes=n_nodes, nets=nets, sessions=sessions, **at)


def times_of(trace: Trace, merged: Program, label: str) -> dict[str, np.ndarray]:
    """The order columns of one part, with its own ids."""
    section = next(s for s in merged.sections if s.label == label)
    ops, m, r = slice(section.ops.start, section.ops.stop), merged.members, merged.regions
    found = {name: getattr(trace, name)[ops] for name in ("ready", "issue", "start", "end", "done")}
    found["cause"] = np.where(trace.cause[ops] < 0, -1, trace.cause[ops] - ops.start)
    found["member"] = trace.member[m.ptr[ops.start] : m.ptr[ops.stop]]
    found["row_slot"] = trace.row_slot[r.row_ptr[section.regions.start] : r.row_ptr[section.regions.stop]]
    found["tile_ready"] = trace.tile_ready[r.tile_ptr[section.regions.start] : r.tile_ptr[section.regions.stop]]
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", [lambda p: run_burst(p)[0], run_oracle], ids=["engine", "oracle"])
def test_parts_on_nodes_of_their_own_keep_their_times(seed: int, run: Any) -> None:
    parts = parts_of(seed)
    trains = max(part.program.row_trains for part in parts)  # of the whole machine
    n = sum(part.program.n_nodes for part in parts)
    apart = [replace(part, program=replace(moved(part.program, i * part.program.n_nodes, n), row_trains=trains)) for i, part in enumerate(parts)]
    merged = merge(apart)
    verify(merged)
    trace = run(merged)
    for part in apart:
        alone = run(part.program)
        for name, column in times_of(trace, merged, part.label).items():
            np.testing.assert_array_equal(column, getattr(alone, name), f"part {part.label}, {name}")
    np.testing.assert_array_equal(trace.up_busy, sum(run(part.program).up_busy for part in apart))
    np.testing.assert_array_equal(trace.down_busy, sum(run(part.program).down_busy for part in apart))


def gemms(n_tasks: int, slots: int = 2, name: str = "sm", pool_of: int = 0) -> Program:
    """`n_tasks` COMPUTEs of one task of 1000 ps, on `slots` slots of node `pool_of`."""
    b = ProgramBuilder(HARDWARE, 2)
    gemm = b.template(Template("gemm1", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, 1000])))
    b.ops(gemm, [pool_of] * n_tasks, issuer=b.issuer(pool_of, Discipline.READY_FIFO, pool=b.pool(pool_of, slots, name), name="sm"))
    return b.build()


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


# ---- streams and edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_a_stream_follow_each_other_on_every_node(seed: int) -> None:
    parts = random_parts(seed, packets=True)
    merged = merge(parts, streams=[[part.label for part in parts]])
    verify(merged)
    trace = run_burst(merged)[0]
    node = merged.ops.node
    for one, other in zip(merged.sections, merged.sections[1:], strict=False):
        for n in range(merged.n_nodes):
            before, after = (np.arange(s.ops.start, s.ops.stop)[node[s.ops.start : s.ops.stop] == n] for s in (one, other))
            if len(before) and len(after):
                assert trace.issue[after].min() >= trace.done[before].max()


def test_a_node_without_ops_passes_the_stream_on() -> None:
    parts = [Part("A", gemms(4)), Part("B", gemms(2, pool_of=1)), Part("C", gemms(4))]
    merged = merge(parts, streams=[["A", "B", "C"]])
    trace = run_burst(merged)[0]
    assert time_of(merged) == 4000  # B is on the other node
    assert trace.issue[merged.sections[2].ops.start] == 2000


def test_a_stream_waits_for_rows_that_others_send() -> None:
    b = ProgramBuilder(HARDWARE, 2)
    put = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    _, row, _ = b.regions([1], [1], 1000, 1)
    b.ops(put, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=1000, to=To([1], [1], [1], [row]))
    merged = merge([Part("A", b.build()), Part("B", gemms(1, pool_of=1))], streams=[["A", "B"]])
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
