"""`ProgramBuilder`: builds Programs from arrays, a batch of ops at a time. Millions of ops take well under a second."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import I32, I64, Array, ByName, ProgramError, Rows, Texts, frozen
from dysharp.isa.framing import Framing, pull_train, push_train, stripe_ps
from dysharp.program import tables
from dysharp.program.csr import csr_ptr
from dysharp.program.schema import LAYER, NO_DATA, Operator, Schema
from dysharp.program.tables import Alloc, Chaining, Declared, Discipline, Hardware, Head, HubTable, Kind, Net, Ops, Point, Program, Tail, Template

Row = TypeVar("Row")
PUSHES = (Kind.PUT, Kind.SIGNAL, Kind.MULTICAST, Kind.PUSH_REDUCE)
PULLS = (Kind.GET, Kind.PULL_REDUCE, Kind.MERGED_LOAD)
WIRED = PUSHES + PULLS
RARE = {"chain": -1, "session": -1, "threshold": -1, "value": 0, "offset": 0, "gate": -1}  # optional columns, and the value of an absent one


@frozen
class To:
    """Members of a batch of ops, as int arrays or scalars."""

    count: ArrayLike
    """`[n_ops]` members of every op."""
    node: ArrayLike
    """`[n_members]` node of every member."""
    fill_count: ArrayLike | None = None
    """`[n_members]` rows that every member fills (or reads). None: no rows."""
    fill_row: ArrayLike | None = None
    """`[sum(fill_count)]` global ids of these rows."""
    ext_bytes: ArrayLike | None = None
    """`[n_members]` wire bytes of the member's copy beyond `Wires.down`. None: 0."""


def _full(value: ArrayLike, n: int, what: str) -> I32:
    """`[n]` int32. A scalar becomes a column that takes no memory."""
    array = np.asarray(value)
    if array.ndim == 0:
        return np.broadcast_to(array.astype(np.int32), n)
    if array.shape != (n,):
        raise ProgramError(f"{what}: found shape {array.shape}, expected ({n},)")
    return array.astype(np.int32, copy=False)


def _added(rows: list[Row], row: Row) -> int:
    """The place of `row`, now the last of `rows`."""
    rows.append(row)
    return len(rows) - 1


def _cat(parts: list[Any], dtype: Any = np.int32) -> Array:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _table(kind: Any, rows: list[Any], **columns: Any) -> Any:
    """The table of `rows` and `columns`; entries of rows are in its order. Words stay tuples, `interval_ps` is int64, other numbers are int32."""
    for i, name in enumerate([name for name in kind.__slots__ if name not in columns]):
        column = [row[i] for row in rows]
        columns[name] = tuple(column) if name in ("name", "unit") else np.array(column, np.int64 if name == "interval_ps" else np.int32)
    return kind(**columns)


def _distinct(values: I64) -> tuple[list[int], I32]:
    """The distinct values, rising, and the place of each of `values` among them. Comparisons are faster than a sort where they are few."""
    found: list[int] = []
    rest = values
    while len(rest) and len(found) < 8:
        found.append(int(rest[0]))
        rest = rest[rest != rest[0]]
    if len(rest):
        many, which = np.unique(values, return_inverse=True)
        return many.tolist(), which.astype(np.int32)
    found.sort()
    place: I32 = np.zeros(len(values), np.int32)
    for value in found[1:]:
        place += values >= value
    return found, place


