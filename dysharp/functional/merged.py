"""The row path on a merge of Programs: each part has its tensors, its memory and its record; waits, queues and semaphores are common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dysharp.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import Faults
from dysharp.functional.layer import Tensors
from dysharp.functional.messages import Messages
from dysharp.functional.orders import Pool, make_pool
from dysharp.functional.progress import Progress
from dysharp.functional.rows import COMPLETIONS, DELIVER, DELIVERIES, ISSUE, RESPOND, Outcome, RowMachine
from dysharp.program import Program, Tail, Trace
from dysharp.program.sections import TAILS, ids_of, part_of, trace_of_part


def run_merged(
    program: Program, tensors: Mapping[str, Tensors], order: str = "oldest", *, seed: int = 0, trace: Trace | None = None
) -> dict[str, Outcome]:
    """Interpret a merge. `tensors`: inputs of every part by label. Returns the results by label; `events` counts steps of the whole.

    `order`, `seed`, `trace` and errors: as in `rows.run_rows`; `trace` is of the merge. Raises ConfigError also where `tensors` has other labels.
    """
    labels = [section.label for section in program.sections]
    if sorted(tensors) != labels:
        raise ConfigError(f"run_merged: found tensors of {sorted(tensors)}, expected those of the parts {labels}")
    if (order == "trace") != (trace is not None):
        raise ConfigError(f"order {order!r}: found {'no' if trace is None else 'a'} Trace, expected one for order trace only")
    return _Merged(program, tensors, make_pool(order, seed, DELIVERIES, COMPLETIONS), trace).run()


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


class _Merged:
    def __init__(self, program: Program, tensors: Mapping[str, Tensors], pool: Pool, trace: Trace | None) -> None:
        self.pool, self.trace = pool, trace
        self.progress = Progress(program, self)
        self.ids = [ids_of(program, section) for section in program.sections]
        self.labels = [section.label for section in program.sections]
        self.machines = []
        for label, ids in zip(self.labels, self.ids, strict=True):
            own = None if trace is None else trace_of_part(program, label, trace)
            waits: Any = _PartProgress(self.progress, ids)
            events: Any = _PartPool(pool, ids)
            self.machines.append(RowMachine(part_of(program, label), tensors[label], events, own, Messages(Faults()), waits))

    def run(self) -> dict[str, Outcome]:
        self.progress.start()
        steps = 0
        while len(self.pool):
            kind, ident = self.pool.pop()
            machine, own = self._part("member" if kind in (DELIVER, RESPOND) else "op", ident)
            if machine is not None:
                machine.steps[kind](own)
            elif kind == ISSUE:
                self._join(ident)
            else:
                self.progress.told(ident)
            steps += 1
        if self.progress.n_done < self.progress.program.n_ops:
            raise EmulationMismatch(f"watchdog: {self.progress.stuck()}")
        return {label: machine.outcome(steps) for label, machine in zip(self.labels, self.machines, strict=True)}

    def _part(self, what: str, ident: int) -> tuple[RowMachine | None, int]:
        """The machine of the part that has the op, member or tile, and its id there. None: an op that joins parts."""
        for machine, ids in zip(self.machines, self.ids, strict=True):
            if ident in ids[what]:
                return machine, ident - ids[what].start
        return None, ident

    def _join(self, op: int) -> None:
        if self.progress.try_issue(op):
            self.progress.finish(op)

    # ---- possible events (progress.Listener) -------------------------------------------------------------------------

    def may_issue(self, op: int) -> None:
        machine, own = self._part("op", op)
        if machine is not None:
            machine.may_issue(own)
        else:
            self.pool.add((ISSUE, op), 0 if self.trace is None else int(self.trace.issue[op]) << 32)

    def may_respond(self, member: int) -> None:
        machine, own = self._part("member", member)
        assert machine is not None
        machine.may_respond(own)

    def tile_notifies(self, tile: int) -> None:
        machine, own = self._part("tile", tile)
        assert machine is not None
        machine.tile_notifies(own)
