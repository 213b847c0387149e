"""`OpEvents`: which events of a Program may happen, and what an op fills when it arrives. What an op does to data is its subclasses' matter."""

import numpy as np

from dysharp.base import EmulationMismatch, OnProgress
from dysharp.functional.orders import Pool, time_in
from dysharp.functional.progress import Progress
from dysharp.program import PULLS, PUSHES, Program, Tail, Template, Trace, owners

ISSUE, DELIVER, RESPOND, DONE, NOTIFY = range(5)
DELIVERIES, COMPLETIONS = frozenset({DELIVER, RESPOND}), frozenset({DONE, NOTIFY})


class OpEvents:
    """The events of one Program, in the order of `pool`. It listens to `progress`: of the merge that the Program is a part of; default: its own.

    `issues`, `ends`: numbers of the events. `tie_bits`: a time of the pool has so many bits below it, for events of one instant.
    """

    issues, ends, tie_bits = ISSUE, DONE, 0

    def __init__(self, program: Program, pool: Pool, trace: Trace | None, progress: Progress | None = None) -> None:
        self.p, self.pool, self.trace = program, pool, trace
        ops, m, r = program.ops, program.members, program.regions
        self.kind = program.kinds().tolist()
        self.template, self.node, self.key, self.bytes = (column.tolist() for column in (ops.template, ops.node, ops.key, ops.bytes))
        self.ptr, self.member_node, self.owner = m.ptr.tolist(), m.node.tolist(), owners(m.ptr).tolist()
        self.fill_ptr: list[int] = m.fill_ptr.tolist()
        self.fill_row: list[int] = m.fill_row.tolist()
        self.missing = np.diff(m.ptr).tolist()  # members of an op that have not arrived or answered
        self.row_bytes = np.repeat(r.row_bytes, np.diff(r.row_ptr)).tolist()
        self.row_missing = list(self.row_bytes)  # bytes that a row still waits for
        sizes = zip(np.diff(r.row_ptr).tolist(), r.tile_rows.tolist(), strict=True)
        self.tile_missing = [min(size, n - first) for n, size in sizes for first in range(0, n, size)]
        self.progress = Progress(program, self) if progress is None else progress
        self.steps = {ISSUE: self._issue, DELIVER: self._deliver, RESPOND: self._respond, DONE: self._done, NOTIFY: self.progress.told}

    def run_events(self, progress: OnProgress | None = None) -> int:
        """Every event. Returns their number. Raises EmulationMismatch where ops wait for ever."""
        return self.progress.run(self.pool, lambda kind, ident: self.steps[kind](ident), progress)

    def _template(self, op: int) -> Template:
        return self.p.templates[int(self.template[op])]

    # ---- possible events (Listener) ----------------------------------------------------------------------------------

    def _add(self, kind: int, ident: int, column: str, late: int = 0, tie: int = 0) -> None:
        """An event may happen, at the time in a column of the Trace or `late` after it."""
        self.pool.add((kind, ident), (time_in(self.trace, column, ident) + late << self.tie_bits) + tie)

    def may_issue(self, op: int) -> None:
        self._add(self.issues, op, "issue")

    def may_respond(self, member: int) -> None:
        if self.progress.issued[self.owner[member]]:
            self._add(RESPOND, member, "member")

    def tile_notifies(self, tile: int) -> None:
        """Nothing waits for the notification of a tile."""

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _issue(self, op: int) -> None:
        if not self.progress.try_issue(op):
            return
        members = range(self.ptr[op], self.ptr[op + 1])
        self._begin(op, members)
        for member in members:
            if self.kind[op] in PUSHES:
                self._leave(op, member)
            elif self.kind[op] in PULLS:
                self._ask(op, member)
        if self.kind[op] not in PULLS + PUSHES or not members:
            self._finish_later(op)

    def _begin(self, op: int, members: range) -> None:
        """The op has issued."""

    def _leave(self, op: int, member: int) -> None:
        """A copy leaves for its member."""
        self._add(DELIVER, member, "member")

    def _ask(self, op: int, member: int) -> None:
        """A request is at its member."""
        if self.progress.responds_freely(member):
            self.may_respond(member)

    def _deliver(self, member: int) -> None:
        """A copy arrives."""
        raise NotImplementedError

    def _respond(self, member: int) -> None:
        """A member answers."""
        raise NotImplementedError

    def _done(self, op: int) -> None:
        self.progress.finish(op)

    def _finish_later(self, op: int) -> None:
        self._add(self.ends, op, "done")

    def _one_less(self, op: int) -> None:
        """A member has arrived or answered; the last one ends the op."""
        self.missing[op] -= 1
        if self.missing[op] == 0:
            self._finish_later(op)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def fills(self, member: int) -> list[int]:
        """The rows that a member fills or reads."""
        return self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]]

    def tile_of(self, row: int) -> int:
        """The tile of a row that has its place from the start."""
        r = self.p.regions
        region = int(np.searchsorted(r.row_ptr, row, side="right")) - 1
        return int(r.tile_ptr[region] + (row - r.row_ptr[region]) // r.tile_rows[region])

    def _arrived(self, row: int, n_bytes: int) -> None:
        self.row_missing[row] -= n_bytes
        if self.row_missing[row] < 0:
            raise EmulationMismatch(f"row {row}: found {-self.row_missing[row]} B more than its {self.row_bytes[row]} B, expected every byte once")
        if self.row_missing[row] != 0:
            return
        self.progress.fire(Tail.ROW_COMPLETE, row)
        tile = self.tile_of(row)
        self.tile_missing[tile] -= 1
        if self.tile_missing[tile] == 0:
            self.progress.fire(Tail.TILE_READY, tile)