def _padded(rows: list[I64]) -> I64:
    """`[n, longest]`, zeros behind shorter rows."""
    out = np.zeros((len(rows), max(map(len, rows), default=1)), np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class ProgramBuilder:
    """Collects tables. `build` concatenates and freezes them. Ids follow the order of the calls."""

    def __init__(
        self, hardware: Hardware, n_nodes: int, classes: Texts = ("data",), *, nets: tuple[Net, ...] = (), domain_nodes: int = 0,
        operators: tuple[Operator, ...] = LAYER, schema: Schema = NO_DATA,
    ) -> None:  # fmt: skip
        """`operators`: what the ops are for; default: the operators of a MoE layer. `schema`: buffers and functions that templates name."""
        self.hardware, self.n_nodes, self.classes, self.nets, self.domain_nodes = hardware, n_nodes, classes, nets, domain_nodes
        self.row_trains, self.operators, self.schema = 1, operators, schema
        self._tables: list[HubTable] = []
        self._templates: list[Template] = []
        self._framings: list[Framing] = []
        self._durations: list[I64] = []
        self._task_bytes: list[I64] = []
        self._wires: dict[tuple[int, bool, int, int, int, int], int] = {}
        self._ops: list[dict[str, I32]] = []
        self._members: Rows = []
        self._n_ops = self._n_rows = self._n_tiles = self._n_regions = 0
        self._regions: list[dict[str, I32]] = []
        self._region_names: list[str] = []
        self._rows: list[dict[str, I32]] = []
        self._edges: list[tuple[I32, I32, I32, I32]] = []
        self._holds: list[tuple[I32, ...]] = []
        self._semaphores: list[tuple[int, int, str, str]] = []
        self._issuers: list[tuple[int, int, int, int, str]] = []
        self._pools: list[tuple[int, int, str]] = []
        self._chains: list[tuple[int, int]] = []
        self._sessions: list[tuple[int, int]] = []
        self._places = self._timeout_ps = 0

    # ---- what ops refer to -------------------------------------------------------------------------------------------

    def template(self, template: Template) -> int:
        return _added(self._templates, template)

    def table(self, table: HubTable) -> int:
        """The id of a table of every hub; equal tables are one."""
        if table not in self._tables:
            self._tables.append(table)
        return self._tables.index(table)

    def framing(self, framing: Framing) -> int:
        return _added(self._framings, framing)

    def duration(self, ps_by_rows: ArrayLike, bytes_by_rows: ArrayLike = 0) -> int:
        """A duration class, by the rows r of a tile (index 0 is not used). Returns its id.

        `ps_by_rows[r]`: time of one task. `bytes_by_rows[r]`: bytes of one task from shared memory bandwidth.
        """
        self._durations.append(np.asarray(ps_by_rows, np.int64))
        return _added(self._task_bytes, np.broadcast_to(np.asarray(bytes_by_rows, np.int64), self._durations[-1].shape))

    def pool(self, node: int, slots: int, name: str = "sm") -> int:
        return _added(self._pools, (node, slots, f"node[{node}].{name}"))

    def issuer(self, node: int, discipline: Discipline, *, pool: int = -1, interval_ps: int = 0, name: str = "issuer") -> int:
        return _added(self._issuers, (node, pool, int(discipline), interval_ps, f"node[{node}].{name}"))

    def semaphore(self, node: int, capacity: int, name: str = "window", unit: str = "ops") -> int:
        return _added(self._semaphores, (node, capacity, f"node[{node}].{name}", unit))

    def chain(self, pool: int, mode: Chaining) -> int:
        return _added(self._chains, (pool, int(mode)))

    def sums(self, home: ArrayLike, expected: ArrayLike, places: int) -> int:
        """A batch of sums of PUSH_REDUCEs, one for each of `home`. `places`: see `Sessions`. Returns the first id."""
        first, self._places = len(self._sessions), places
        self._sessions.extend(zip(np.asarray(home).tolist(), np.asarray(expected).tolist(), strict=True))
        return first

    def loads(self, home: ArrayLike, expected: ArrayLike, places: int, timeout_ps: int = 0) -> int:
        """A batch of addresses of MERGED_LOADs, one for each of `home`. `places`, `timeout_ps`: see `Sessions`. Returns the first id."""
        self._timeout_ps = timeout_ps
        return self.sums(home, expected, places)

    # ---- regions -----------------------------------------------------------------------------------------------------

    def regions(
        self, node: ArrayLike, n_rows: ArrayLike, row_bytes: ArrayLike, tile_rows: ArrayLike, *, alloc: Alloc = Alloc.FIRST_TOUCH,
        key: ArrayLike | None = None, name: str = "region",
    ) -> tuple[int, int, int]:  # fmt: skip
        """A batch of regions. Returns the first ids (region, row, tile). Rows and tiles of a region are consecutive."""
        node, n_rows = np.atleast_1d(np.asarray(node)), np.atleast_1d(np.asarray(n_rows))
        n, tiles = len(node), -(-n_rows // np.asarray(tile_rows))
        first = (self._n_regions, self._n_rows, self._n_tiles)
        columns = {"region node": node, "alloc": int(alloc), "tile_rows": tile_rows, "row_bytes": row_bytes, "n_rows": n_rows, "tiles": tiles}
        self._regions.append({name: _full(column, n, name) for name, column in columns.items()})
        total = int(n_rows.sum())
        keys = np.arange(total) if key is None else key
        self._rows.append({"key": _full(keys, total, "row key"), "notify": np.full(total, -1, np.int32)})
        self._region_names.extend([name] * n)
        self._n_regions += n
        self._n_rows += total
        self._n_tiles += int(tiles.sum())
        return first

    def notify(self, row: ArrayLike, op: ArrayLike) -> None:
        """Rows `row` release ops `op` when their tile notifies. All rows lie in one batch of `regions`."""
        row = np.asarray(row)
        if len(row) == 0:
            return
        start = 0
        for batch in self._rows:
            end = start + len(batch["key"])
            if start <= row[0] < end:
                batch["notify"][row - start] = op
                return
            start = end
        raise ProgramError(f"notify: found row {row[0]}, expected a row below {self._n_rows}")

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def ops(
        self, template: int, node: ArrayLike, *, issuer: ArrayLike = -1, bytes: ArrayLike = 0, key: ArrayLike = -1, prio: ArrayLike = 0,
        rows: ArrayLike = 1, to: To | None = None, targets: ArrayLike | None = None, aux_bytes: ArrayLike = 0, **rare: ArrayLike,
    ) -> int:  # fmt: skip
        """A batch of ops of one template. Returns the id of the first op.

        `targets`: listed targets per op for the framing (default: members on other nodes). `aux_bytes` travel in
        separate packets with every copy of a push, or with every response and the result of a pull. `rare`: columns of
        `RARE`. `offset`: first byte of the row that a train carries; the trains of one row are consecutive ops. A PUT of more
        bytes than a train takes is bulk (docs/design/0022, K). Raises ProgramError for a column of another length than
        `node` or of no table, and for a transfer without members.
        """
        node = np.atleast_1d(np.asarray(node, np.int32))
        n, kind = len(node), self._templates[template].kind
        if not rare.keys() <= RARE.keys():
            raise ProgramError(f"ops: found columns {sorted(rare)}, expected some of {sorted(RARE)}")
        if kind in WIRED and to is None:
            raise ProgramError(f"template {self._templates[template].name!r}: found no members, expected at least one list of them")
        count = _full(0 if to is None else to.count, n, "member count")
        members = self._add_members(to, count)
        if kind in WIRED and targets is None:
            remote = members["node"] != np.repeat(node, count)
            targets = np.bincount(np.repeat(np.arange(n), count), weights=remote, minlength=n).astype(np.int32)
        payload, wire = _full(bytes, n, "bytes"), _full(-1, n, "wire")
        if kind in WIRED:
            wire = self._wire_rows(template, payload, _full(targets if targets is not None else 1, n, "targets"), _full(aux_bytes, n, "aux bytes"))
        given = {"template": template, "key": key, "prio": prio, "issuer": issuer, "rows": rows}
        given |= {name: column for name, column in rare.items() if np.ndim(column) or column != RARE[name]}
        self._ops.append({"node": node, "bytes": payload, "wire": wire} | {name: _full(column, n, name) for name, column in given.items()})
        self._n_ops += n
        return self._n_ops - n

    def _add_members(self, to: To | None, count: I32) -> ByName:
        to, n = To(0, ()) if to is None else to, int(count.sum())
        fills = _full(0 if to.fill_count is None else to.fill_count, n, "fill count")
        rows = _full(() if to.fill_row is None else to.fill_row, int(fills.sum()), "fill row")
        ext = None if to.ext_bytes is None else _full(to.ext_bytes, n, "ext bytes")
        members = {"count": count, "node": _full(to.node, n, "member node"), "fills": fills, "row": rows, "ext": ext}
        self._members.append(members)
        return members

    def _wire_rows(self, template: int, payload: I32, targets: I32, aux: I32) -> I32:
        t = self._templates[template]
        one_size = all(column.strides == (0,) for column in (payload, targets, aux))
        first = slice(1 if one_size else None)
        sizes, place = _distinct(payload[first].astype(np.int64) << 32 | targets[first].astype(np.int64) << 16 | aux[first])
        rows = []
        for size in sizes:
            key = (t.framing, t.kind in PULLS, t.net, size >> 32, size >> 16 & 0xFFFF, size & 0xFFFF)
            rows.append(self._wires.setdefault(key, len(self._wires)))
        wire = np.array(rows, np.int32)[place]
        return np.broadcast_to(wire, len(payload)) if one_size else wire

    # ---- what holds ops back -----------------------------------------------------------------------------------------

    def edges(self, tail_kind: Tail, tail: ArrayLike, head_kind: Head, head: ArrayLike) -> None:
        """Edges tail[i] -> head[i]. Either side may be a scalar. Raises ProgramError for sides of two sizes."""
        tail, head = np.atleast_1d(np.asarray(tail)), np.atleast_1d(np.asarray(head))
        if tail.shape != head.shape and 1 not in (tail.size, head.size):
            sides = f"{tail.size} tails ({Tail(tail_kind).name}) and {head.size} heads ({Head(head_kind).name})"
            raise ProgramError(f"edges: found {sides}, expected as many tails as heads, or one on either side")
        tail, head = np.broadcast_arrays(tail.astype(np.int32), head.astype(np.int32))
        n = len(tail)
        self._edges.append((_full(tail_kind, n, "tail kind"), tail, _full(head_kind, n, "head kind"), head))

    def hold(
        self, sem: ArrayLike, acquire: ArrayLike, release: ArrayLike | None = None, *, amount: ArrayLike = 1, acquire_at: Point = Point.OP_ISSUED,
        release_at: Point = Point.OP_DONE,
    ) -> None:  # fmt: skip
        """Ops hold `amount` of semaphore `sem` from point `acquire_at` of `acquire` to point `release_at` of `release`.

        `release`: default is `acquire`.
        """
        acquire = np.atleast_1d(np.asarray(acquire))
        n = len(acquire)
        columns = {"semaphore": sem, "amount": amount, "acquire point": acquire_at, "acquire": acquire, "release point": release_at}
        columns["release"] = acquire if release is None else release
        self._holds.append(tuple(_full(column, n, f"hold {name}") for name, column in columns.items()))

    # ---- build -------------------------------------------------------------------------------------------------------

    def build(self, declared: Declared | None = None) -> Program:
        """The Program of all calls so far. Check it with `verify`."""
        common = [k for k in Ops.__annotations__ if k not in RARE]
        columns: ByName = {k: _cat([o[k] for o in self._ops]) for k in common}
        for name, default in RARE.items():
            if any(name in o for o in self._ops):
                columns[name] = _cat([o.get(name, _full(default, len(o["node"]), name)) for o in self._ops])
        homes = np.array(self._sessions, np.int32).reshape(-1, 2).T.copy()
        return Program(
            n_nodes=self.n_nodes, hardware=self.hardware, templates=tuple(self._templates), framings=tuple(self._framings), classes=self.classes,
            durations=_padded(self._durations), task_bytes=_padded(self._task_bytes), wires=self._build_wires(), ops=Ops(**columns),
            members=self._build_members(), regions=self._build_regions(), edges=tables.Edges(*(_cat([e[i] for e in self._edges]) for i in range(4))),
            holds=tables.Holds(*(_cat([h[i] for h in self._holds]) for i in range(6))), semaphores=_table(tables.Semaphores, self._semaphores),
            issuers=_table(tables.Issuers, self._issuers, share=None), pools=_table(tables.Pools, self._pools),
            declared=declared or Declared(0), chains=_table(tables.Chains, self._chains) if self._chains else None,
            sessions=tables.Sessions(homes[0], homes[1], self._places, self._timeout_ps) if self._sessions else None,
            tables=tuple(self._tables), row_trains=self.row_trains, nets=self.nets, domain_nodes=self.domain_nodes, operators=self.operators,
            schema=self.schema,
        )  # fmt: skip

    def _build_wires(self) -> tables.Wires:
        m = self.hardware
        out = np.zeros((len(self._wires), 10), np.int64)
        for (framing, is_pull, net, payload, targets, aux), row in self._wires.items():
            f, most = self._framings[framing], self.nets[net - 1].train_bytes if net else m.train_bytes
            trains = max(1, -(-payload // most))
            train = pull_train if is_pull else push_train
            t = train(f, -(-payload // trains), targets, aux, m.flit)
            stripes = (0 if net else stripe_ps(w, t.packets, m.n_links, m.rate) for w in (t.up, t.response))
            out[row] = (t.up, t.down, t.response, t.result, t.ack_up, t.ack_down, *stripes, aux, trains)
        return tables.Wires(*out.T.copy())

    def _build_members(self) -> tables.Members:
        count, node, fills, row = (_cat([m[k] for m in self._members]) for k in ("count", "node", "fills", "row"))
        ext = [np.zeros(len(m["node"]), np.int32) if m["ext"] is None else m["ext"] for m in self._members]
        has_ext = any(m["ext"] is not None for m in self._members)
        return tables.Members(csr_ptr(count), node, csr_ptr(fills), row, _cat(ext) if has_ext else None)

    def _build_regions(self) -> tables.Regions:
        names = ("region node", "alloc", "tile_rows", "row_bytes", "n_rows", "tiles")
        node, alloc, tile_rows, row_bytes, rows, tiles = (_cat([r[k] for r in self._regions]) for k in names)
        key, notify = (_cat([r[k] for r in self._rows]) for k in ("key", "notify"))
        return tables.Regions(node, alloc, tile_rows, row_bytes, csr_ptr(rows), csr_ptr(tiles), key, notify, tuple(self._region_names))
