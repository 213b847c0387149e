"""The functional machine for collectives: it runs the ops of a Program on real vectors, in any order that the Program allows.

What an op moves: `systems/building/collectives/steps.py`. A push reads when it is issued and writes when it is delivered. A pull reads when a
member responds. So an edge that a Program lacks makes a wrong vector in some order.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from dysharp.base import Array, ByName, EmulationMismatch, Numbers, Texts, frozen
from dysharp.functional.op_events import COMPLETIONS, DELIVERIES, OpEvents
from dysharp.functional.orders import make_pool
from dysharp.program import PULLS, PUSHES, Program, Tail, Trace
from dysharp.systems.building.collectives.steps import RESULT, VECTOR, Chunks, chunks_of
from dysharp.workload import Collective, Work


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
    system: str, program: Program, work: Collective, *, order: str, seed: int = 0, trace: Trace | None = None
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


class Chunkwise(OpEvents):
    """One run on the buffers of every GPU. `first`: the buffer that "add" begins with."""

    first = VECTOR

    def __init__(self, program: Program, order: str, seed: int, trace: Trace | None) -> None:
        trace = trace if order == "trace" else None
        super().__init__(program, make_pool(order, seed, trace, DELIVERIES, COMPLETIONS), trace)
        self.functions: Texts = tuple(function.name for function in program.schema.functions)
        self.buffers: dict[tuple[str, int, int], Array] = {}  # (buffer, GPU, chunk) -> elements
        self.read: dict[int, Array] = {}  # op -> what a push carries, or the sum of a pull so far

    # ---- events ------------------------------------------------------------------------------------------------------

    def _begin(self, op: int, members: range) -> None:
        t = self._template(op)
        if t.kind in PUSHES and t.fn in self.functions:
            self.read[op] = self._chunk(t.src, self.node[op], op)

    def _deliver(self, member: int) -> None:
        op = self.owner[member]
        t = self._template(op)
        if t.fn in self.functions:
            self._write(t.fn, t.dst, self.member_node[member], op, self.read[op])
        self.progress.fire(Tail.MEMBER_DELIVERED, member)
        for row in self.fills(member):
            self._arrived(row, self.bytes[op])
        self._one_less(op)

    def _respond(self, member: int) -> None:
        op = self.owner[member]
        t = self._template(op)
        if t.fn in self.functions:
            part = self._chunk(t.src, self.member_node[member], op)
            self.read[op] = self.read[op] + part if op in self.read else part
        self.progress.fire(Tail.MEMBER_DELIVERED, member)
        self._one_less(op)

    def _done(self, op: int) -> None:
        t = self._template(op)
        if t.kind in PULLS and t.fn in self.functions:
            self._write("copy" if t.fn == "sum" else t.fn, t.dst, self.node[op], op, self.read[op])
        super()._done(op)

    # ---- data --------------------------------------------------------------------------------------------------------

    def _chunk(self, buffer: str, gpu: int, op: int) -> Array:
        found = self.buffers.get((buffer, gpu, self.key[op]))
        if found is None:
            raise EmulationMismatch(f'op {op} ({self._template(op).name}): found no chunk {self.key[op]} in "{buffer}" of GPU {gpu}')
        return found

    def _write(self, fn: str, buffer: str, gpu: int, op: int, part: Array) -> None:
        place = buffer, gpu, self.key[op]
        if fn == "add":
            before = self.buffers.get(place)
            part = part + (self._chunk(self.first, gpu, op) if before is None else before)
        self.buffers[place] = part


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
