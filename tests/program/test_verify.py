"""Every rule of the verifier: a legal Program with one thing wrong, and the line that says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ProgramError
from dysharp.engine.burst.lower import beyond_packets
from dysharp.isa.framing import Framing
from dysharp.program import (
    Alloc,
    Chaining,
    Declared,
    Discipline,
    Hardware,
    Head,
    HubTable,
    Kind,
    Program,
    ProgramBuilder,
    Tail,
    Template,
    To,
    startable,
)
from dysharp.program.meaning import check_slots
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.systems.building.schema import LAYER_SCHEMA
from tests.interpreters.random_programs import random_program

HARDWARE = Hardware(rate=1_000_000, lat=1000, ack=2000, notify=2000, responder=500, local=100, n_vcs=1, vc_bytes=0, n_links=1)
ROW = 256
# op ids of `legal`
SENT, GEMM, PULLED, LAST = 0, 2, 4, 6
GEMM1, GEMM2 = {"fn": "gemm1", "src": "expert.x", "dst": "expert.a"}, {"fn": "gemm2", "src": "expert.a", "dst": "expert.y"}


def legal(alloc: Alloc = Alloc.FIRST_TOUCH) -> Program:
    """Nodes 0 and 1 send one row each to both; tiles compute and notify, each token is pulled."""
    b = ProgramBuilder(HARDWARE, 2, ("data", "answer"), schema=LAYER_SCHEMA)
    store = b.framing(Framing("store"))
    time = b.duration([0, 500, 700])
    send = b.template(Template("send", Kind.MULTICAST, "dispatch", framing=store))
    gemm = b.template(Template("gemm", Kind.COMPUTE, "gemm1", tasks=2, duration=time))
    pull = b.template(Template("pull", Kind.PULL_REDUCE, "combine", response_cls=1, framing=store))
    join = b.template(Template("end", Kind.JOIN, "other"))
    nodes = np.arange(2)
    b.regions(nodes, [2, 2], ROW, 2, alloc=alloc, key=[0, 1, 0, 1], name="expert")
    both = To([2, 2], [0, 1, 0, 1], [1, 1, 1, 1], [0, 2, 1, 3])
    senders = [b.issuer(n, Discipline.PROGRAM_ORDER, name="send") for n in nodes]
    pools = [b.pool(n, 4) for n in nodes]
    sms = [b.issuer(n, Discipline.READY_FIFO, pool=p, name="sm") for n, p in zip(nodes, pools, strict=True)]
    pullers = [b.issuer(n, Discipline.SMALLEST_KEY, name="pull") for n in nodes]
    window = b.semaphore(0, 2)
    b.ops(send, nodes, issuer=senders, bytes=ROW, to=both)
    b.ops(gemm, nodes, issuer=sms, rows=2)
    b.ops(pull, nodes, issuer=pullers, bytes=ROW, to=both)
    b.ops(join, 0)
    b.edges(Tail.TILE_READY, nodes, Head.OP_ISSUE, GEMM + nodes)
    b.edges(Tail.OP_DONE, GEMM + nodes, Head.TILE_NOTIFY, nodes)
    b.edges(Tail.OP_DONE, PULLED + nodes, Head.OP_ISSUE, LAST)
    b.notify(np.arange(4), PULLED + np.array([0, 1, 0, 1]))
    b.hold(window, [SENT], amount=2)
    return b.build(Declared(4, {d: {"dispatch": 2 * ROW, "combine": 2 * ROW} for d in ("up", "down")}))


def put(program: Program, table: str, column: str, row: int | slice, value: Any) -> Program:
    """`program` with one entry of one column changed."""
    old = getattr(program, table)
    changed = getattr(old, column).copy()
    changed[row] = value
    return replace(program, **{table: replace(old, **{column: changed})})


def with_template(program: Program, i: int, **fields: Any) -> Program:
    templates = list(program.templates)
    templates[i] = replace(templates[i], **fields)
    return replace(program, templates=tuple(templates))


def without_last_member(program: Program, op: int) -> Program:
    """`op` loses its last member with its one fill."""
    m = program.members
    gone = int(m.ptr[op + 1]) - 1
    fill = int(m.fill_ptr[gone])
    ptr = m.ptr.copy()
    ptr[op + 1 :] -= 1
    fill_ptr = np.delete(m.fill_ptr, gone)
    fill_ptr[gone:] -= 1
    node, rows = np.delete(m.node, gone), np.delete(m.fill_row, fill)
    return replace(program, members=replace(m, ptr=ptr, node=node, fill_ptr=fill_ptr, fill_row=rows))


def with_edge(program: Program, tail_kind: Tail, tail: int, head_kind: Head, head: int) -> Program:
    e = program.edges
    new = zip((e.tail_kind, e.tail, e.head_kind, e.head), (tail_kind, tail, head_kind, head), strict=True)
    return replace(program, edges=type(e)(*(np.append(c, np.int32(v)) for c, v in new)))


def with_hold(program: Program, sem: int, op: int, amount: int) -> Program:
    h = program.holds
    new = zip((h.sem, h.amount, h.acquire_kind, h.acquire, h.release_kind, h.release), (sem, amount, 0, op, 1, op), strict=True)
    return replace(program, holds=type(h)(*(np.append(c, np.int32(v)) for c, v in new)))


def declared(program: Program, rows: int | None = None, **traffic: dict[str, int]) -> Program:
    d = program.declared
    rows = d.useful_rows if rows is None else rows
    return replace(program, declared=Declared(rows, d.traffic | traffic))


BAD: dict[str, tuple[Callable[[Program], Program], str]] = {
    "template id": (lambda p: put(p, "ops", "template", 3, 4), r"op 3: template: found 4, expected 0 \.\. 3"),
    "node id": (lambda p: put(p, "ops", "node", 6, 2), r"op 6: node: found 2, expected 0 \.\. 1"),
    "issuer id": (lambda p: put(p, "ops", "issuer", 0, 6), r"op 0: issuer: found 6, expected -1 \.\. 5"),
    "prio": (lambda p: put(p, "ops", "prio", 1, 1 << 20), r"op 1: prio: found 1048576, expected 0 \.\. 1048575"),
    "negative prio": (lambda p: put(p, "ops", "prio", 1, -1), r"op 1: prio: found -1, expected 0 \.\."),
    "key": (lambda p: put(p, "ops", "key", 1, -2), r"op 1: key: found -2, expected -1 \.\."),
    "bytes": (lambda p: put(p, "ops", "bytes", 4, 16385), r"op 4: bytes of one train: found 16385, expected 0 \.\. 16384"),
    "wire": (lambda p: put(p, "ops", "wire", 4, 2), r"op 4: wire: found 2, expected -1 \.\. 1"),
    "no wire": (lambda p: put(p, "ops", "wire", 4, -1), r"op 4 \(pull, node 0\): found wire -1, expected a row for transfers only"),
    "two sizes on a wire": (
        lambda p: put(p, "ops", "bytes", 0, 128),
        r"op 0 \(send, node 0\): found 128 B on a wire row of 256 B, expected one size per row",
    ),
    "no issuer": (lambda p: put(p, "ops", "issuer", 2, -1), r"op 2 \(gemm\): found no issuer, expected one on its node"),
    "issuer elsewhere": (lambda p: put(p, "ops", "issuer", 2, 3), r"op 2: found issuer 3 of another node, expected one of node 0"),
    "compute without pool": (lambda p: put(p, "ops", "issuer", 2, 0), r"op 2 \(gemm\): found an issuer without a pool, expected one with slots"),
    "transfer on slots": (lambda p: put(p, "ops", "issuer", 0, 2), r"op 0 \(send\): found an issuer of a pool, expected one without"),
    "rows": (lambda p: put(p, "ops", "rows", 3, 3), r"op 3 \(gemm\): found 3 rows, expected 0 \.\. 2"),
    "no duration": (lambda p: put(p, "ops", "rows", 3, 0), r"op 3 \(gemm\): found a task of 0 ps, expected 1 or more"),
    "tasks": (lambda p: with_template(p, 1, tasks=4096), r"template 1 \(gemm\): found 4096 tasks, expected 1 \.\. 4095"),
    "no tasks": (lambda p: with_template(p, 1, tasks=0), r"template 1 \(gemm\): found 0 tasks, expected 1 \.\. 4095"),
    "duration id": (lambda p: with_template(p, 1, duration=1), r"template 1 \(gemm\): found duration 1, expected 0 \.\. 0"),
    "class": (lambda p: with_template(p, 0, cls=2), r"template 0 \(send\): found cls 2, expected 0 \.\. 1"),
    "response class": (lambda p: with_template(p, 2, response_cls=-1), r"template 2 \(pull\): found response_cls -1, expected 0 \.\. 1"),
    "framing": (lambda p: with_template(p, 2, framing=1), r"template 2 \(pull\): found framing 1, expected 0 \.\. 0"),
    "banks": (
        lambda p: replace(p, tables=(HubTable("rat", 3, 1, 1, allocates=True, banks=2),)),
        r"table 'rat': found 3 entries in 2 banks, expected as many in each",
    ),
    "banks of a cache": (
        lambda p: replace(p, tables=(HubTable("al_tlb", 4, 1, 1, banks=2),)),
        r"table 'al_tlb': found 2 banks, expected 1 where rows do not take their places",
    ),
    "two row tables": (
        lambda p: replace(p, tables=(HubTable("rat", 0, 1, 1, allocates=True),) * 2),
        r"tables: found several in which rows take their places, expected at most 1",
    ),
    "pull asks a row table": (
        lambda p: with_template(replace(p, tables=(HubTable("rat", 0, 1, 1, allocates=True),)), 2, table=0),
        r"template 2 \(pull\): found a PULL_REDUCE that asks table 'rat' for new places, expected a store",
    ),
    "hardware": (lambda p: replace(p, hardware=replace(HARDWARE, rate=0)), r"hardware\.rate: found 0, expected 1 or more"),
    "classes": (lambda p: replace(p, classes=("c",) * 33), r"program: found 33 classes, expected 1 \.\. 32"),
    "pool of another node": (lambda p: put(p, "issuers", "pool", 2, 1), r"issuer 2: found a pool of another node, expected one of its own"),
    "pool slots": (lambda p: put(p, "pools", "slots", 1, 0), r"pool 1: slots: found 0, expected 1 \.\."),
    "semaphore capacity": (lambda p: put(p, "semaphores", "capacity", 0, 0), r"semaphore 0: capacity: found 0, expected 1 \.\."),
    "single destination": (lambda p: with_template(p, 0, kind=Kind.PUT), r"op 0 \(send, node 0\): found 2 members, expected exactly 1"),
    "members of a JOIN": (lambda p: put(p, "ops", "template", 4, 3), r"op 4 \(end, node 0\): found wire 1, expected a row for transfers only"),
    "member id": (lambda p: put(p, "members", "node", 3, 2), r"member 3: node: found 2, expected 0 \.\. 1"),
    "member twice": (lambda p: put(p, "members", "node", 3, 0), r"op 1 \(send, node 1\): found node 0 twice, expected distinct members"),
    "fill id": (lambda p: put(p, "members", "fill_row", 1, 4), r"fill 1: row: found 4, expected 0 \.\. 3"),
    "row of another node": (
        lambda p: put(p, "members", "fill_row", 1, 1),
        r"op 0 \(send, node 0\): found row 1 of node 0, expected a row of its member's node 1",
    ),
    "fill twice": (lambda p: put(p, "members", "fill_row", 1, 3), r"row 2 of region 1 \(node 1\): found 0 B filled, expected exactly 256 B"),
    "row bytes": (lambda p: put(p, "regions", "row_bytes", 1, 255), r"row 2 of region 1 \(node 1\): found 256 B filled, expected exactly 255 B"),
    "member missing": (lambda p: without_last_member(p, SENT), r"row 2 of region 1 \(node 1\): found 0 B filled, expected exactly 256 B"),
    "member of a pull missing": (
        lambda p: without_last_member(p, PULLED),
        r"row 2 of region 1 \(node 1\): found 0 reads by pulls, expected exactly 1",
    ),
    "tile rows": (lambda p: put(p, "regions", "tile_rows", 0, 1), r"region 0: found 1 tiles, expected 2"),
    "region node": (lambda p: put(p, "regions", "node", 0, 5), r"region 0: node: found 5, expected 0 \.\. 1"),
    "notified op": (lambda p: put(p, "regions", "row_notify", 3, 7), r"row 3: notified op: found 7, expected -1 \.\. 6"),
    "edge tail": (lambda p: with_edge(p, Tail.TILE_READY, 2, Head.OP_ISSUE, 0), r"edge 6: found tail TILE_READY 2, expected 0 \.\. 1"),
    "edge head": (lambda p: with_edge(p, Tail.OP_DONE, 2, Head.MEMBER_RESPOND, 8), r"edge 6: found head MEMBER_RESPOND 8, expected 0 \.\. 7"),
    "edge kind": (lambda p: put(p, "edges", "head_kind", 2, 4), r"edge 2: head kind: found 4, expected 0 \.\. 3"),
    "response of a push": (
        lambda p: with_edge(p, Tail.OP_DONE, 2, Head.MEMBER_RESPOND, 0),
        r"member 0: found an edge to its response, expected a member of a pull",
    ),
    "cancelled compute": (
        lambda p: with_edge(p, Tail.OP_DONE, 0, Head.JOIN_CANCEL, GEMM),
        r"op 2 \(gemm, node 0\): found it cancelled, expected a JOIN",
    ),
    "hold id": (lambda p: put(p, "holds", "sem", 0, 1), r"hold 0: semaphore: found 1, expected 0 \.\. 0"),
    "hold op": (lambda p: put(p, "holds", "release", 0, 7), r"hold 0: found release at OP_DONE 7, expected 0 \.\. 6"),
    "hold amount": (lambda p: put(p, "holds", "amount", 0, 3), r"op 0: found 3 held of node\[0\]\.window, expected at most its capacity 2"),
    "holds together": (lambda p: with_hold(p, 0, SENT, 1), r"op 0: found 3 held of node\[0\]\.window, expected at most its capacity 2"),
    "members pointer": (
        lambda p: put(p, "members", "ptr", 1, 9),
        r"members\.ptr: found 8 entries from 0 to 8, expected 8 rising entries from 0 to 8",
    ),
    "column length": (lambda p: replace(p, ops=replace(p.ops, key=p.ops.key[:-1])), r"ops\.key: found 6 entries, expected 7"),
    "circle of JOINs": (
        lambda p: with_edge(p, Tail.OP_DONE, LAST, Head.OP_ISSUE, LAST),
        r"op 6 \(end, node 0\) can never start: found it waiting for op 6 \(end, node 0\), expected no circle; 1 of 7 ops are stuck",
    ),
    "tile behind its reader": (
        lambda p: with_edge(p, Tail.OP_DONE, GEMM, Head.OP_ISSUE, SENT),
        r"op 0 \(send, node 0\) can never start: found it waiting for op 2 \(gemm, node 0\) which waits for tile 0 of region 0 \(node 0\) "
        r"which waits for row 0 of region 0 \(node 0\) which waits for op 0 \(send, node 0\), expected no circle; 6 of 7 ops",
    ),
    "a later tile behind its reader": (
        lambda p: with_edge(p, Tail.OP_DONE, GEMM + 1, Head.OP_ISSUE, SENT + 1),
        r"op 1 \(send, node 1\) can never start: found it waiting for op 3 \(gemm, node 1\) which waits for tile 1 of region 1 \(node 1\) "
        r"which waits for row 3 of region 1 \(node 1\) which waits for op 1 \(send, node 1\), expected no circle",
    ),
    "notification behind its reader": (
        lambda p: with_edge(p, Tail.OP_DONE, LAST, Head.TILE_NOTIFY, 1),
        r"op 4 \(pull, node 0\) can never start: found it waiting for the notification of tile 1 of region 1 \(node 1\) "
        r"which waits for op 6 \(end, node 0\) which waits for op 4 \(pull, node 0\), expected no circle",
    ),
    "silent tile": (
        lambda p: replace(p, edges=type(p.edges)(*(np.delete(c, 3) for c in _columns(p.edges)))),
        r"row 2: found an op to notify in a tile without edges to its notification, expected at least one",
    ),
    "function of a COMPUTE": (
        lambda p: with_template(p, 1, fn="delay"),
        r'template 1 \(gemm\): found fn "delay", expected a function that the Program declares: gemm1, .* \(other work is a DELAY',
    ),
    "function of another kind": (
        lambda p: with_template(p, 0, fn="gemm1", src="expert.x", dst="expert.a"),
        r'template 0 \(send\): found kind "MULTICAST" with fn "gemm1", expected COMPUTE',
    ),
    "buffer of another function": (
        lambda p: with_template(p, 1, fn="gemm1", src="expert.a", dst="expert.a"),
        r'template 1 \(gemm\): found src "expert.a" with fn "gemm1", expected expert.x',
    ),
    "GEMM without a tile": (
        lambda p: with_template(p, 1, **GEMM1),
        r"op 2 \(gemm, node 0\): found tile -1 of no region as key, expected a tile of a tiled region of its node",
    ),
    "GEMM of another node's tile": (
        lambda p: put(with_template(p, 1, **GEMM1), "ops", "key", slice(GEMM, PULLED), [0, 0]),
        r"op 3 \(gemm, node 1\): found tile 0 of region 0 \(node 0\) as key, expected a tile of a tiled region of its node",
    ),
    "columns of a transfer": (
        lambda p: with_template(p, 0, columns=(0, 1, 2)),
        r"template 0 \(send\): found columns \(0, 1, 2\), expected all columns, or fn gemm2 or gemm1_dgrad",
    ),
    "columns of a GEMM between others": (
        lambda p: put(with_template(p, 1, **GEMM1, columns=(0, 1, 2)), "ops", "key", slice(GEMM, PULLED), [0, 1]),
        r"template 1 \(gemm\): found columns \(0, 1, 2\), expected all columns, or fn gemm2 or gemm1_dgrad",
    ),
    "columns that nobody computes": (
        lambda p: put(with_template(p, 1, **GEMM2, columns=(0, 1, 2)), "ops", "key", slice(GEMM, PULLED), [0, 1]),
        r"gemm2: found columns up to 1, expected all 2",
    ),
    "columns with a gap": (
        lambda p: put(with_template(p, 1, **GEMM2, columns=(1, 2, 2)), "ops", "key", slice(GEMM, PULLED), [0, 1]),
        r"gemm2: found columns \(1, 2, 2\), expected columns from 0 on of 2 \(ranges follow each other\)",
    ),
    "expert regions": (
        lambda p: replace(p, declared=replace(p.declared, slots=4)),
        r"tiled regions: found 2, expected one for each of the 4 declared slots",
    ),
    "keys of expert rows": (
        lambda p: put(p, "regions", "row_key", slice(2, 4), [1, 0]),
        r"row 3 of region 1 \(node 1\): found key 0 behind key 1, expected rising keys",
    ),
    "read before any write": (
        lambda p: with_template(with_template(p, 2, src="late"), 3, dst="late"),
        r'template 2 \(pull\): found ops that read "late" and wait for no op that writes it, expected a wait for end',
    ),
    "useful rows": (lambda p: declared(p, 5), r"tiled regions: found 4 rows, expected the declared 5 useful rows"),
    "traffic up": (
        lambda p: declared(p, up={"dispatch": 511, "combine": 512}),
        r"traffic up of dispatch: found 512 B in the ops, expected the declared 511 B",
    ),
    "traffic down": (lambda p: declared(p, down={"dispatch": 512}), r"traffic down of combine: found 512 B in the ops, expected the declared 0 B"),
}


def _columns(table: Any) -> list[Any]:
    return [getattr(table, name) for name in table.__slots__]


@pytest.mark.parametrize("alloc", list(Alloc))
def test_legal_program_passes(alloc):
    verify(legal(alloc))


@pytest.mark.parametrize("name", BAD)
def test_bad_program_is_refused(name):
    change, text = BAD[name]
    with pytest.raises(ProgramError, match=text) as caught:
        verify(change(legal()))
    assert "\n" not in str(caught.value)


def test_expert_regions_lie_in_the_order_of_their_slots():
    p = replace(legal(), declared=Declared(4, {}, 2))
    with pytest.raises(ProgramError, match=r"region 0 \(node 1\): found it as slot 0, expected a region of node 0"):
        check_slots(put(p, "regions", "node", slice(0, 2), [1, 0]))


def test_bound_rows_come_in_any_order():
    """A backward Program lays its rows as its forward did; only what arrival binds has to rise."""
    verify(put(legal(Alloc.PREFIX), "regions", "row_key", slice(2, 4), [1, 0]))


def test_a_read_behind_its_write_passes():
    verify(with_template(with_template(legal(), 2, src="rows"), 1, dst="rows"))


def test_a_long_circle_is_shortened():
    b = ProgramBuilder(HARDWARE, 1)
    b.ops(b.template(Template("step", Kind.JOIN, "other")), np.zeros(50, int))
    b.edges(Tail.OP_DONE, np.arange(49), Head.OP_ISSUE, np.arange(1, 50))
    b.edges(Tail.OP_DONE, 49, Head.OP_ISSUE, 3)
    with pytest.raises(ProgramError) as caught:
        verify(b.build())
    text = str(caught.value).replace(" (step, node 0)", "").replace(" which waits for", ",")
    circle = "op 49, op 48, op 47, (41 more), op 5, op 4, op 3"
    assert text == f"op 3 can never start: found it waiting for {circle}, expected no circle; 47 of 50 ops are stuck"


@pytest.mark.parametrize("kind", list(Tail))
def test_an_edge_waits_for_something_that_is_there(kind):
    p = legal()
    size = {Tail.MEMBER_DELIVERED: p.n_members, Tail.TILE_READY: p.n_tiles, Tail.ROW_COMPLETE: p.n_rows}.get(kind, p.n_ops)
    for wrong in (-1, size):
        with pytest.raises(ProgramError, match=f"found tail {kind.name} {wrong}, expected 0 .. {size - 1}"):
            verify(with_edge(p, kind, wrong, Head.OP_ISSUE, LAST))


def test_edges_of_two_sizes():
    b = ProgramBuilder(HARDWARE, 1)
    with pytest.raises(ProgramError, match=r"edges: found 3 tails \(OP_DONE\) and 2 heads \(OP_ISSUE\), expected as many tails as heads, or one"):
        b.edges(Tail.OP_DONE, [1, 2, 3], Head.OP_ISSUE, [0, 1])


def test_the_packet_level_names_the_edge_that_it_does_not_run():
    for edge, text in (
        ((Tail.MEMBER_DELIVERED, 1, Head.OP_ISSUE, LAST), r"edge 6 from MEMBER_DELIVERED 1, op 0 \(send, node 0\), to OP_ISSUE, op 6 \("),
        ((Tail.OP_DONE, SENT, Head.MEMBER_RESPOND, 4), r"to MEMBER_RESPOND 4, op 4 \(pull, node 0\), expected one to another point"),
    ):
        assert re.search(text, beyond_packets(with_edge(legal(), *edge)) or "")


def test_chains_have_single_tasks_on_their_own_slots():
    b = ProgramBuilder(HARDWARE, 1)
    pools = [b.pool(0, 1), b.pool(0, 1)]
    chain = b.chain(pools[0], Chaining.HOLD)
    many = b.template(Template("gang", Kind.COMPUTE, "gemm1", tasks=2, duration=b.duration([0, 5])))
    one = b.template(Template("task", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, 5])))
    issuers = [b.issuer(0, Discipline.READY_FIFO, pool=p) for p in pools]
    b.ops(one, 0, issuer=issuers[0], rows=1, chain=chain)
    verify(b.build())
    b.ops(one, 0, issuer=issuers[1], rows=1, chain=chain)
    with pytest.raises(ProgramError, match=r"op 1: found an issuer of pool 1, expected pool 0 of chain 0"):
        verify(b.build())
    b.ops(many, 0, issuer=issuers[0], rows=1, chain=chain)
    with pytest.raises(ProgramError, match=r"op 2: found 2 tasks in chain 0, expected 1"):
        verify(b.build())


def test_program_order_can_block_for_ever():
    """Op 0 waits for op 1, which stands behind it in the same issuer."""
    b = ProgramBuilder(HARDWARE, 2)
    t = b.template(Template("put", Kind.PUT, "other", framing=b.framing(Framing("store"))))
    for discipline, blocks in ((Discipline.READY_FIFO, False), (Discipline.PROGRAM_ORDER, True)):
        b.ops(t, [0, 0], issuer=b.issuer(0, discipline), bytes=16, to=To([1, 1], [1, 1]))
        first = 2 * blocks
        b.edges(Tail.OP_DONE, first + 1, Head.OP_ISSUE, first)
    with pytest.raises(ProgramError, match=r"op 2 \(put, node 0\) can never start: .*; 2 of 4 ops are stuck"):
        verify(b.build())


def test_a_first_touch_tile_cannot_tell_before_it_has_rows():
    """With bound rows a notification may come first: there is something to tell."""
    for alloc in Alloc:
        program = put(legal(alloc), "edges", "head_kind", slice(0, 2), Head.TILE_NOTIFY)
        program = put(program, "edges", "tail_kind", slice(0, 2), Tail.OP_DONE)
        program = put(put(program, "edges", "tail", slice(0, 2), [2, 3]), "edges", "head", slice(0, 2), [0, 1])
        if alloc is Alloc.PREFIX:
            verify(program)
        else:
            with pytest.raises(ProgramError, match="tile 0: found a notification that waits for none of its rows"):
                verify(program)


def test_first_touch_tiles_fill_in_any_order():
    """The second row is sent only when tile 0 is ready: fatal where it is bound to tile 0 itself."""
    for alloc, order, legal_order in (
        (Alloc.FIRST_TOUCH, (0, 1), True),
        (Alloc.FIRST_TOUCH, (1, 0), True),
        (Alloc.PREFIX, (0, 1), True),
        (Alloc.PREFIX, (1, 0), False),
    ):
        b = ProgramBuilder(HARDWARE, 2)
        t = b.template(Template("put", Kind.PUT, "other", framing=b.framing(Framing("store"))))
        b.regions(1, 2, 16, 1, alloc=alloc)
        send = b.issuer(0, Discipline.READY_FIFO)
        b.ops(t, [0, 0], issuer=send, bytes=16, to=To([1, 1], [1, 1], [1, 1], order))
        b.edges(Tail.TILE_READY, 0, Head.OP_ISSUE, 1)
        if legal_order:
            verify(b.build())
        else:
            with pytest.raises(ProgramError, match=r"op 1 \(put, node 0\) can never start"):
                verify(b.build())


def test_the_glance_at_kinds_agrees_with_the_peel():
    """It says yes to nothing that the peel refuses, and does say yes to a plain layer."""
    said = []
    changes = ["circle of JOINs", "tile behind its reader", "notification behind its reader"]
    programs = [legal(alloc) for alloc in Alloc] + [random_program(seed) for seed in range(20)]
    programs += [BAD[name][0](legal()) for name in changes]
    for program in programs:
        said.append(startable.starts_by_kind(program))
        assert not said[-1] or startable.first_that_never_starts(program, None) is None
    assert said[:2] == [True, True]
    assert said[-3:] == [False, False, False]


def test_empty_program_passes():
    verify(ProgramBuilder(HARDWARE, 1).build())


def test_moved_bytes_counts_links_only():
    moved = moved_bytes(legal())
    assert moved == {d: {"dispatch": 2 * ROW, "combine": 2 * ROW} for d in ("up", "down")}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_programs_are_legal(seed):
    verify(random_program(seed))


@pytest.mark.parametrize("seed", range(3))
def test_larger_random_programs_are_legal(seed):
    verify(random_program(seed, size="small"))
