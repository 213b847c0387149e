"""The row path on a merge of Programs: each part has its tensors, its memory and its record; waits, queues and semaphores are common.

A part of kernels (`Kernels`) moves no row: an op does its work on tensors of other parts when it ends.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dysharp.base import ConfigError
from dysharp.functional.faults import Faults
from dysharp.functional.layer import Tensors
from dysharp.functional.op_events import COMPLETIONS, DELIVER, DELIVERIES, ISSUE, RESPOND, OpEvents
from dysharp.functional.orders import Pool, make_pool, time_in
from dysharp.functional.progress import Progress
from dysharp.functional.queue_pairs import Messages
from dysharp.functional.rows import Outcome, RowMachine
from dysharp.program import Program, Tail, Trace
from dysharp.program.sections import TAILS, ids_of, part_of, trace_of_part

Kernels = Callable[[str, int, Callable[[str], Outcome]], None]
"""What the ops of a part without rows do: called with the name of an op's template, its GPU, and the outcome so far of a part by its label."""


def run_merged(
    program: Program, tensors: Mapping[str, Tensors | Kernels], order: str = "oldest", *, seed: int = 0, trace: Trace | None = None
) -> dict[str, Outcome]:
    """Interpret a merge. `tensors`: by label the inputs of a part (which may be written until a transfer reads them), or the work of its kernels.

    Returns the results of parts with rows by label; `events` counts steps of the whole.

    `order`, `seed`, `trace` and errors: as in `rows.run_rows`; `trace` is of the merge. Raises ConfigError also where `tensors` has other labels.
    """
    labels = [section.label for section in program.sections]
    if sorted(tensors) != labels:
        raise ConfigError(f"run_merged: found tensors of {sorted(tensors)}, expected those of the parts {labels}")
    return _Merged(program, tensors, make_pool(order, seed, trace, DELIVERIES, COMPLETIONS), trace).run()


class _PartProgress:
    """The waits of a merge, by the ids of one part."""

    def __init__(self, whole: Progress, ids: dict[str, range]) -> None:
        self.whole, self.first = whole, {name: own.start for name, own in ids.items()}
        self.issued = memoryview(whole.issued)[ids["op"].start : ids["op"].stop]

    def try_issue(self, op: int) -> bool:
        return self.whole.try_issue(op + self.first["op"])

    def finish(self, op: int) -> None:
        self.whole.finish(op + self.first["op"])

    def fire(self, kind: Tail, ident: int) -> None:
        self.whole.fire(kind, ident + self.first[TAILS[kind]])

    def told(self, op: int) -> None:
        self.whole.told(op + self.first["op"])

    def responds_freely(self, member: int) -> bool:
        return self.whole.responds_freely(member + self.first["member"])


class _PartPool:
    """The possible events of a merge, by the ids of one part."""

    def __init__(self, whole: Pool, ids: dict[str, range]) -> None:
        self.whole, self.first = whole, {name: own.start for name, own in ids.items()}

    def add(self, event: tuple[int, int], time: int = 0) -> None:
        kind, ident = event
        self.whole.add((kind, ident + self.first["member" if kind in (DELIVER, RESPOND) else "op"]), time)


class _KernelMachine(OpEvents):
    """A part of kernels: DELAY and JOIN ops."""

    tie_bits = RowMachine.tie_bits

    def __init__(self, program: Program, kernels: Kernels, pool: Pool, trace: Trace | None, progress: Progress, of: Callable[[str], Outcome]) -> None:
        super().__init__(program, pool, trace, progress)
        self.kernels, self.of = kernels, of

    def _done(self, op: int) -> None:
        self.kernels(self._template(op).name, self.node[op], self.of)
        super()._done(op)


class _Merged:
    def __init__(self, program: Program, tensors: Mapping[str, Tensors | Kernels], pool: Pool, trace: Trace | None) -> None:
        self.pool, self.trace = pool, trace
        self.progress = Progress(program, self)
        self.ids = [ids_of(program, section) for section in program.sections]
        self.labels = [section.label for section in program.sections]
        self.machines: list[OpEvents] = []
        for label, ids in zip(self.labels, self.ids, strict=True):
            own = None if trace is None else trace_of_part(program, label, trace)
            waits: Any = _PartProgress(self.progress, ids)
            events: Any = _PartPool(pool, ids)
            part, given = part_of(program, label), tensors[label]
            if isinstance(given, Tensors):
                self.machines.append(RowMachine(part, given, events, own, Messages(Faults()), waits))
            else:
                self.machines.append(_KernelMachine(part, given, events, own, waits, self._so_far))

    def run(self) -> dict[str, Outcome]:
        steps = self.progress.run(self.pool, self._step)
        return {label: one.outcome(steps) for label, one in zip(self.labels, self.machines, strict=True) if isinstance(one, RowMachine)}

    def _step(self, kind: int, ident: int) -> None:
        machine, own = self._part("member" if kind in (DELIVER, RESPOND) else "op", ident)
        if machine is not None:
            machine.steps[kind](own)
        elif kind != ISSUE:
            self.progress.told(ident)
        elif self.progress.try_issue(ident):  # it joins parts
            self.progress.finish(ident)

    def _so_far(self, label: str) -> Outcome:
        """The outcome of a part as it is now: sums that are not complete hold poison."""
        machine = self.machines[self.labels.index(label)]
        assert isinstance(machine, RowMachine)
        return machine.outcome(0)

    def _part(self, what: str, ident: int) -> tuple[OpEvents | None, int]:
        """The machine of the part that has the op, member or tile, and its id there. None: an op that joins parts."""
        for machine, ids in zip(self.machines, self.ids, strict=True):
            if ident in ids[what]:
                return machine, ident - ids[what].start
        return None, ident

    # ---- possible events (progress.Listener) -------------------------------------------------------------------------

    def may_issue(self, op: int) -> None:
        machine, own = self._part("op", op)
        if machine is not None:
            machine.may_issue(own)
        else:
            self.pool.add((ISSUE, op), time_in(self.trace, "issue", op) << RowMachine.tie_bits)

    def may_respond(self, member: int) -> None:
        machine, own = self._part("member", member)
        assert machine is not None
        machine.may_respond(own)

    def tile_notifies(self, tile: int) -> None:
        machine, own = self._part("tile", tile)
        assert machine is not None
        machine.tile_notifies(own)
