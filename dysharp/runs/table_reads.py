"""A warning where the table of the hubs is too small for the rows in flight, and what that costs."""

from __future__ import annotations

import dataclasses

from dysharp.program import Program

REPEATED = 1.05
"""Reads of memory per row from which a table is called too small."""
LATER = 1.02
"""Share of the time without repeated reads from which they are worth a warning at burst level."""
MOST_OPS = 100_000
"""Ops of the largest Program that runs a second time at burst level. A larger Program gets no warning at burst level: its run would take twice as
long."""


def table_warning(system: str, program: Program, *, entries: int, rows: int, reads: int, time_ps: int, fidelity: str) -> tuple[str, ...]:
    """One line where rows left the table and were read again, else ().

    `entries`: of one hub. `rows`: rows that were asked for. `reads`: reads of memory. The same Program with a table for
    all rows runs at burst level, so the line can say how much longer the layer takes (at burst level only up to `MOST_OPS` ops).
    """
    if not program.tables or not rows or reads < REPEATED * rows or (fidelity == "burst" and program.n_ops > MOST_OPS):
        return ()
    from dysharp.engine.burst.run import run_burst

    whole = tuple(dataclasses.replace(table, entries=0) for table in program.tables)
    later = time_ps / run_burst(dataclasses.replace(program, tables=whole))[0].time_ps
    if later < LATER and fidelity == "burst":
        return ()
    name = program.tables[0].name.replace("_", " ").upper()
    told = f"{name} of {entries} entries per GPU is too small: a row is read {reads / rows:.1f} times from memory, and the layer takes"
    more = "; an entry may be read again for each packet of a row; only --fidelity packet shows these reads" if fidelity == "burst" else ""
    return (f"{system}: {told} {later:.2f} times as long as with entries for all rows{more}",)
