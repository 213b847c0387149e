"""Allocators of a virtual-channel router, one iteration each: VCs to packets, then the switch to flits.

They look at the state a step began with, write grants to lists and move their round-robin cursors, which advance on success only.
"""

from dysharp.uarch.flit.columns import (
    CREDIT,
    L_OLANE,
    L_OUTS,
    L_PORT,
    L_PTR,
    L_RR,
    L_SPTR,
    L_VCS,
    O_FREE,
    O_WAIT,
    OGRANT,
    OPTR,
    PTR,
)
from dysharp.uarch.flit.router import lowest, pick
from dysharp.uarch.kernel import block


@block
def vc_separable(go, o, first, ports, n_vcs, vcs, ovc, wait_vcs, out, best):
    """Every waiting input VC asks for one free VC of output `o`, each of those takes one. Returns the set of VCs granted.

    `first`: first port of the router, `go` = first + o; the winner of VC c stands in ovc[c, OGRANT].
    """
    free = out[go, O_FREE]
    taken = 0
    mi = out[go, O_WAIT]
    while mi != 0:
        i = lowest(mi)
        mi &= mi - 1
        mv = wait_vcs[go, i]
        while mv != 0:
            v = lowest(mv)
            mv &= mv - 1
            giv = (first + i) * n_vcs + v
            d = vcs[giv, PTR] - o * n_vcs
            c = pick(free, d if 0 <= d < n_vcs else 0)
            d = i * n_vcs + v - ovc[go * n_vcs + c, OPTR]
            if d < 0:
                d += ports * n_vcs
            if (taken >> c) & 1 == 0 or d < best[c]:
                taken |= 1 << c
                best[c] = d
                ovc[go * n_vcs + c, OGRANT] = giv
    return taken


@block
def vc_islip(go, o, first, ports, n_vcs, vcs, ovc, wait_vcs, out, best):
    """iSLIP: every free VC of output `o` grants one waiting input VC, which accepts one. Returns the set of VCs accepted."""
    mc = out[go, O_FREE]
    while mc != 0:
        c = lowest(mc)
        mc &= mc - 1
        gov = go * n_vcs + c
        best[c] = ports * n_vcs
        mi = out[go, O_WAIT]
        while mi != 0:
            i = lowest(mi)
            mi &= mi - 1
            mv = wait_vcs[go, i]
            while mv != 0:
                v = lowest(mv)
                mv &= mv - 1
                d = i * n_vcs + v - ovc[gov, OPTR]
                if d < 0:
                    d += ports * n_vcs
                if d < best[c]:
                    best[c] = d
                    ovc[gov, OGRANT] = (first + i) * n_vcs + v
    taken = 0
    mc = out[go, O_FREE]
    while mc != 0:
        giv = ovc[go * n_vcs + lowest(mc), OGRANT]
        same = 0
        m = mc
        while m != 0:
            c = lowest(m)
            m &= m - 1
            if ovc[go * n_vcs + c, OGRANT] == giv:
                same |= 1 << c
        mc &= ~same
        d = vcs[giv, PTR] - o * n_vcs
        taken |= 1 << pick(same, d if 0 <= d < n_vcs else 0)
    return taken


@block
def vcs_with_room(go, need, n_vcs, out, ovc):
    """The free VCs of output `go` that have `need` credits."""
    free = out[go, O_FREE]
    some = 0
    while free != 0:
        c = lowest(free)
        free &= free - 1
        if ovc[go * n_vcs + c, CREDIT] >= need:
            some |= 1 << c
    return some


@block
def vc_note(taken, n, go, o, first, ports, n_vcs, vcs, ovc, va_giv, va_gov):
    """Append the grants of the VCs `taken` of output `o` to the list. Returns its length."""
    while taken != 0:
        c = lowest(taken)
        taken &= taken - 1
        giv = ovc[go * n_vcs + c, OGRANT]
        d = o * n_vcs + c + 1
        vcs[giv, PTR] = d if d < ports * n_vcs else 0
        d = giv - first * n_vcs + 1
        ovc[go * n_vcs + c, OPTR] = d if d < ports * n_vcs else 0
        va_giv[n] = giv
        va_gov[n] = go * n_vcs + c
        n += 1
    return n


@block
def ask_for(outs, o, i, ask):
    """Input `i` asks output `o`: ask[o] is a set, valid where `outs` has o. Returns the new `outs`."""
    if (outs >> o) & 1 == 0:
        ask[o] = 0
    ask[o] |= 1 << i
    return outs | 1 << o


@block
def switch_separable(asking, first, first_lane, olanes, lane, out_ptr, ask, gr_lane, gr_out):
    """Each lane asks for one output, each output lane takes one. Returns the number of grants."""
    outs = 0
    while asking != 0:
        i = lowest(asking)
        asking &= asking - 1
        o = pick(lane[first_lane + i, L_OUTS], lane[first_lane + i, L_PTR]) * olanes + lane[first_lane + i, L_OLANE]
        outs = ask_for(outs, o, i, ask)
    n = 0
    while outs != 0:
        o = lowest(outs)
        outs &= outs - 1
        gr_lane[n] = pick(ask[o], out_ptr[first * olanes + o, 0])
        gr_out[n] = o
        n += 1
    return n


