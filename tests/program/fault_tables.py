"""What the verifier says of Programs with one wrong value, and what the functions of `program/` make of Programs: digests, a line for each Program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from dysharp.base.errors import ProgramError
from dysharp.program import Program
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.names import edge_name, row_name, tile_name
from dysharp.program.payload import link_name, moved_bytes
from dysharp.program.relayout import relayout
from dysharp.program.sections import part_of
from dysharp.program.skew import Skew, skewed
from dysharp.program.startable import Peel, first_that_never_starts, starts_by_kind, waits_by_kind
from dysharp.program.tables import Head, Tail
from dysharp.program.verify import verify
from dysharp.specs import Model
from dysharp.systems import get_system
from dysharp.systems.collectives import get_collective
from dysharp.workload import make_routing
from dysharp.workload.sublayer import SubLayer
from tests.interpreters.random_bulk import random_bulk
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_merges import random_merge, random_parts
from tests.interpreters.random_points import random_points
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_shares import random_shares
from tests.interpreters.random_sums import random_sums
from tests.stored_values import Cases, Digests, Table, digests
from tests.systems.program_tables import machine, program_digests

STORED = Table(__file__)
MODEL = Model("few", 384, 320, 6, 2, 5, n_matrices=3, element_bytes=2, gemm_dtype="fp8")
MAKERS: dict[str, Callable[[int], Program]] = {
    "program": random_program, "points": random_points, "sums": random_sums, "loads": random_loads, "bulk": random_bulk, "shares": random_shares,
    "merge": random_merge,
}  # fmt: skip
LAYERS = {
    "dysharp fwd": ("dysharp", "paper-gh200-nvl32/2", {}),
    "dysharp bwd": ("dysharp", "paper-dgx-h100/2x2", {}),
    "comet-flux fwd": ("comet-flux", "paper-gh200-nvl32/3", {"slices": 3}),
    "moe-hub fwd": ("moe-hub", "paper-gh200-nvl32/2", {"totals": "announced"}),
    "deepep fwd": ("deepep", "hw-dgx-h100/2", {"n_sm": 2}),
    "mori bwd": ("mori", "hw-mi300x/2", {}),
    "hub-sharp fwd": ("hub-sharp", "paper-gh200-nvl32/3", {"reduction": "push"}),
}
PROGRAMS = [*(f"{name} {seed}" for name in MAKERS for seed in (1, 2)), *LAYERS, "cais"]
QUICK = ("bulk 1", "shares 1", "dysharp bwd", "moe-hub fwd", "mori bwd", "hub-sharp fwd")
"""Programs of the quick tests; what `verify` says of the others is slow."""
COLUMNS = ("ops", "members", "regions", "edges", "holds", "semaphores", "issuers", "pools", "chains", "sessions", "shares", "wires")
PLAIN = ("templates", "nets", "tables", "operators")


@cache
def program(name: str) -> Program:
    """A small Program: a random one of every table, or one of a system."""
    if name == "cais":
        one = get_collective(name)
        return one.plan(SubLayer("toy", 2, 256, 256, 32, 256), machine("paper-cais-h100/2"), one.options(chunk_bytes=16384))
    word, _, last = name.partition(" ")
    if word in MAKERS:
        return MAKERS[word](int(last))
    system, place, options = LAYERS[name]
    routing = make_routing("lognormal:0.65", MODEL, machine(place).n_gpus, MODEL.tokens_per_gpu, seed=3)
    one = get_system(system)
    return one.plan(MODEL, machine(place), routing, last, one.options(**options))


def _digests(p: Program) -> list[str]:
    return [*program_digests(p).values()]


def said(check: Callable[[], object]) -> str:
    """What the check says, or the error's sentence."""
    try:
        return repr(check())
    except ProgramError as error:
        return str(error)
    except (IndexError, ValueError) as error:  # a value so wrong that a table ends before it
        return type(error).__name__


