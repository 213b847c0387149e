"""Data of both paths of the machine: tensors of a layer, places of rows, the GEMMs of a tile, the record of a run."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from dysharp.base import I32, Array, ConfigError, EmulationMismatch, Numbers, frozen
from dysharp.functional.experts import Experts
from dysharp.functional.numbers import Number
from dysharp.functional.sums import Expression
from dysharp.program import Alloc, Kind, Program, owners
from dysharp.program.tables import ALL_COLUMNS, ColumnRange, columns_of
from dysharp.workload import Routing

UNBOUND = -1


RecordedTile = tuple[str, int, Numbers, ColumnRange]


@dataclass(slots=True)
class RunRecord:
    """The record of a run: a reference repeats the recorded steps on data of its own.

    `tiles`: (function, expert slot, tokens in slot order, columns) of every COMPUTE, in order of execution; columns as in `Template.columns`. `sums`:
    per token, one expression per chunk of `chunk` columns. `chunk` 0: one chunk per row.
    """

    chunk: int = 0
    tiles: list[RecordedTile] = field(default_factory=list)
    sums: dict[int, tuple[Expression, ...]] = field(default_factory=dict)


@frozen
class SavedRows:
    """Data that a forward pass saves for its backward pass: rows of all expert slots in layout order, and the layout.

    `x` `[rows, hidden]`, `h` `[rows, inner]`, `a` `[rows, mid]` as stored; `weight` `[rows]` work dtype; `key` `[rows]`
    token of each row; `row_slot` `[program rows]` as `Trace.row_slot`.
    """

    x: Array
    h: Array
    a: Array
    weight: Array
    key: Array
    row_slot: I32


@frozen
class Tensors:
    """Inputs of one pass.

    `tokens`: `[tokens, hidden]` in the stored dtype, the rows that Dispatch sends. `weight`: `[tokens, topk]` gate
    weights in the work dtype. `saved`: data of the forward pass; None in a forward pass.
    """

    routing: Routing
    number: Number
    experts: Experts
    tokens: Array
    weight: Array
    saved: SavedRows | None = None

    def __post_init__(self) -> None:
        r, n = self.routing, self.number
        for what, array, shape, dtype in (
            ("tokens", self.tokens, (r.n_tokens, self.experts.hidden), n.stored),
            ("gate weights", self.weight, (r.n_tokens, r.topk), n.work),
        ):
            if array.shape != shape or array.dtype != dtype:
                raise ConfigError(f"{what}: found {array.dtype} of shape {array.shape}, expected {dtype} of shape {shape}")
        if not n.is_integer and not np.isfinite(self.weight).all():
            token, column = np.argwhere(~np.isfinite(self.weight))[0]
            raise ConfigError(f"gate weights: found {self.weight[token, column]} at token {token}, column {column}, expected finite values")
        if self.experts.n_experts != r.n_experts:
            raise ConfigError(f"experts: found {self.experts.n_experts}, expected the routing's {r.n_experts}")


class Layout:
    """Rows of a Program's regions and their slots. A *place* is a slot, numbered over all regions as rows are.

    Raises ConfigError for a Program with other COMPUTEs than GEMMs of tiles, or without a region "expert" per expert slot.
    """

    def __init__(self, program: Program, routing: Routing) -> None:
        _check_computes(program)
        r = program.regions
        self.region: list[int] = owners(r.row_ptr).tolist()
        self.row_ptr: list[int] = r.row_ptr.tolist()
        self.tile_ptr: list[int] = r.tile_ptr.tolist()
        self.tile_rows: list[int] = r.tile_rows.tolist()
        self.node: list[int] = r.node.tolist()
        self.key: list[int] = r.row_key.tolist()
        self.region_of_tile: list[int] = owners(r.tile_ptr).tolist()
        prefix = np.repeat(r.alloc == Alloc.PREFIX, np.diff(r.row_ptr))
        self.place: list[int] = np.where(prefix, np.arange(program.n_rows), UNBOUND).tolist()
        self.row_at: list[int] = list(self.place)
        self._used = [0] * program.n_regions
        names = np.array([*r.name, ""])[:-1]
        experts = np.flatnonzero(names == "expert")
        self.slot_of_region = dict(zip(experts.tolist(), range(len(experts)), strict=True))
        if len(experts) != routing.placement.n_slots:
            raise ConfigError(f'Program: found {len(experts)} regions "expert", expected one per slot ({routing.placement.n_slots})')
        self.n_useful = int(r.row_ptr[experts[-1] + 1] - r.row_ptr[experts[0]]) if len(experts) else 0
        self.partial = np.flatnonzero(names == "partial").tolist()
        self.column = self._columns(program, routing)

    def _columns(self, program: Program, routing: Routing) -> list[int]:
        """Per row of an expert region: the top-k column of the row's expert, in which the gate weight lies."""
        n_slots = routing.placement.n_slots
        token, column = np.nonzero(routing.slot >= 0)
        chosen = token.astype(np.int64) * n_slots + routing.slot[token, column]
        order = np.argsort(chosen)
        useful = self.n_useful
        region = np.array(self.region[:useful], np.int64)
        slot = np.array([self.slot_of_region.get(i, 0) for i in range(program.n_regions)], np.int64)[region]
        wanted = np.array(self.key[:useful], np.int64) * n_slots + slot
        at = np.searchsorted(chosen[order], wanted)
        found = at < len(chosen)
        found[found] = chosen[order][at[found]] == wanted[found]
        if not found.all():
            row = int(np.flatnonzero(~found)[0])
            raise EmulationMismatch(f"row {row}: found token {self.key[row]} in expert slot {slot[row]}, expected a choice of the routing")
        out: list[int] = column[order][at].tolist()
        return out

    @cached_property
    def column_of(self) -> dict[tuple[int, int], int]:
        """(token, expert slot) -> the top-k column in which the token chose the slot."""
        return {(self.key[row], self.slot_of_region[self.region[row]]): self.column[row] for row in range(self.n_useful)}

    def pushed(self, row: int, token: int) -> int:
        """The expert row of `token` that a push with fn "row" brings into partial row `row`."""
        mine, rank = self._expert_rows.get(token, []), self._rank.get(row, UNBOUND)
        if not 0 <= rank < len(mine):
            raise EmulationMismatch(f'row {row}: found a push of token {token}, which has {len(mine)} rows, expected a row "partial" of one of them')
        return mine[rank]

    def rows_of_token(self, regions: Iterable[int]) -> dict[int, list[int]]:
        """The rows of each token in `regions`, in the order of rows."""
        out: dict[int, list[int]] = defaultdict(list)
        for region in regions:
            for row in range(*self.row_ptr[region : region + 2]):
                out[self.key[row]].append(row)
        return out

    @cached_property
    def _expert_rows(self) -> dict[int, list[int]]:
        """The expert rows of each token, by slot."""
        return self.rows_of_token(self.slot_of_region)

    @cached_property
    def _rank(self) -> dict[int, int]:
        """The place of each partial row among those of its token."""
        return {row: rank for rows in self.rows_of_token(self.partial).values() for rank, row in enumerate(rows)}

    def bind(self, row: int, slot: int = UNBOUND) -> int:
        """Give `row` the slot `slot`, or the next free slot, unless the row has a slot.

        Returns the place of the row.
        """
        place = self.place[row]
        if place == UNBOUND:
            region = self.region[row]
            if slot == UNBOUND:
                slot = self._used[region]
            self._used[region] += 1
            place = self.row_ptr[region] + slot
            self.place[row] = place
            self.row_at[place] = row
        return place

    def tile(self, tile: int) -> tuple[int, int, int]:
        """(region, first place, end place) of a tile."""
        region = self.region_of_tile[tile]
        rows = self.tile_rows[region]
        first = self.row_ptr[region] + (tile - self.tile_ptr[region]) * rows
        return region, first, min(first + rows, self.row_ptr[region + 1])

    def tile_of(self, row: int) -> int:
        """The tile of a bound row."""
        region = self.region[row]
        return self.tile_ptr[region] + (self.place[row] - self.row_ptr[region]) // self.tile_rows[region]

    def row_slot(self) -> I32:
        """`[rows]` slot inside the region, -1 = never bound (as `Trace.row_slot`)."""
        start = np.array(self.row_ptr, np.int64)[np.array(self.region, np.int64)] if self.region else np.zeros(0, np.int64)
        place = np.array(self.place, np.int64)
        return np.where(place < 0, UNBOUND, place - start).astype(np.int32)


