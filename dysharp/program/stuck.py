"""Why ops can never start: the circle of waits (or the dead end) behind the first stuck op, in words.

The text follows waits: from a stuck op to one thing that the op needs, from there to one thing that this thing needs,
and so on. It ends when a thing comes a second time, or when no further need is known. It runs after the verdict only,
so it may be slow.
"""

from collections.abc import Iterator

import numpy as np

from dysharp.base import Array
from dysharp.program.builder import PUSHES
from dysharp.program.csr import group
from dysharp.program.names import member_owner, op_name, region_of_row, region_of_tile, row_name, tile_name
from dysharp.program.tables import Alloc, Discipline, Head, Program, Tail

OP, TILE, ROW, NOTIFICATION = range(4)
EMPTY: Array = np.zeros(0, np.int64)
Thing = tuple[int, int]
"""(OP, TILE, ROW or NOTIFICATION, id)."""
ENDS = 3
"""Things at either end of a long chain of waits that are printed."""


def stuck_text(p: Program, reached: Array, notified: Array) -> str:
    """One line that names the ops, tiles and rows of the waits.

    `reached`: `[n_ops]` bool, ops that can start. `notified`: `[n_tiles]` bool, tiles that can notify.
    """
    stuck = np.flatnonzero(~reached)
    chain, closed = _Waits(p, reached, notified).follow((OP, int(stuck[0])))
    names = [_name(p, thing) for thing in chain]
    waits = " which waits for ".join(_shortened(names[1:]))
    end = "expected no circle" if closed else "expected something that brings the last one about"
    return f"{names[0]} can never start: found it waiting for {waits}, {end}; {len(stuck)} of {p.n_ops} ops are stuck"


def _name(p: Program, thing: Thing) -> str:
    kind, i = thing
    if kind == NOTIFICATION:
        return f"the notification of {tile_name(p, i)}"
    return {OP: op_name, TILE: tile_name, ROW: row_name}[kind](p, i)


def _shortened(names: list[str]) -> list[str]:
    left_out = len(names) - 2 * ENDS
    if left_out < 2:
        return names
    return [*names[:ENDS], f"({left_out} more)", *names[-ENDS:]]


class _Waits:
    """Ops, tiles, rows and notifications that never come, and the things that they need."""

    def __init__(self, p: Program, reached: Array, notified: Array) -> None:
        self.p, self.reached, self.notified = p, reached, notified
        e, m = p.edges, p.members
        self.into = {kind: _grouped(e.head, e.head_kind == kind, n) for kind, n in ((Head.OP_ISSUE, p.n_ops), (Head.TILE_NOTIFY, p.n_tiles))}
        owner = np.repeat(np.arange(p.n_ops), np.diff(m.fill_ptr[m.ptr]))
        pushes = np.array([t.kind in PUSHES for t in p.templates], bool)[p.ops.template[owner]]
        self.late = np.full(p.n_rows, -1)  # an op that must fill the row and never starts
        waiting = pushes & ~reached[owner]
        self.late[m.fill_row[waiting]] = owner[waiting]
        self.told_by = _grouped(p.regions.row_notify, p.regions.row_notify >= 0, p.n_ops)

    def follow(self, start: Thing) -> tuple[list[Thing], bool]:
        """(the circle in or before which `start` waits, True), or (the way from `start` to a dead end, False).

        A circle begins and ends with its lowest op.
        """
        place: dict[Thing, int] = {}
        chain = [start]
        while chain[-1] not in place:
            place[chain[-1]] = len(chain) - 1
            needed = next(self._needs(chain[-1]), None)
            if needed is None:
                return chain, False
            chain.append(needed)
        circle = chain[place[chain[-1]] : -1]
        first = circle.index(min(circle))  # ops sort first
        return [*circle[first:], *circle[: first + 1]], True

    def _needs(self, thing: Thing) -> Iterator[Thing]:
        kind, i = thing
        if kind == OP:
            yield from self._tails(Head.OP_ISSUE, i)
            for row in _of(self.told_by, i):
                yield from self._tells(int(row))
            yield from self._before(i)
        elif kind == NOTIFICATION:
            yield from self._tails(Head.TILE_NOTIFY, i)
        elif kind == ROW:
            yield from ((OP, int(op)) for op in self.late[i : i + 1] if op >= 0)
        else:
            yield from ((ROW, int(row)) for row in self._late_rows(i))

    def _tails(self, kind: Head, head: int) -> Iterator[Thing]:
        e = self.p.edges
        for edge in _of(self.into[kind], head):
            tail_kind, tail = Tail(int(e.tail_kind[edge])), int(e.tail[edge])
            if tail_kind is Tail.ROW_COMPLETE:
                late, thing = self.late[tail] >= 0, (ROW, tail)
            elif tail_kind is Tail.TILE_READY:
                late, thing = len(self._late_rows(tail)) > 0, (TILE, tail)
            else:
                op = member_owner(self.p, tail) if tail_kind is Tail.MEMBER_DELIVERED else tail
                late, thing = not self.reached[op], (OP, op)
            if late:
                yield thing

    def _late_rows(self, tile: int) -> Array:
        """Rows that the tile needs: its own rows, or any rows of a first-touch region."""
        r, region = self.p.regions, region_of_tile(self.p, tile)
        first, end = int(r.row_ptr[region]), int(r.row_ptr[region + 1])
        n, index = int(r.tile_rows[region]), tile - int(r.tile_ptr[region])
        late: Array = first + np.flatnonzero(self.late[first:end] >= 0)
        if r.alloc[region] == Alloc.FIRST_TOUCH:
            enough = min((index + 1) * n, end - first)
            return late if end - first - len(late) < enough else EMPTY
        return np.asarray(late[(late - first) // n == index])

    def _tells(self, row: int) -> Iterator[Thing]:
        """Notifications for which the op of a row waits. In a first-touch region any tile may have the row."""
        r, region = self.p.regions, region_of_row(self.p, row)
        first, end = int(r.tile_ptr[region]), int(r.tile_ptr[region + 1])
        if r.alloc[region] == Alloc.FIRST_TOUCH:
            if not self.notified[first:end].any():
                yield from ((NOTIFICATION, tile) for tile in range(first, end))
            return
        tile = first + (row - int(r.row_ptr[region])) // int(r.tile_rows[region])
        if not self.notified[tile]:
            yield NOTIFICATION, tile

    def _before(self, op: int) -> Iterator[Thing]:
        """Ops that go before `op`: in its chain, or in its program-order issuer."""
        o = self.p.ops
        if o.chain is not None and o.chain[op] >= 0:
            earlier = np.flatnonzero((o.chain[:op] == o.chain[op]) & ~self.reached[:op])
        elif o.issuer[op] >= 0 and self.p.issuers.discipline[o.issuer[op]] == Discipline.PROGRAM_ORDER:
            earlier = np.flatnonzero((o.issuer[:op] == o.issuer[op]) & ~self.reached[:op])
        else:
            return
        yield from ((OP, int(other)) for other in earlier[:1])


def _grouped(owner: Array, chosen: Array, n: int) -> tuple[Array, Array]:
    """The `chosen` rows of a table by `owner`: (`ptr` `[n + 1]`, row ids)."""
    ids = np.flatnonzero(chosen)
    ptr, order = group(owner[ids], n)
    return ptr, ids[order]


def _of(grouped: tuple[Array, Array], i: int) -> Array:
    ptr, ids = grouped
    return np.asarray(ids[ptr[i] : ptr[i + 1]])
