"""Allocators of a virtual-channel router, one iteration each: VCs to packets, then the switch to flits.

They look at the state a step began with, write grants to lists and move their round-robin cursors, which advance on success only.
"""

from dysharp.engine.blocks.bits import pick, split
from dysharp.engine.flit import columns as u
from dysharp.engine.kernel import block, lowest


@block
def _vc_separable(o, first, n_ports, shape, inputs, outputs, grants):
    """Every waiting input VC asks for one free VC of output `o`, and each free VC takes one. Returns the set of VCs granted.

    `first`: first port of the router, which has `n_ports`. The winner of a VC stands in its column OGRANT.
    """
    go, n_vcs, best = first + o, shape.vcs, grants.best
    vcs, ovc, wait_vcs, out = inputs.vcs, outputs.vcs, outputs.wait_vcs, outputs.ports
    free = out[go, u.OUT_FREE]
    taken = 0
    mi = out[go, u.OUT_WAIT]
    while mi != 0:
        i, mi = split(mi)
        mv = wait_vcs[go, i]
        while mv != 0:
            v, mv = split(mv)
            in_vc = (first + i) * n_vcs + v
            d = vcs[in_vc, u.PTR] - o * n_vcs
            c = pick(free, d if 0 <= d < n_vcs else 0)
            d = i * n_vcs + v - ovc[go * n_vcs + c, u.OPTR]
            if d < 0:
                d += n_ports * n_vcs
            if (taken >> c) & 1 == 0 or d < best[c]:
                taken |= 1 << c
                best[c] = d
                ovc[go * n_vcs + c, u.OGRANT] = in_vc
    return taken


@block
def _vc_islip(o, first, n_ports, shape, inputs, outputs, grants):
    """iSLIP: every free VC of output `o` grants one waiting input VC, which accepts one. Returns the set of VCs accepted."""
    go, n_vcs, best = first + o, shape.vcs, grants.best
    vcs, ovc, wait_vcs, out = inputs.vcs, outputs.vcs, outputs.wait_vcs, outputs.ports
    mc = out[go, u.OUT_FREE]
    while mc != 0:
        c, mc = split(mc)
        out_vc = go * n_vcs + c
        best[c] = n_ports * n_vcs
        mi = out[go, u.OUT_WAIT]
        while mi != 0:
            i, mi = split(mi)
            mv = wait_vcs[go, i]
            while mv != 0:
                v, mv = split(mv)
                d = i * n_vcs + v - ovc[out_vc, u.OPTR]
                if d < 0:
                    d += n_ports * n_vcs
                if d < best[c]:
                    best[c] = d
                    ovc[out_vc, u.OGRANT] = (first + i) * n_vcs + v
    taken = 0
    mc = out[go, u.OUT_FREE]
    while mc != 0:
        in_vc = ovc[go * n_vcs + lowest(mc), u.OGRANT]
        same = 0
        m = mc
        while m != 0:
            c, m = split(m)
            if ovc[go * n_vcs + c, u.OGRANT] == in_vc:
                same |= 1 << c
        mc &= ~same
        d = vcs[in_vc, u.PTR] - o * n_vcs
        taken |= 1 << pick(same, d if 0 <= d < n_vcs else 0)
    return taken


@block
def _vcs_with_room(port, shape, outputs):
    """The free VCs of output `port` that have the credits of a packet."""
    free = outputs.ports[port, u.OUT_FREE]
    some = 0
    while free != 0:
        c, free = split(free)
        if outputs.vcs[port * shape.vcs + c, u.CREDIT] >= shape.need:
            some |= 1 << c
    return some


@block
def _vc_note(taken, n, o, first, n_ports, shape, inputs, outputs, grants):
    """Append the grants of the VCs `taken` of output `o` to the list of `n` claims. Returns its length."""
    go, n_vcs, vcs, ovc = first + o, shape.vcs, inputs.vcs, outputs.vcs
    while taken != 0:
        c, taken = split(taken)
        in_vc = ovc[go * n_vcs + c, u.OGRANT]
        d = o * n_vcs + c + 1
        vcs[in_vc, u.PTR] = d if d < n_ports * n_vcs else 0
        d = in_vc - first * n_vcs + 1
        ovc[go * n_vcs + c, u.OPTR] = d if d < n_ports * n_vcs else 0
        grants.claim_in[n] = in_vc
        grants.claim_out[n] = go * n_vcs + c
        n += 1
    return n