class Buffers:
    """Rows of the buffers of a layer's experts, and their gate weights. A row holds poison until it is computed."""

    def __init__(self, tensors: Tensors, n: int) -> None:
        self.t, self.n, e = tensors, n, tensors.experts
        self._columns = {"x": e.hidden, "h": e.inner, "a": e.mid, "y": e.hidden, "dy": e.hidden, "dh": e.inner, "dx": e.hidden}
        self._rows: dict[str, Array] = {}
        self.weight: Array = np.zeros(n, tensors.number.work)
        self.gate_grad: Array = np.zeros(n, tensors.number.work)

    def rows(self, name: str) -> Array:
        """The buffer `expert.<name>`: `[n, columns]` stored dtype."""
        if name not in self._rows:
            self._rows[name] = self.t.number.poison((self.n, self._columns[name]))
        return self._rows[name]


class ExpertMemory(Buffers):
    """Memory with the useful rows of all expert slots in layout order, and the GEMMs on a tile of rows."""

    def __init__(self, tensors: Tensors, layout: Layout, record: RunRecord) -> None:
        super().__init__(tensors, layout.n_useful)
        self.layout, self.record = layout, record
        self.slot_expert: list[int] = tensors.routing.placement.slot_expert.tolist()
        if tensors.saved is not None:
            self._rows |= {"x": tensors.saved.x, "h": tensors.saved.h, "a": tensors.saved.a}
            self.weight = tensors.saved.weight

    def compute(self, fn: str, tile: int, node: int, columns: ColumnRange = ALL_COLUMNS) -> None:
        """Run one function of `TILE_FUNCTIONS` on one tile. Raises EmulationMismatch for a tile of another GPU.

        `columns`: as in `Template.columns`.
        """
        region, first, end = self.layout.tile(tile)
        if self.layout.node[region] != node:
            raise EmulationMismatch(f"{fn} of tile {tile}: found on GPU {node}, expected on GPU {self.layout.node[region]} that holds it")
        slot = self.layout.slot_of_region[region]
        row_at = self.layout.row_at[first:end]
        tokens = tuple(self.layout.key[row] if row != UNBOUND else UNBOUND for row in row_at)
        self.record.tiles.append((fn, slot, tokens, columns))
        run_tile(fn, self.slot_expert[slot], slice(first, end), self, self.t, columns)

    def saved(self) -> SavedRows:
        """The data for the backward pass."""
        key = np.array([self.layout.key[row] if row != UNBOUND else UNBOUND for row in self.layout.row_at[: self.n]], np.int64)
        return SavedRows(self.rows("x"), self.rows("h"), self.rows("a"), self.weight, key, self.layout.row_slot())