def _wrong_columns(p: Program) -> Iterator[tuple[str, list[Program]]]:
    """(column, Programs with one wrong value there): just outside and just inside what it was, and far from it."""
    for table in COLUMNS:
        whole = getattr(p, table)
        for one in dataclasses.fields(whole) if whole is not None else ():
            column = getattr(whole, one.name)
            if not isinstance(column, np.ndarray) or not len(column):
                continue
            changed = []
            last, middle = len(column) - 1, len(column) // 2
            for place, value in ((0, column[0] + 1), (last, column[last] - 1), (middle, column[middle] + 1), (middle, -1), (last, 0), (0, 1 << 21)):
                other = column.copy()
                other[place] = value
                changed.append(replace(p, **{table: replace(whole, **{one.name: other})}))
            yield f"{table}.{one.name}", changed


def _other(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [type(value)((int(value) + 1) % 10), value - 1 if type(value) is int else type(value)(0), -1 if type(value) is int else value]
    return ["", "other", "x"] if isinstance(value, str) else []


def _wrong_values(p: Program) -> Iterator[tuple[str, list[Program]]]:
    for name in PLAIN:
        entries = getattr(p, name)
        for field in dataclasses.fields(entries[0]) if entries else ():
            changed = [(at, value) for at in {0, len(entries) - 1} for value in _other(getattr(entries[at], field.name))]
            made = [replace(entries[at], **{field.name: value}) for at, value in changed]
            lists = [(*entries[:at], one, *entries[at + 1 :]) for (at, _), one in zip(changed, made, strict=True)]
            yield f"{name}.{field.name}", [replace(p, **{name: one}) for one in lists]
    yield "hardware", [replace(p, hardware=replace(p.hardware, **{f.name: value})) for f in dataclasses.fields(p.hardware) for value in (0, -1)]
    yield "sizes", [replace(p, n_nodes=p.n_nodes + 1), replace(p, domain_nodes=p.n_nodes - 1), replace(p, classes=())]
    d = p.declared
    yield "declared", [replace(p, declared=one) for one in (replace(d, useful_rows=d.useful_rows + 1), replace(d, slots=d.slots + 1))]


def _circles(p: Program) -> Iterator[tuple[str, list[Program]]]:
    """Further edges between things that the Program has, from later to earlier ones, so that many of them close circles."""
    rng, e = np.random.default_rng(5), p.edges
    sizes = {Tail.OP_DONE: p.n_ops, Tail.TILE_READY: p.n_tiles, Tail.ROW_COMPLETE: p.n_rows, Tail.MEMBER_DELIVERED: p.n_members}
    for tail, n in sizes.items():
        changed = []
        for head, most in ((Head.OP_ISSUE, p.n_ops), (Head.OP_ISSUE, p.n_ops), (Head.TILE_NOTIFY, p.n_tiles)):
            if n and most:
                ends = (int(tail), int(rng.integers(n // 2, n)), int(head), int(rng.integers(0, most // 2 + 1)))
                columns = (e.tail_kind, e.tail, e.head_kind, e.head)
                changed.append(replace(p, edges=type(e)(*(np.append(c, v).astype(np.int32) for c, v in zip(columns, ends, strict=True)))))
        yield f"from {tail.name}", changed


def verdicts(name: str) -> dict[str, list[str]]:
    """What `verify` says of every wrong Program, by column."""
    p = program(name)
    wrong = {"": [p]} | dict(_wrong_columns(p)) | dict(_wrong_values(p)) | dict(_circles(p))
    return {column: [said(lambda one=one: verify(one)) for one in programs] for column, programs in wrong.items()}  # type: ignore[misc]


def _properties(p: Program) -> list[Any]:
    named = [getattr(p, one) for one, value in vars(Program).items() if isinstance(value, property)]
    called = [p.template_operator(), p.tiled_regions(), p.bulk_ops(), p.op_net(), p.kinds(), p.hardware.output_bytes]
    return [*named, *called, *([net.peer(np.arange(p.n_nodes, dtype=np.int32)) for net in p.nets if net.step])]


def _peeled(p: Program) -> list[Any]:
    peel = Peel(p)
    peel.run()
    waits = waits_by_kind(p)
    return [peel.reached, peel.notified, peel.too_early, peel.waits, peel.notify_left, waits, starts_by_kind(p), first_that_never_starts(p, waits)]


def _names(p: Program) -> list[str]:
    things: list[tuple[Callable[[Program, int], str], int]] = [(edge_name, len(p.edges.tail)), (row_name, p.n_rows), (tile_name, p.n_tiles)]
    words = [name(p, i) for name, n in things for i in sorted({0, n // 3, n // 2, n - 1}) if n]
    return words + [link_name(p, net, node, side) for net in range(p.n_nets) for node in range(p.n_nodes) for side in (0, 1)]


def made(name: str) -> dict[str, Any]:
    """What the functions of `program/` make of a Program."""
    p = program(name)
    start, slow = tuple(700 * (g % 3) for g in range(p.n_nodes)), tuple((1.0, 1.3, 2.0)[g % 3] for g in range(p.n_nodes))
    found: dict[str, Any] = {"properties": _properties(p), "moved": moved_bytes(p), "peel": _peeled(p), "names": _names(p)}
    found["skew"] = said(lambda: _digests(skewed(p, Skew(start, slow))))
    return found | {f"part {section.label}": said(lambda s=section: _digests(part_of(p, s.label))) for section in p.sections}  # type: ignore[misc]


def _merged(parts: list[Part], **more: Any) -> str:
    return said(lambda: _digests(merge(parts, **more)))


def _random_merges() -> dict[str, Any]:
    """Merges of random parts with streams and edges."""
    found: dict[str, Any] = {}
    for seed in range(6):
        parts = random_parts(seed)
        labels, ops = [part.label for part in parts], [part.program.n_ops for part in parts]
        found[f"plain {seed}"] = _merged(parts)
        found[f"stream {seed}"] = _merged(parts, streams=[labels])
        found[f"back {seed}"] = _merged(parts, streams=[labels[::-1]])
        found[f"cross {seed}"] = _merged(parts, edges=[Cross(labels[-1], [ops[-1] - 1, 0], labels[0], [0, ops[0] - 1])])
    return found


def _layer_merges() -> dict[str, Any]:
    """Merges of both passes of systems, and the backward pass on other rows."""
    found: dict[str, Any] = {}
    for system, place in (("deepep", "hw-dgx-h100/2"), ("dysharp", "paper-gh200-nvl32/2"), ("hub-sharp", "paper-gh200-nvl32/3")):
        one = get_system(system)
        routing = make_routing("lognormal:0.65", MODEL, machine(place).n_gpus, MODEL.tokens_per_gpu, seed=4)
        forward, backward = (one.plan(MODEL, machine(place), routing, direction, one.options()) for direction in ("fwd", "bwd"))
        parts = [Part("F", forward, 3, 1, "fwd"), Part("B", backward, 2, 0, "bwd")]
        found[system] = _merged(parts)
        found[f"{system} stream"] = _merged(parts, streams=[["F", "B"]])
        rows = np.diff(backward.regions.row_ptr)[backward.tiled_regions()]
        turned = np.concatenate([np.arange(n)[::-1] for n in rows]).astype(np.int32)
        found[f"{system} relayout"] = _digests(relayout(backward, turned))
    return found


def _row(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Digests]]:
    return lambda: {"digests": digests(make())}


CASES: Cases = {
    **{f"verify {name}": _row(partial(verdicts, name)) for name in PROGRAMS}, **{f"made {name}": _row(partial(made, name)) for name in PROGRAMS},
    "random merges": _row(_random_merges), "layer merges": _row(_layer_merges),
}  # fmt: skip
SLOW = {f"verify {name}" for name in PROGRAMS if name not in QUICK}