@block
def _ask_for(outs, o, i, ask):
    """Input `i` asks output `o`: ask[o] is a set, valid where `outs` has o. Returns the new `outs`."""
    if (outs >> o) & 1 == 0:
        ask[o] = 0
    ask[o] |= 1 << i
    return outs | 1 << o


@block
def _switch_separable(asking, first, shape, inputs, outputs, grants):
    """Each lane asks for one output, each output lane takes one. Returns the number of grants."""
    first_lane, out_lanes, lane, turn, ask = first * shape.lanes, shape.out_lanes, inputs.lane, outputs.turn, grants.ask
    outs = 0
    while asking != 0:
        i, asking = split(asking)
        o = pick(lane[first_lane + i, u.LANE_OUTS], lane[first_lane + i, u.LANE_PTR]) * out_lanes + lane[first_lane + i, u.LANE_OLANE]
        outs = _ask_for(outs, o, i, ask)
    n = 0
    while outs != 0:
        o, outs = split(outs)
        grants.lane[n] = pick(ask[o], turn[first * out_lanes + o, 0])
        grants.out[n] = o
        n += 1
    return n


@block
def _switch_islip(asking, first, shape, inputs, outputs, grants):
    """iSLIP: each output lane grants one of the lanes that ask for it, each lane accepts one. Returns the number of grants."""
    first_lane, out_lanes, lane, turn, ask, want = first * shape.lanes, shape.out_lanes, inputs.lane, outputs.turn, grants.ask, grants.want
    outs = 0
    while asking != 0:
        i, asking = split(asking)
        mo = lane[first_lane + i, u.LANE_OUTS]
        while mo != 0:
            outs = _ask_for(outs, lowest(mo) * out_lanes + lane[first_lane + i, u.LANE_OLANE], i, ask)
            mo &= mo - 1
    granted = 0
    while outs != 0:
        o, outs = split(outs)
        granted = _ask_for(granted, pick(ask[o], turn[first * out_lanes + o, 0]), o // out_lanes, want)
    n = 0
    while granted != 0:
        i, granted = split(granted)
        grants.lane[n] = i
        grants.out[n] = pick(want[i], lane[first_lane + i, u.LANE_PTR]) * out_lanes + lane[first_lane + i, u.LANE_OLANE]
        n += 1
    return n


@block
def lanes_free(asking, kept_out, first, shape, inputs, grants):
    """Takes outputs that are kept out of the requests of the lanes `asking`; `full` notes the requests. Returns the lanes that still ask."""
    first_lane, out_lanes, lane, full = first * shape.lanes, shape.out_lanes, inputs.lane, grants.full
    some = 0
    while asking != 0:
        i, asking = split(asking)
        outs = lane[first_lane + i, u.LANE_OUTS]
        full[i] = outs
        left = outs
        while outs != 0:
            o, outs = split(outs)
            if (kept_out >> (o * out_lanes + lane[first_lane + i, u.LANE_OLANE])) & 1 != 0:
                left &= ~(1 << o)
        lane[first_lane + i, u.LANE_OUTS] = left
        if left != 0:
            some |= 1 << i
    return some


@block
def lanes_restore(asking, first, shape, inputs, grants):
    """Undoes `lanes_free`."""
    while asking != 0:
        i, asking = split(asking)
        inputs.lane[first * shape.lanes + i, u.LANE_OUTS] = grants.full[i]


@block
def _vc_of_lane(e, among, shape, lane):
    """Round robin over the VCs of lane `e` that ask for the granted output."""
    v = pick(among, lane[e, u.LANE_RR])
    lane[e, u.LANE_RR] = v + shape.lanes if v + shape.lanes < shape.vcs else v + shape.lanes - shape.vcs
    return v


@block
def _switch_note(n, first, n_ports, shape, inputs, outputs, grants):
    """Cursors of the `n` grants, and the VC of each."""
    first_lane, lanes, out_lanes, lane, turn = first * shape.lanes, shape.lanes, shape.out_lanes, inputs.lane, outputs.turn
    for j in range(n):
        i = grants.lane[j]
        o = grants.out[j]
        turn[first * out_lanes + o, 0] = i + 1 if i + 1 < n_ports * lanes else 0
        o //= out_lanes
        lane[first_lane + i, u.LANE_PTR] = o + 1 if o + 1 < n_ports else 0
        grants.vc[j] = _vc_of_lane(first_lane + i, inputs.lane_vcs[first_lane + i, o], shape, lane)


@block
def switch_speculate(m, n_sure, first, n_ports, shape, inputs, outputs, grants):
    """Heads that wait for a VC (outputs `m`) ask a second switch allocator, whose grants count only where the first gave none.

    They follow the `n_sure` grants in the list; whether each got its VC and a credit is seen later. Returns the length of the list.
    """
    first_lane, lanes, out_lanes, lane, turn = first * shape.lanes, shape.lanes, shape.out_lanes, inputs.lane, outputs.turn
    out, wait_vcs, ask, want = outputs.ports, outputs.wait_vcs, grants.ask, grants.want
    lanes_taken = 0
    outs_taken = 0
    for j in range(n_sure):
        lanes_taken |= 1 << grants.lane[j]
        outs_taken |= 1 << grants.out[j]
    some = 0
    while m != 0:
        o, m = split(m)
        usable = False
        mc = out[first + o, u.OUT_FREE]
        while mc != 0:
            usable = usable or outputs.vcs[(first + o) * shape.vcs + lowest(mc), u.CREDIT] > 0
            mc &= mc - 1
        mi = out[first + o, u.OUT_WAIT] if usable else 0
        while mi != 0:
            i, mi = split(mi)
            for k in range(i * lanes, (i + 1) * lanes):
                if wait_vcs[first + o, i] & lane[first_lane + k, u.LANE_VCS] != 0:
                    some = _ask_for(some, k, o, want)
    outs = 0
    while some != 0:
        i, some = split(some)
        outs = _ask_for(outs, pick(want[i], lane[first_lane + i, u.LANE_SPTR]) * out_lanes + lane[first_lane + i, u.LANE_OLANE], i, ask)
    n = n_sure
    while outs != 0:
        o, outs = split(outs)
        i = pick(ask[o], turn[first * out_lanes + o, 1])
        turn[first * out_lanes + o, 1] = i + 1 if i + 1 < n_ports * lanes else 0
        c = o // out_lanes
        lane[first_lane + i, u.LANE_SPTR] = c + 1 if c + 1 < n_ports else 0
        if (lanes_taken >> i) & 1 == 0 and (outs_taken >> o) & 1 == 0:
            grants.lane[n] = i
            grants.out[n] = o
            among = wait_vcs[first + c, lane[first_lane + i, u.LANE_PORT]] & lane[first_lane + i, u.LANE_VCS]
            grants.vc[n] = _vc_of_lane(first_lane + i, among, shape, lane)
            n += 1
    return n


@block
def vcs_allocate(outs, first, n_ports, shape, inputs, outputs, grants):
    """The heads that wait for a VC of the outputs `outs` get one, as far as there are. Returns the number of claims."""
    ports = outputs.ports
    n = 0
    while outs != 0:
        o, outs = split(outs)
        free = ports[first + o, u.OUT_FREE]
        if shape.keep != 0:
            room = _vcs_with_room(first + o, shape, outputs)
            if room == 0:
                continue
            ports[first + o, u.OUT_FREE] = room
        if shape.vc_islip != 0:
            taken = _vc_islip(o, first, n_ports, shape, inputs, outputs, grants)
        else:
            taken = _vc_separable(o, first, n_ports, shape, inputs, outputs, grants)
        ports[first + o, u.OUT_FREE] = free
        n = _vc_note(taken, n, o, first, n_ports, shape, inputs, outputs, grants)
    return n


@block
def switch_allocate(asking, first, n_ports, shape, inputs, outputs, grants):
    """One iteration of the switch allocator for the lanes `asking`. Returns the number of grants."""
    if shape.switch_islip != 0:
        n = _switch_islip(asking, first, shape, inputs, outputs, grants)
    else:
        n = _switch_separable(asking, first, shape, inputs, outputs, grants)
    _switch_note(n, first, n_ports, shape, inputs, outputs, grants)
    return n
