"""Who waits for whom in a network where nothing moves."""

from __future__ import annotations

import numpy as np

from dysharp.engine.cycles import first_cycle
from dysharp.uarch.flit import columns as u
from dysharp.uarch.flit.state import State


def _waits_for(a: State, giv: int) -> int | None:
    """The input VC that must move before `giv` can, if any: the owner of an output VC it wants, or the buffer behind the one it has."""
    n_vcs, radix = int(a.p[u.P_VCS]), int(a.p[u.P_RADIX])
    go = int(a.lane[a.vcs[giv, u.LANE], u.L_ROUTER]) * radix + int(a.vcs[giv, u.OUT])
    if a.vcs[giv, u.STATE] == u.WAIT:
        owners = a.ovc[go * n_vcs : (go + 1) * n_vcs, u.OWNER]
        return int(owners[0]) if (owners >= 0).all() else None
    if a.vcs[giv, u.STATE] in (u.ACTIVE, u.HELD):
        gov = int(a.vcs[giv, u.OVC])
        if a.vcs[giv, u.OCC] == 0:  # its next flit is still upstream
            gi = giv // n_vcs
            base, step = int(a.inp[gi, u.I_BASE]), int(a.inp[gi, u.I_STEP])
            up = base + step * (giv % n_vcs)
            return int(a.ovc[up, u.OWNER]) if up >= 0 and a.ovc[up, u.OWNER] >= 0 else None
        if a.ovc[gov, u.CREDIT] == 0 and not a.out[go, u.O_SINK]:
            return int(a.out[go, u.O_TO]) + gov - go * n_vcs
    return None


def deadlock_text(a: State, quiet: int) -> str:
    """One line: how long, how many flits, and the cycle of input VCs that wait for each other."""
    n_vcs, radix = int(a.p[u.P_VCS]), int(a.p[u.P_RADIX])
    head = f"deadlock at cycle {int(a.x[u.X_NOW])}: no flit moved for {quiet} cycles with {int(a.x[u.X_IN_NET])} in the network"
    starts = (int(giv) for giv in np.flatnonzero(a.vcs[:, u.STATE] != u.IDLE))
    ring = first_cycle(starts, lambda giv: _waits_for(a, giv))
    if not ring:
        return head + "; no cycle of waiting VCs was found"
    names = [f"router[{g // n_vcs // radix}].port[{g // n_vcs % radix}].in VC {g % n_vcs}" for g in ring]
    return f"{head}; " + " waits for ".join(names)
