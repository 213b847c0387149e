"""Who waits for whom in a network where nothing moves."""

import numpy as np

from dysharp.engine.cycles import first_cycle
from dysharp.uarch.flit import columns as u
from dysharp.uarch.flit.state import State


def _waits_for(a: State, in_vc: int) -> int | None:
    """The input VC that must move before `in_vc` can, if any: the owner of the output VC that `in_vc` wants, or the buffer behind its output VC."""
    n_vcs, radix = a.shape.vcs, a.shape.radix
    go = int(a.inputs.lane[a.inputs.vcs[in_vc, u.LANE], u.LANE_ROUTER]) * radix + int(a.inputs.vcs[in_vc, u.OUT])
    if a.inputs.vcs[in_vc, u.STATE] == u.WAIT:
        owners = a.outputs.vcs[go * n_vcs : (go + 1) * n_vcs, u.OWNER]
        return int(owners[0]) if (owners >= 0).all() else None
    if a.inputs.vcs[in_vc, u.STATE] in (u.ACTIVE, u.HELD):
        out_vc = int(a.inputs.vcs[in_vc, u.OVC])
        if a.inputs.vcs[in_vc, u.OCC] == 0:  # its next flit is still upstream
            gi = in_vc // n_vcs
            base, step = int(a.inputs.ports[gi, u.IN_BASE]), int(a.inputs.ports[gi, u.IN_STEP])
            up = base + step * (in_vc % n_vcs)
            return int(a.outputs.vcs[up, u.OWNER]) if up >= 0 and a.outputs.vcs[up, u.OWNER] >= 0 else None
        if a.outputs.vcs[out_vc, u.CREDIT] == 0 and not a.outputs.ports[go, u.OUT_SINK]:
            return int(a.outputs.ports[go, u.OUT_TO]) + out_vc - go * n_vcs
    return None


def deadlock_text(a: State, quiet: int) -> str:
    """One line: how long, how many flits, and the cycle of input VCs that wait for each other."""
    n_vcs, radix = a.shape.vcs, a.shape.radix
    head = f"deadlock at cycle {int(a.run[u.RUN_NOW])}: no flit moved for {quiet} cycles with {int(a.run[u.RUN_IN_NET])} in the network"
    starts = (int(in_vc) for in_vc in np.flatnonzero(a.inputs.vcs[:, u.STATE] != u.IDLE))
    ring = first_cycle(starts, lambda in_vc: _waits_for(a, in_vc))
    if not ring:
        return head + "; no cycle of waiting VCs was found"
    names = [f"router[{g // n_vcs // radix}].port[{g // n_vcs % radix}].in VC {g % n_vcs}" for g in ring]
    return f"{head}; " + " waits for ".join(names)
