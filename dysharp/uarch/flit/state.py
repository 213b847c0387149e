"""The state of a flit-exact network as one NamedTuple of arrays. `columns.py` names the columns and states the shapes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class State(NamedTuple):
    """Everything a run changes, in the order the kernel unpacks it."""

    vcs: Ints
    buf: Ints
    lane: Ints
    lane_vcs: Ints
    out: Ints
    ovc: Ints
    out_ptr: Ints
    wait_vcs: Ints
    inp: Ints
    router: Ints
    src: Ints
    src_credit: Ints
    listed: Ints
    pk: Ints
    pool: Ints
    route: Ints
    flit_to: Ints
    flit_code: Ints
    flit_n: Ints
    sink_code: Ints
    sink_n: Ints
    credit_to: Ints
    credit_n: Ints
    timer: Ints
    timer_n: Ints
    out_q: Ints
    credit_q: Ints
    ask: Ints
    want: Ints
    best: Ints
    va_giv: Ints
    va_gov: Ints
    gr_lane: Ints
    gr_out: Ints
    gr_vc: Ints
    hold: Ints
    held: Ints
    full: Ints
    accepted: Ints
    p: Ints
    x: Ints
    s: Ints
