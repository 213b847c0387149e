"""The functional machine for collectives: it runs the ops of a Program on real vectors, in any order that the Program allows.

What an op moves: `systems/building/collectives/steps.py`. A push reads when it is issued and writes when it is delivered. A pull reads when a
member responds. So an edge that a Program lacks makes a wrong vector in some order.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from dysharp.base import Array, ByName, EmulationMismatch, Numbers, Texts, frozen
from dysharp.functional.orders import Pool, make_pool, time_in
from dysharp.functional.progress import Progress
from dysharp.program import PULLS, PUSHES, Program, Tail, Template, Trace, owners
from dysharp.systems.building.collectives.steps import RESULT, VECTOR, Chunks, chunks_of
from dysharp.workload import Collective, Work

ISSUE, DELIVER, RESPOND, FINISH = range(4)


@frozen
class CollectiveEmulation:
    """Results of one emulated collective: largest absolute error against `Collective.reference`. Sums are of small whole numbers, so 0 is due."""

    system: str
    workload: str
    gpus: int
    order: str
    max_abs_error: float
    wrong_gpus: Numbers
    n_ops: int

    @property
    def holds(self) -> bool:
        """Whether every GPU has the right vector."""
        return not self.wrong_gpus

    def to_dict(self) -> ByName:
        """All fields as plain values for JSON."""
        return asdict(self)


def emulate_collective(
    system: str, program: Program, work: Collective, *, order: str = "random", seed: int = 0, trace: Trace | None = None
) -> CollectiveEmulation:
    """Run `program` on the vectors of `work.inputs(seed)` and compare all results with the reference.

    `order`: one of `orders.ORDERS`; "trace" needs `trace`. Raises EmulationMismatch where ops wait for ever, ConfigError for what the machine
    does not interpret.
    """
    inputs = work.inputs(seed)
    found = _Vectors(program, work, inputs, order, seed, trace).run()
    return compared(system, program, work, order, found, work.reference(inputs))


def compared(system: str, program: Program, work: Work, order: str, found: list[Array], expected: Sequence[Array]) -> CollectiveEmulation:
    """The results of all GPUs beside the reference."""
    errors = [_error(one, two) for one, two in zip(found, expected, strict=True)]
    wrong = tuple(gpu for gpu, error in enumerate(errors) if error > 0)
    return CollectiveEmulation(system, work.description, work.gpus, order, max(errors), wrong, program.n_ops)


def _error(found: Array, expected: Array) -> float:
    """The largest absolute difference; infinite for another length or no number."""
    if found.shape != expected.shape or np.isnan(found).any():
        return np.inf
    return float(np.abs(found - expected).max(initial=0.0))


class Chunkwise:
    """One run: the buffers of every GPU, and the events that may happen. It listens to `Progress`. `first`: the buffer that "add" begins with."""

    first = VECTOR

    def __init__(self, program: Program, order: str, seed: int, trace: Trace | None) -> None:
        self.p, self.trace = program, trace if order == "trace" else None
        self.functions: Texts = tuple(function.name for function in program.schema.functions)
        self.buffers: dict[tuple[str, int, int], Array] = {}  # (buffer, GPU, chunk) -> elements
        self.pool: Pool = make_pool(order, seed, self.trace, frozenset((DELIVER, RESPOND)), frozenset((FINISH,)))
        self.member_left: list[int] = np.diff(program.members.ptr).tolist()
        self.read: dict[int, Array] = {}  # op -> what a push carries, or the sum of a pull so far
        rows = program.regions
        self.row_left: list[int] = np.repeat(rows.row_bytes, np.diff(rows.row_ptr)).tolist()
        self.region: list[int] = owners(rows.row_ptr).tolist()
        sizes = zip(np.diff(rows.row_ptr).tolist(), rows.tile_rows.tolist(), strict=True)
        self.tile_left: list[int] = [min(size, n - first) for n, size in sizes for first in range(0, n, size)]
        self.owner: list[int] = owners(program.members.ptr).tolist()
        self.responses: set[int] = set()  # members of pulls whose request has arrived
        self.progress = Progress(program, self)

    def run_events(self) -> None:
        """Every event, in the order of the pool. Raises EmulationMismatch where ops wait for ever."""
        do: tuple[Callable[[int], None], ...] = (self._issue, self._deliver, self._respond, self._finish)
        self.progress.run(self.pool, lambda kind, ident: do[kind](ident))

    # ---- Listener ----------------------------------------------------------------------------------------------------

    def may_issue(self, op: int) -> None:
        """An op may issue."""
        self.pool.add((ISSUE, op), self._time("issue", op))

    def may_respond(self, member: int) -> None:
        """A member of a pull may answer, if its request has arrived."""
        if member in self.responses:
            self.pool.add((RESPOND, member), self._time("member", member))

    def tile_notifies(self, tile: int) -> None:
        """Collectives have no notifications that wait for more than their rows."""

    # ---- events ------------------------------------------------------------------------------------------------------

    def _issue(self, op: int) -> None:
        if self.progress.issued[op] or not self.progress.try_issue(op):
            return
        t, members = self._template(op), range(self.p.members.ptr[op], self.p.members.ptr[op + 1])
        if t.kind in PUSHES:
            if t.fn in self.functions:
                self.read[op] = self._chunk(t.src, int(self.p.ops.node[op]), op)
            for member in members:
                self.pool.add((DELIVER, member), self._time("member", member))
        elif t.kind in PULLS:
            for member in members:
                self.responses.add(member)
                if self.progress.responds_freely(member):
                    self.may_respond(member)
        else:
            self.pool.add((FINISH, op), self._time("done", op))

    def _deliver(self, member: int) -> None:
        op = self.owner[member]
        t, node = self._template(op), int(self.p.members.node[member])
        if t.fn in self.functions:
            self._write(t.fn, t.dst, node, op, self.read[op])
        self._member_done(op, member)

    def _respond(self, member: int) -> None:
        op = self.owner[member]
        t = self._template(op)
        if t.fn in self.functions:
            part = self._chunk(t.src, int(self.p.members.node[member]), op)
            self.read[op] = self.read[op] + part if op in self.read else part
        self._member_done(op, member)

    def _member_done(self, op: int, member: int) -> None:
        m, t = self.p.members, self._template(op)
        self.progress.fire(Tail.MEMBER_DELIVERED, member)
        if t.kind in PUSHES:
            for row in m.fill_row[m.fill_ptr[member] : m.fill_ptr[member + 1]].tolist():
                self._fill(row, int(self.p.ops.bytes[op]))
        self.member_left[op] -= 1
        if not self.member_left[op]:
            self.pool.add((FINISH, op), self._time("done", op))

    def _fill(self, row: int, n_bytes: int) -> None:
        self.row_left[row] -= n_bytes
        if self.row_left[row]:
            return
        r, region = self.p.regions, self.region[row]
        self.progress.fire(Tail.ROW_COMPLETE, row)
        tile = int(r.tile_ptr[region]) + (row - int(r.row_ptr[region])) // int(r.tile_rows[region])
        self.tile_left[tile] -= 1
        if not self.tile_left[tile]:
            self.progress.fire(Tail.TILE_READY, tile)

    def _finish(self, op: int) -> None:
        t = self._template(op)
        if t.kind in PULLS and t.fn in self.functions:
            self._write("copy" if t.fn == "sum" else t.fn, t.dst, int(self.p.ops.node[op]), op, self.read[op])
        self.progress.finish(op)

    # ---- data --------------------------------------------------------------------------------------------------------

    def _chunk(self, buffer: str, gpu: int, op: int) -> Array:
        k = int(self.p.ops.key[op])
        found = self.buffers.get((buffer, gpu, k))
        if found is None:
            raise EmulationMismatch(f'op {op} ({self._template(op).name}): found no chunk {k} in "{buffer}" of GPU {gpu}')
        return found

    def _write(self, fn: str, buffer: str, gpu: int, op: int, part: Array) -> None:
        place = buffer, gpu, int(self.p.ops.key[op])
        if fn == "add":
            before = self.buffers.get(place)
            part = part + (self._chunk(self.first, gpu, op) if before is None else before)
        self.buffers[place] = part

    def _time(self, column: str, ident: int) -> int:
        return time_in(self.trace, column, ident)

    def _template(self, op: int) -> Template:
        return self.p.templates[int(self.p.ops.template[op])]


class _Vectors(Chunkwise):
    """One run of a collective."""

    def __init__(self, program: Program, work: Collective, inputs: list[Array], order: str, seed: int, trace: Trace | None) -> None:
        super().__init__(program, order, seed, trace)
        self.work = work
        self.chunks: Chunks = chunks_of(work, program)
        for gpu, vector in enumerate(inputs):
            mine = self.chunks.before(gpu)
            ends = np.cumsum(self.chunks.size[mine]) // work.element_bytes
            self.buffers |= {(VECTOR, gpu, int(k)): part for k, part in zip(mine, np.split(vector, ends)[:-1], strict=True)}

    def run(self) -> list[Array]:
        """The vector of every GPU after the last op."""
        self.run_events()
        return [self._result(gpu) for gpu in range(self.work.gpus)]

    def _result(self, gpu: int) -> Array:
        parts = [self.buffers.get((RESULT, gpu, int(k))) for k in self.chunks.after(gpu)]
        lost = next((int(k) for k, part in zip(self.chunks.after(gpu), parts, strict=True) if part is None), None)
        if lost is not None:
            raise EmulationMismatch(f'GPU {gpu}: found no chunk {lost} in "{RESULT}" at the end, expected all {len(parts)}')
        return np.concatenate(parts) if parts else np.zeros(0)  # type: ignore[arg-type]
