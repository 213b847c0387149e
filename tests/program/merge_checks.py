"""What holds for every merge. Tests ask it of `merge`, and of `merge` with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.program import Declared, Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To, Trace
from dysharp.program.merge import Cross, Part
from dysharp.program.payload import moved_bytes
from dysharp.program.sections import part_of
from dysharp.program.verify import verify
from tests.interpreters.random_merges import random_parts
from tests.interpreters.random_points import random_points


def columns(program: Program) -> dict[str, Any]:
    """Every column of the tables that a part has for itself."""
    tables = {name: getattr(program, name) for name in ("ops", "members", "regions", "edges", "holds")}
    return {f"{name}.{f.name}": getattr(table, f.name) for name, table in tables.items() for f in fields(table)}


def same(one: Program, other: Program) -> None:
    for name, column in columns(one).items():
        np.testing.assert_array_equal(column, columns(other)[name], name)


def comes_back(merged: Program, part: Part) -> None:
    """The part is in the merge as it was, with its names."""
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
        ("chains", found.ops.chain, was.ops.chain),
    ):
        equal_entries(getattr(found, table), ours, getattr(was, table), theirs, part.label)
    if was.chains is not None and was.ops.chain is not None:
        chained = was.ops.chain >= 0
        pools = (p.chains.pool[p.ops.chain[chained]] for p in (found, was))
        equal_entries(found.pools, next(pools), was.pools, next(pools), part.label)


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


def odd_parts(seed: int) -> list[Part]:
    """Parts with classes and tables of other names, or with chains. A merge with chains may deadlock, so these are not run."""
    if seed % 2 == 0:
        chains = random_points(seed, parts=("chains",))
        assert chains.chains is not None
        modes, pools = replace(chains.chains, mode=1 - chains.chains.mode), replace(chains.pools, slots=chains.pools.slots + np.int32(1))
        return [Part("A", chains), Part("B", replace(chains, classes=("other", *chains.classes[1:]), chains=modes, pools=pools))]
    parts = []
    for part in random_parts(seed):
        tables = tuple(replace(table, name=part.label, allocates=False, banks=1) for table in part.program.tables)
        program = replace(part.program, classes=(part.label, *part.program.classes[1:]), tables=tables)
        parts.append(replace(part, program=replace(program, declared=Declared(0, moved_bytes(program)))))
    return parts


def late_rows() -> list[Part]:
    """Node 0 sends a row to node 1, whose only op belongs to the next part."""
    b = ProgramBuilder(HARDWARE, 2)
    put = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    _, row, _ = b.regions([1], [1], 1000, 1)
    b.ops(put, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=1000, to=To([1], [1], [1], [row]))
    return [Part("A", b.build()), Part("B", gemms(1, pool_of=1))]


HARDWARE = Hardware(rate=1_000_000, lat=1000, ack=0, notify=0, responder=0, local=0, n_vcs=1, vc_bytes=0, n_links=1)


def gemms(n_tasks: int, slots: int = 2, name: str = "sm", pool_of: int = 0) -> Program:
    """`n_tasks` COMPUTEs of one task of 1000 ps, on `slots` slots of node `pool_of`."""
    b = ProgramBuilder(HARDWARE, 2)
    gemm = b.template(Template("gemm1", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, 1000])))
    b.ops(gemm, [pool_of] * n_tasks, issuer=b.issuer(pool_of, Discipline.READY_FIFO, pool=b.pool(pool_of, slots, name), name="sm"))
    return b.build()


def both_orders(merge: Callable[..., Program], parts: list[Part]) -> tuple[Program, Program]:
    """The merge of the parts in both orders of the arguments, which are equal."""
    edges = [Cross("B", 0, "A", parts[0].program.n_ops - 1), Cross("B", [1, 0], "A", [0, 1])]
    one, other = merge(parts, edges=edges), merge(parts[::-1], edges=edges[::-1])
    same(one, other)
    assert (one.templates, one.sections, one.pools.name) == (other.templates, other.sections, other.pools.name)
    return one, other


def pools_are_one(merged: Program, parts: list[Part]) -> None:
    """Equal pools of a node are one."""

    def items(p: Program) -> list[tuple[int, int, str]]:
        return list(zip(p.pools.node.tolist(), p.pools.slots.tolist(), p.pools.name, strict=True))

    assert len(set(items(merged))) == len(items(merged))
    assert set(items(merged)) == {item for part in parts for item in items(part.program)}


def follows(merged: Program, trace: Trace) -> None:
    """Every part issues its first op on a node when all ops of the part before it are done there, and its rows are there."""
    node, r = merged.ops.node, merged.regions
    tile_node = np.repeat(r.node, np.diff(r.tile_ptr))
    for one, other in zip(merged.sections, merged.sections[1:], strict=False):
        for n in range(merged.n_nodes):
            before, after = (np.arange(s.ops.start, s.ops.stop)[node[s.ops.start : s.ops.stop] == n] for s in (one, other))
            tiles = np.arange(r.tile_ptr[one.regions.start], r.tile_ptr[one.regions.stop])
            ends = np.concatenate((trace.done[before], trace.tile_ready[tiles[tile_node[tiles] == n]]))
            assert trace.issue[after].min(initial=1 << 62) >= ends.max(initial=0)


def all_of_them(merge: Callable[..., Program], seed: int) -> None:
    """Raises where `merge` breaks one of the rules of this file for the parts of `seed`."""
    for parts in (random_parts(seed), odd_parts(seed)):
        merged = merge(parts)
        verify(merged)
        for part in parts:
            comes_back(merged, part)
        pools_are_one(merged, parts)
        moved = {side: sum(bytes_of(p.program, side) for p in parts) for side in merged.declared.traffic}
        assert {side: bytes_of(merged, side) for side in moved} == moved
    parts = random_parts(seed, packets=True)
    one, _ = both_orders(merge, parts)
    trace, second = run_burst(one)[0], one.sections[1].ops.start
    last = one.sections[0].ops.stop - 1
    for head, tail in ((0, last), (1, 0), (0, 1)):
        assert trace.ready[second + head] >= trace.done[tail]
    for some in (parts, late_rows()):
        streamed = merge(some, streams=[[part.label for part in some]])
        verify(streamed)
        follows(streamed, run_burst(streamed)[0])


def bytes_of(program: Program, side: str) -> int:
    """The declared bytes of one side of the links."""
    return sum(program.declared.traffic.get(side, {}).values())