@block
def switch_islip(asking, first, first_lane, olanes, lane, out_ptr, ask, want, gr_lane, gr_out):
    """iSLIP: each output lane grants one of the lanes that ask for it, each lane accepts one. Returns the number of grants."""
    outs = 0
    while asking != 0:
        i = lowest(asking)
        asking &= asking - 1
        mo = lane[first_lane + i, L_OUTS]
        while mo != 0:
            outs = ask_for(outs, lowest(mo) * olanes + lane[first_lane + i, L_OLANE], i, ask)
            mo &= mo - 1
    granted = 0
    while outs != 0:
        o = lowest(outs)
        outs &= outs - 1
        granted = ask_for(granted, pick(ask[o], out_ptr[first * olanes + o, 0]), o // olanes, want)
    n = 0
    while granted != 0:
        i = lowest(granted)
        granted &= granted - 1
        gr_lane[n] = i
        gr_out[n] = pick(want[i], lane[first_lane + i, L_PTR]) * olanes + lane[first_lane + i, L_OLANE]
        n += 1
    return n


@block
def lanes_free(asking, kept_out, first_lane, olanes, lane, full):
    """Takes outputs that are kept out of the requests of the lanes `asking`; `full` [lanes] notes them. Returns the lanes that still ask."""
    some = 0
    while asking != 0:
        i = lowest(asking)
        asking &= asking - 1
        outs = lane[first_lane + i, L_OUTS]
        full[i] = outs
        left = outs
        while outs != 0:
            o = lowest(outs)
            outs &= outs - 1
            if (kept_out >> (o * olanes + lane[first_lane + i, L_OLANE])) & 1 != 0:
                left &= ~(1 << o)
        lane[first_lane + i, L_OUTS] = left
        if left != 0:
            some |= 1 << i
    return some


@block
def lanes_restore(asking, first_lane, lane, full):
    """Undoes `lanes_free`."""
    while asking != 0:
        i = lowest(asking)
        asking &= asking - 1
        lane[first_lane + i, L_OUTS] = full[i]


@block
def vc_of_lane(e, among, lanes, n_vcs, lane):
    """Round robin over the VCs of lane `e` that ask for the granted output."""
    v = pick(among, lane[e, L_RR])
    lane[e, L_RR] = v + lanes if v + lanes < n_vcs else v + lanes - n_vcs
    return v


@block
def switch_note(n, first, first_lane, ports, lanes, olanes, n_vcs, lane, lane_vcs, out_ptr, gr_lane, gr_out, gr_vc):
    """Cursors of the grants, and the VC of each."""
    for j in range(n):
        i = gr_lane[j]
        o = gr_out[j]
        out_ptr[first * olanes + o, 0] = i + 1 if i + 1 < ports * lanes else 0
        o //= olanes
        lane[first_lane + i, L_PTR] = o + 1 if o + 1 < ports else 0
        gr_vc[j] = vc_of_lane(first_lane + i, lane_vcs[first_lane + i, o], lanes, n_vcs, lane)


@block
def switch_speculate(
    m, n_sure, first, first_lane, ports, lanes, olanes, n_vcs, ovc, lane, out, wait_vcs, out_ptr, ask, want, gr_lane, gr_out, gr_vc
):  # fmt: skip
    """Heads that wait for a VC (outputs `m`) ask a second switch allocator, whose grants count only where the first gave none.

    They follow the `n_sure` grants in the list; whether each got its VC and a credit is seen later. Returns the length of the list.
    """
    lanes_taken = 0
    outs_taken = 0
    for j in range(n_sure):
        lanes_taken |= 1 << gr_lane[j]
        outs_taken |= 1 << gr_out[j]
    some = 0
    while m != 0:
        o = lowest(m)
        m &= m - 1
        usable = False
        mc = out[first + o, O_FREE]
        while mc != 0:
            usable = usable or ovc[(first + o) * n_vcs + lowest(mc), CREDIT] > 0
            mc &= mc - 1
        mi = out[first + o, O_WAIT] if usable else 0
        while mi != 0:
            i = lowest(mi)
            mi &= mi - 1
            for k in range(i * lanes, (i + 1) * lanes):
                if wait_vcs[first + o, i] & lane[first_lane + k, L_VCS] != 0:
                    some = ask_for(some, k, o, want)
    outs = 0
    while some != 0:
        i = lowest(some)
        some &= some - 1
        outs = ask_for(outs, pick(want[i], lane[first_lane + i, L_SPTR]) * olanes + lane[first_lane + i, L_OLANE], i, ask)
    n = n_sure
    while outs != 0:
        o = lowest(outs)
        outs &= outs - 1
        i = pick(ask[o], out_ptr[first * olanes + o, 1])
        out_ptr[first * olanes + o, 1] = i + 1 if i + 1 < ports * lanes else 0
        c = o // olanes
        lane[first_lane + i, L_SPTR] = c + 1 if c + 1 < ports else 0
        if (lanes_taken >> i) & 1 == 0 and (outs_taken >> o) & 1 == 0:
            gr_lane[n] = i
            gr_out[n] = o
            among = wait_vcs[first + c, lane[first_lane + i, L_PORT]] & lane[first_lane + i, L_VCS]
            gr_vc[n] = vc_of_lane(first_lane + i, among, lanes, n_vcs, lane)
            n += 1
    return n
