"""Use of the links over the time of a run."""

import numpy as np

from dysharp.analysis.count import loads_that_went_on, remote_members
from dysharp.program.builder import PULLS
from dysharp.program.csr import owners
from dysharp.program.tables import Program
from dysharp.program.trace import Trace
from dysharp.units import PS_PER_US

BINS = 20


def up_use(program: Program, trace: Trace) -> list[float]:
    """Mean use of the NVLink up links in each of `BINS` equal parts of the run: trains and responses at the instant of their grant."""
    p, remote, owner = program, remote_members(program), owners(program.members.ptr)
    leaves = np.zeros(p.n_ops, np.bool_)
    leaves[owner[remote]] = True
    ops = np.flatnonzero(leaves & (p.ops.wire >= 0) & (p.op_net() == 0))
    answers = np.flatnonzero(remote & (np.isin(p.kinds(), PULLS) & loads_that_went_on(p, trace))[owner])
    at = np.concatenate([trace.start[ops], trace.member[answers]])
    n_bytes = np.concatenate([p.wires.up[p.ops.wire[ops]], p.wires.response[p.ops.wire[owner[answers]]]])
    sent, _ = np.histogram(at, BINS, (0, max(1, trace.time_ps)), weights=n_bytes)
    most = p.hardware.rate * trace.time_ps / PS_PER_US / BINS * p.n_nodes
    return [round(float(one), 4) for one in sent / max(1.0, most)]
