"""Lifetimes of rows in the AL TLB of their hub: from the first Dispatch packet to the first Combine packet."""

from typing import Any

import numpy as np

from dysharp.analysis.count import remote_members
from dysharp.arrays import I64
from dysharp.program.builder import PULLS
from dysharp.program.csr import owners
from dysharp.program.tables import Program
from dysharp.program.trace import Trace


def row_visits(program: Program, trace: Trace, al_read: I64) -> dict[str, Any] | None:
    """Rates and lifetimes of rows at the hubs, for a run without evictions. None: no row is both pushed and pulled.

    `al_read`: `[n_rows]` ps, first lookup of each row, -1 = none.

    | key | meaning |
    |---|---|
    | `rows` | rows of all hubs |
    | `rows_per_hub` | rows of the hub with most rows |
    | `dispatch_per_us`, `combine_per_us` | rows per hub and us, counted by the first packet of each row |
    | `lifetime_us` | mean time from a row's first Dispatch packet to its first Combine packet |

    Rates are taken between the first and the last of these packets. For a pull the earliest arrival of its first request counts.
    """
    pulled = _pull_arrival(program, trace)
    both = np.flatnonzero((al_read >= 0) & (pulled >= 0))
    if not len(both):
        return None
    first, second = al_read[both], np.maximum(pulled[both], al_read[both])
    hub = np.repeat(program.regions.node, np.diff(program.regions.row_ptr))[both]
    per_hub = np.bincount(hub, minlength=program.n_nodes)
    mean = len(both) / int(np.count_nonzero(per_hub))

    def rate(times: I64) -> float:
        return float(mean * 1e6 / max(1, int(times.max()) - int(times.min())))

    return {
        "rows": len(both),
        "rows_per_hub": int(per_hub.max()),
        "dispatch_per_us": rate(first),
        "combine_per_us": rate(second),
        "lifetime_us": float((second - first).mean()) / 1e6,
    }


def _pull_arrival(program: Program, trace: Trace) -> I64:
    """`[n_rows]` ps: earliest arrival of the first request for a row at its hub, two hops after the start of the pull.

    -1 = no other GPU pulls the row.
    """
    members = program.members
    owner = owners(members.ptr)
    member = np.repeat(np.arange(len(members.node)), np.diff(members.fill_ptr))
    pulls = np.isin(program.kinds(), PULLS)[owner] & remote_members(program)
    fills = np.flatnonzero(pulls[member])
    out = np.full(program.n_rows, -1, np.int64)
    out[members.fill_row[fills]] = trace.start[owner[member[fills]]] + 2 * program.hardware.lat
    return out