TILE_FUNCTIONS = ("gemm1", "gemm2", "gemm2_dgrad", "gemm1_dgrad", "gemm2_wgrad", "gemm1_wgrad")


def _check_computes(program: Program) -> None:
    """Raise ConfigError with the op for a COMPUTE that is no GEMM of an expert's tile."""
    p, r = program, program.regions
    experts = [region for region, name in enumerate(r.name) if name == "expert"]
    tiles = np.concatenate([np.arange(r.tile_ptr[i], r.tile_ptr[i + 1]) for i in experts] or [np.zeros(0, np.int64)])
    computes = np.flatnonzero(p.kinds() == Kind.COMPUTE)
    if len(tiles) > len(computes) == 0:
        raise ConfigError("functional machine: found rows and no GEMM, expected the GEMMs of the layer (option compute=true)")
    functions = np.array([t.fn in TILE_FUNCTIONS for t in p.templates], bool)[p.ops.template[computes]]
    wrong = computes[~(functions & np.isin(p.ops.key[computes], tiles))]
    if not len(wrong):
        return
    op = int(wrong[0])
    template = p.templates[p.ops.template[op]]
    where = f"op {op} ({template.name}, GPU {p.ops.node[op]})"
    if template.fn not in TILE_FUNCTIONS:
        expected = f"one of {', '.join(TILE_FUNCTIONS)} (work on no tile is a DELAY)"
        raise ConfigError(f'functional machine: {where}: found a COMPUTE with fn "{template.fn}", expected {expected}')
    raise ConfigError(f'functional machine: {where}: found a COMPUTE of tile {p.ops.key[op]}, expected a tile of a region "expert"')


class _TileMemory(Protocol):
    """Memory of `run_tile`: buffers by name, gate weights and gate gradients, all `[rows, ...]`."""

    weight: Array
    gate_grad: Array

    def rows(self, name: str) -> Array: ...


def run_tile(fn: str, e: int, tile: slice, memory: _TileMemory, t: Tensors, columns: ColumnRange) -> None:
    """The arithmetic of one COMPUTE, with its rounding points (docs/design/0004, Numbers).

    `e`: logical expert. `columns`: as in `Template.columns`; the GEMMs of results write only these.
    """
    n, experts, rows = t.number, t.experts, memory.rows
    part = columns_of(columns, experts.hidden)
    w = memory.weight[tile, None]
    if fn == "gemm1":
        rows("h")[tile] = n.store(experts.gemm1(e, n.load(rows("x")[tile])))
        rows("a")[tile] = n.store(experts.act(e, n.load(rows("h")[tile])))
    elif fn == "gemm2":
        rows("y")[tile, part] = n.store(w * experts.gemm2(e, n.load(rows("a")[tile])))[:, part]
    elif fn == "gemm2_dgrad":
        dy, a, h = (n.load(rows(name)[tile]) for name in ("dy", "a", "h"))
        g = experts.gemm2_dgrad(e, dy)
        memory.gate_grad[tile] = experts.gate_grad(e, a, dy, g)
        rows("dh")[tile] = n.store(experts.act_grad(e, h, w * g))
    elif fn == "gemm1_dgrad":
        rows("dx")[tile, part] = n.store(experts.gemm1_dgrad(e, n.load(rows("dh")[tile])))[:, part]
    elif fn == "gemm2_wgrad":
        experts.gemm2_wgrad(e, n.load(rows("a")[tile]), w * n.load(rows("dy")[tile]))
    elif fn == "gemm1_wgrad":
        experts.gemm1_wgrad(e, n.load(rows("x")[tile]), n.load(rows("dh")[tile]))
    else:
        raise ConfigError(f"COMPUTE function {fn!r}: found no such function, expected one of {', '.join(TILE_FUNCTIONS)}")
