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
from dysharp.program import Declared, Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To, Trace
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.sections import part_of
from dysharp.program.verify import verify
from dysharp.testing.random_merges import random_merge, random_parts

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
        used = np.unique(was.ops.template)
        o, m = was.ops, merged.ops
        mine = slice(*((s := next(s for s in merged.sections if s.label == part.label)).ops.start, s.ops.stop))
        for name, table in columns(was).items():
            if name not in {"ops.template", "ops.issuer", "ops.wire", "ops.session", "holds.sem", "ops.offset", "ops.value", "members.ext_bytes"}:
                if table is not None and name != "regions.name":
                    np.testing.assert_array_equal(table, columns(found)[name], name)
        assert found.regions.name == was.regions.name
        assert [found.templates[i].name for i in found.ops.template] == [was.templates[i].name for i in o.template]
        for i, t in zip(used, found.templates, strict=True):
            assert equal_but_ids(was, was.templates[i], merged, t), (part.label, t)
        assert found.operators == was.operators
        named = [f"node[{n}].{part.label}.{was.issuers.name[i].partition('].')[2]}" if i >= 0 else "" for i, n in zip(o.issuer, o.node, strict=True)]
        assert [merged.issuers.name[i] if i >= 0 else "" for i in m.issuer[mine]] == named
        for f in fields(was.wires):
            mine_up, own = getattr(merged.wires, f.name), getattr(was.wires, f.name)
            np.testing.assert_array_equal(mine_up[m.wire[mine][o.wire >= 0]], own[o.wire[o.wire >= 0]], f.name)
        for column in ("node", "capacity"):
            np.testing.assert_array_equal(getattr(merged.semaphores, column)[found.holds.sem], getattr(was.semaphores, column)[was.holds.sem])
        queue, own_queue = m.issuer[mine][o.issuer >= 0], o.issuer[o.issuer >= 0]
        for column in ("node", "discipline", "interval_ps"):
            np.testing.assert_array_equal(getattr(merged.issuers, column)[queue], getattr(was.issuers, column)[own_queue], column)
        pool, own_pool = merged.issuers.pool[queue], was.issuers.pool[own_queue]
        np.testing.assert_array_equal(pool >= 0, own_pool >= 0)
        for column in ("node", "slots"):
            np.testing.assert_array_equal(getattr(merged.pools, column)[pool[pool >= 0]], getattr(was.pools, column)[own_pool[own_pool >= 0]])


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
    merged = merge(parts_of(seed))
    items = list(zip(merged.pools.node.tolist(), merged.pools.slots.tolist(), merged.pools.name, strict=True))
    assert len(set(items)) == len(items)
    assert {(n, s, name) for part in parts_of(seed) for n, s, name in zip(*(getattr(part.program.pools, c) for c in ("node", "slots", "name")), strict=True)} == set(items)


# ---- times -----------------------------------------------------------------------------------------------------------


def moved(program: Program, by: int, n_nodes: int) -> Program:
    """`program` on the nodes from `by` on, of a machine with `n_nodes`."""
    p = program
    nets = tuple(replace(net, rates=net.rates * (n_nodes // p.n_nodes)) for net in p.nets)
    sessions = None if p.sessions is None else replace(p.sessions, home=p.sessions.home + np.int32(by))
    at = {name: replace(getattr(p, name), node=getattr(p, name).node + np.int32(by)) for name in ("ops", "members", "regions", "semaphores", "issuers", "pools")}
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
    apart = [
        replace(part, program=replace(moved(part.program, i * part.program.n_nodes, n), row_trains=trains)) for i, part in enumerate(parts)
    ]
    merged = merge(apart)
    verify(merged)
    trace = run(merged)
    for part in apart:
        alone = run(part.program)
        for name, column in times_of(trace, merged, part.label).items():
            np.testing.assert_array_equal(column, getattr(alone, name), f"part {part.label}, {name}")
    np.testing.assert_array_equal(trace.up_busy, sum(run(part.program).up_busy for part in apart))
    np.testing.assert_array_equal(trace.down_busy, sum(run(part.program).down_busy for part in apart))
