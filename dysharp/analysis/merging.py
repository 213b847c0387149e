"""Merging in the switch: how long an address waits for its last request, how much merged, and how large a table it takes."""

from typing import Any

import numpy as np

from dysharp.analysis.count import loads_that_went_on, sums_that_passed
from dysharp.base import PS_PER_US, ByName
from dysharp.program import Kind, Program, Trace


def merging_of(program: Program, trace: Trace, ports: int) -> ByName:
    """Counts of loads and sums that merge; {} for a Program without any. `ports`: switch ports that face one home.

    `wait_us`: mean time from the first to the last request of an address, `load_wait_us` and `sum_wait_us` of each kind. `addresses`,
    `passed_sums`, `loads` from another GPU, `loads_on`: those that went on to the home. `table_KiB`: most bytes of a home that wait at once for
    the rest of their requests, over its ports: the smallest table in which every address of this run merges. `rate_GBps`: bytes of one GPU's
    merged requests per time between its first and its last. A request is at the switch one hop behind its up grant.
    """
    if program.sessions is None or program.ops.session is None:
        return {}
    kinds, session = program.kinds(), program.ops.session
    target = np.append(program.members.node, -1)[np.minimum(program.members.ptr[:-1], program.n_members)]
    ops = np.flatnonzero((session >= 0) & (target != program.ops.node))
    n = len(program.sessions.home)
    first, last = np.full(n, np.iinfo(np.int64).max), np.full(n, -1, np.int64)
    np.minimum.at(first, session[ops], trace.start[ops])
    np.maximum.at(last, session[ops], trace.start[ops])
    used = np.flatnonzero(last >= 0)
    wait = (last - first)[used] / PS_PER_US
    is_load = kinds[ops] == Kind.MERGED_LOAD
    loads = np.isin(used, session[ops][is_load])
    size = np.zeros(n, np.int64)
    size[session[ops]] = program.ops.bytes[ops]
    home = program.sessions.home[used]
    span = float(trace.start[ops].max() - trace.start[ops].min()) / PS_PER_US
    return {
        "wait_us": float(wait.mean()), "load_wait_us": float(wait[loads].mean()) if loads.any() else 0.0,
        "sum_wait_us": float(wait[~loads].mean()) if (~loads).any() else 0.0, "addresses": len(used), "loads": int(is_load.sum()),
        "loads_on": int((loads_that_went_on(program, trace)[ops] & is_load).sum()), "passed_sums": int(sums_that_passed(program, trace)[used].sum()),
        "table_KiB": max(_most(first[used][home == h], last[used][home == h], size[used][home == h]) for h in np.unique(home)) / ports / 1024,
        "rate_GBps": float(size[used].sum()) / span / 1e3 if span else 0.0,
    }  # fmt: skip


def _most(first: Any, last: Any, size: Any) -> float:
    """The largest sum of `size` over intervals `first` to `last` at once."""
    when = np.concatenate([first, last])
    change = np.concatenate([size, -size])
    return float(np.cumsum(change[np.lexsort((change, when))]).max(initial=0))
