"""The cycle loop of the flit-exact network, over the kernels of this folder.

One cycle: sinks and credits, arriving flits, pipeline delays, new packets, sources; then every router's internal steps. Within a step
all allocations look at the state the step began with. Work is found through sets and lists, so idle ports and links cost nothing.
"""

from dysharp.engine.blocks.bits import pick, split
from dysharp.engine.flit import columns as u
from dysharp.engine.flit import router
from dysharp.engine.flit.allocate import lanes_free, lanes_restore, switch_allocate, switch_speculate, vcs_allocate
from dysharp.engine.kernel import block, kernel


@block
def _sinks_take(now, state):
    """Flits that leave the network in this cycle, and what they tell."""
    wheels, packets, x, s = state.wheels, state.packets, state.run, state.stats
    packet = packets.packet
    n, begin = _arrivals(now, state.shape, wheels.sink_code, wheels.sink_n)
    x[u.RUN_IN_NET] -= n
    x[u.RUN_EJECTED] += n
    for j in range(begin, begin + n):
        code = wheels.sink_code[j]
        slot = (code >> u.SLOT_SHIFT) & u.SLOT_MASK
        state.accepted[packet[slot, u.PACKET_DEST]] += 1
        counted = packet[slot, u.PACKET_MEASURED] != 0 or x[u.RUN_ALL] != 0
        if counted:
            t = now - (code >> u.TIME_SHIFT)
            s[u.STAT_FLITS] += 1
            s[u.STAT_FLIT] += t
            s[u.STAT_FLIT_MIN] = min(s[u.STAT_FLIT_MIN], t)
            s[u.STAT_FLIT_MAX] = max(s[u.STAT_FLIT_MAX], t)
        if code & u.TAIL_BIT != 0:
            packets.pool[x[u.RUN_FREE]] = slot
            x[u.RUN_FREE] += 1
            if counted:
                _packet_note(now, slot, packet, s)
                x[u.RUN_LEFT] -= packet[slot, u.PACKET_MEASURED]


@block
def _packet_note(now, slot, packet, s):
    """Latencies and hops of a packet whose tail has arrived."""
    t = now - packet[slot, u.PACKET_CREATED]
    s[u.STAT_N] += 1
    s[u.STAT_PACKET] += t
    s[u.STAT_PACKET_MIN] = min(s[u.STAT_PACKET_MIN], t)
    s[u.STAT_PACKET_MAX] = max(s[u.STAT_PACKET_MAX], t)
    t = now - packet[slot, u.PACKET_ENTERED]
    s[u.STAT_NET] += t
    s[u.STAT_NET_MIN] = min(s[u.STAT_NET_MIN], t)
    s[u.STAT_NET_MAX] = max(s[u.STAT_NET_MAX], t)
    s[u.STAT_HOPS] += packet[slot, u.PACKET_HOPS]


@block
def _arrivals(now, shape, wheel, count):
    """How many entries of a wheel are due now, and the first of them. The entries are taken off the wheel."""
    at = now & shape.mask
    n = count[at]
    count[at] = 0
    return n, at * (len(wheel) // len(count))


@block
def _credits_arrive(now, shape, inputs, outputs, routers, sources, wheels):
    """Credits come back to output VCs and to sources."""
    n, begin = _arrivals(now, shape, wheels.credit_to, wheels.credit_n)
    for j in range(begin, begin + n):
        to = wheels.credit_to[j]
        if to >= 0:
            router.credit_take(to, shape, inputs, outputs, routers)
        else:
            v = -1 - to
            sources.credit[v] += 1
            if sources.credit[v] >= shape.need:
                sources.source[v // shape.vcs, u.SOURCE_OK] |= 1 << (v % shape.vcs)


@block
def _flits_arrive(now, shape, inputs, outputs, routers, packets, wheels):
    """Flits reach the input VCs at the end of their link."""
    n, begin = _arrivals(now, shape, wheels.flit_to, wheels.flit_n)
    for j in range(begin, begin + n):
        router.flit_take(wheels.flit_to[j], wheels.flit_code[j], now, shape, inputs, outputs, routers, packets, wheels)


@block
def _delays_end(now, shape, inputs, outputs, routers, wheels):
    """Pipeline delays end: a routed head asks for a VC, a flit that owns one for the switch."""
    vcs = inputs.vcs
    n, begin = _arrivals(now, shape, wheels.timer, wheels.timer_n)
    for j in range(begin, begin + n):
        in_vc = wheels.timer[j]
        if vcs[in_vc, u.STATE] == u.ROUTE:
            router.wait_on(in_vc, shape, inputs, outputs, routers)
        else:
            vcs[in_vc, u.STATE] = u.ACTIVE
            if vcs[in_vc, u.OCC] > 0 and outputs.vcs[vcs[in_vc, u.OVC], u.CREDIT] >= shape.need:
                router.request_on(in_vc, inputs, routers)


@block
def _packets_join(now, created, sources, x):
    """Packets created by now join the queue of their source. The columns end with a packet that is never created."""
    source, behind = sources.source, created.next
    e = x[u.RUN_EVENT]
    while created.time[e] <= now:
        q = created.source[e]
        behind[e] = -1
        if source[q, u.SOURCE_HEAD] < 0:
            source_list(q, e, sources, x)
        else:
            behind[source[q, u.SOURCE_TAIL]] = e
            source[q, u.SOURCE_TAIL] = e
        e += 1
    x[u.RUN_EVENT] = e


@block
def source_list(q, e, sources, x):
    """Packet e is the only one in the queue of source q, which is looked at from now on."""
    source = sources.source
    source[q, u.SOURCE_HEAD] = e
    source[q, u.SOURCE_TAIL] = e
    if source[q, u.SOURCE_LISTED] == 0:
        source[q, u.SOURCE_LISTED] = 1
        sources.listed[x[u.RUN_LISTED]] = q
        x[u.RUN_LISTED] += 1


@block
def _packet_begin(q, now, shape, created, sources, packets, x):
    """Source `q` takes its next packet and the next VC that has a credit (one packet at a time: none of them is claimed).

    Where packets keep the switch, it takes the VC with most credits instead.
    """
    source, packet = sources.source, packets.packet
    e = source[q, u.SOURCE_HEAD]
    if shape.keep != 0:
        best = 0
        for v in range(1, shape.vcs):
            if sources.credit[q * shape.vcs + v] > sources.credit[q * shape.vcs + best]:
                best = v
        source[q, u.SOURCE_VC] = best
    else:
        source[q, u.SOURCE_VC] = pick(source[q, u.SOURCE_OK], source[q, u.SOURCE_VC] + 1 if source[q, u.SOURCE_VC] + 1 < shape.vcs else 0)
    source[q, u.SOURCE_HEAD] = created.next[e]
    created.next[e] = -2  # taken
    if x[u.RUN_FREE] > 0:
        x[u.RUN_FREE] -= 1
        slot = packets.pool[x[u.RUN_FREE]]
    else:
        slot = x[u.RUN_FRESH]
        x[u.RUN_FRESH] += 1
    packet[slot, u.PACKET_CREATED] = created.time[e]
    packet[slot, u.PACKET_ENTERED] = now
    packet[slot, u.PACKET_DEST] = created.dest[e]
    packet[slot, u.PACKET_SALT] = created.salt[e]
    packet[slot, u.PACKET_MEASURED] = 1 if x[u.RUN_FROM] <= created.time[e] < x[u.RUN_TO] else 0
    packet[slot, u.PACKET_HOPS] = 0
    source[q, u.SOURCE_PACKET] = slot
    source[q, u.SOURCE_LEFT] = shape.flits


@block
def _sources_send(now, shape, created, sources, packets, wheels, x):
    """One flit a cycle from every source that has one and a credit, one packet at a time."""
    source, credit, listed = sources.source, sources.credit, sources.listed
    k = (now + shape.source_delay) & shape.mask
    begin = k * (len(wheels.flit_to) // len(wheels.flit_n))
    n = wheels.flit_n[k]
    j = 0
    while j < x[u.RUN_LISTED]:
        q = listed[j]
        j += 1
        head = source[q, u.SOURCE_LEFT] == 0
        if head:
            if source[q, u.SOURCE_OK] == 0:
                continue
            _packet_begin(q, now, shape, created, sources, packets, x)
        v = source[q, u.SOURCE_VC]
        if credit[q * shape.vcs + v] == 0:
            continue
        source[q, u.SOURCE_LEFT] -= 1
        code = now << u.TIME_SHIFT | source[q, u.SOURCE_PACKET] << u.SLOT_SHIFT
        if head:
            code |= u.HEAD_BIT
        if source[q, u.SOURCE_LEFT] == 0:
            code |= u.TAIL_BIT
        credit[q * shape.vcs + v] -= 1
        if credit[q * shape.vcs + v] < shape.need:
            source[q, u.SOURCE_OK] &= ~(1 << v)
        source[q, u.SOURCE_SENT] += 1
        wheels.flit_to[begin + n] = source[q, u.SOURCE_TO] + v
        wheels.flit_code[begin + n] = code
        n += 1
        if source[q, u.SOURCE_LEFT] == 0 and source[q, u.SOURCE_HEAD] < 0:
            source[q, u.SOURCE_LISTED] = 0
            x[u.RUN_LISTED] -= 1
            j -= 1
            listed[j] = listed[x[u.RUN_LISTED]]
    if n > wheels.flit_n[k]:
        x[u.RUN_IN_NET] += n - wheels.flit_n[k]
        x[u.RUN_MOVED] = now
    wheels.flit_n[k] = n


@block
def _vcs_claim(n, now, shape, inputs, outputs, routers, wheels, grants):
    """The `n` claims of this step take effect. A claimant asks for the switch, at once or after a delay."""
    for j in range(n):
        in_vc, out_vc = grants.claim_in[j], grants.claim_out[j]
        router.claim(in_vc, out_vc, shape, inputs, outputs, routers)
        if shape.claim_wait > 0:
            inputs.vcs[in_vc, u.STATE] = u.HELD
            router.wheel_put(now + 1 + shape.claim_wait, in_vc, wheels.timer, wheels.timer_n, shape.mask)
        elif outputs.vcs[out_vc, u.CREDIT] >= shape.need:
            router.request_on(in_vc, inputs, routers)


@block
def _holds_allocate(r, step, first, n_ports, shape, inputs, outputs, routers, grants):
    """Packets get the switch until their tail has passed. Allocation is repeated until no lane is left that a waiting packet could have."""
    row = r * shape.steps + step
    n = 1
    while n > 0:
        all_asking = routers.router[r, u.ROUTER_SWITCH] & ~routers.held[row, u.HELD_IN]
        asking = lanes_free(all_asking, routers.held[row, u.HELD_OUT], first, shape, inputs, grants)
        n = switch_allocate(asking, first, n_ports, shape, inputs, outputs, grants)
        lanes_restore(all_asking, first, shape, inputs, grants)
        for j in range(n):
            e = grants.lane[j]
            lane = first * shape.lanes + e
            in_vc = inputs.lane[lane, u.LANE_IN] * shape.vcs + grants.vc[j]
            router.hold_begin(in_vc, lane * shape.steps + step, e, grants.out[j], row, inputs, routers)


@block
def _holders_pass(r, step, first, now, shape, inputs, outputs, routers, packets, wheels, x):
    """One flit of every packet that keeps the switch passes."""
    row = r * shape.steps + step
    held, hold = routers.held, routers.hold
    kept = held[row, u.HELD_IN]
    while kept != 0:
        e, kept = split(kept)
        lane = first * shape.lanes + e
        hold_row = lane * shape.steps + step
        in_vc, o = hold[hold_row, u.HOLD_VC], hold[hold_row, u.HOLD_OUT]
        if inputs.vcs[in_vc, u.OCC] == 0:
            continue  # only if flits of one packet came with a gap
        out_vc = inputs.vcs[in_vc, u.OVC]
        code = router.flit_pass(in_vc, now, shape, inputs, outputs, routers, packets, wheels)
        if code & u.TAIL_BIT != 0:
            held[row, u.HELD_IN] &= ~(1 << e)
            held[row, u.HELD_OUT] &= ~(1 << o)
        x[u.RUN_MOVED] = now
        i = inputs.lane[lane, u.LANE_IN]
        router.credit_send(i, in_vc - i * shape.vcs, now, step, shape, inputs, wheels)
        port = first + o // shape.out_lanes
        if _has_queue(shape):
            router.packet_queue_put(port, out_vc, code, _leaves_at(now, step, shape), hold_row, shape, outputs, routers)
        else:
            router.flit_send(port, out_vc, code, now, shape, outputs, wheels)


@block
def _flits_cross(n_sure, n, step, first, now, shape, inputs, outputs, routers, packets, wheels, grants, x):
    """The flits of the `n` switch grants cross. Those after the first `n_sure` were speculative and may be in vain."""
    for j in range(n):
        i = inputs.lane[first * shape.lanes + grants.lane[j], u.LANE_IN]
        in_vc = i * shape.vcs + grants.vc[j]
        if j >= n_sure and (inputs.vcs[in_vc, u.STATE] != u.ACTIVE or outputs.vcs[inputs.vcs[in_vc, u.OVC], u.CREDIT] == 0):
            continue
        out_vc = inputs.vcs[in_vc, u.OVC]
        code = router.flit_cross(in_vc, now, shape, inputs, outputs, routers, packets, wheels)
        x[u.RUN_MOVED] = now
        router.credit_send(i, grants.vc[j], now, step, shape, inputs, wheels)
        port = first + grants.out[j] // shape.out_lanes
        if _has_queue(shape):
            router.queue_put(port, out_vc, code, _leaves_at(now, step, shape), shape, outputs)
        else:
            router.flit_send(port, out_vc, code, now, shape, outputs, wheels)


@block
def _has_queue(shape):
    """Whether several flits may reach one output in a cycle: then a queue stands before its link."""
    return shape.steps > 1 or shape.out_lanes > 1


@block
def _leaves_at(now, step, shape):
    """The cycle from which a flit that crosses in `step` may leave its queue."""
    return now + shape.traversal - (1 if step + 1 < shape.steps else 0)


@block
def _router_step(r, step, now, state):
    """All allocations of one internal step, then what they move. Returns False where the router has nothing to do."""
    shape, inputs, outputs, routers, packets, wheels = state.shape, state.inputs, state.outputs, state.routers, state.packets, state.wheels
    grants, x = state.grants, state.run
    asking, outs = routers.router[r, u.ROUTER_SWITCH], routers.router[r, u.ROUTER_WAIT] & routers.router[r, u.ROUTER_FREE]
    keep = shape.keep != 0
    if asking == 0 and outs == 0 and not keep:
        return False
    first, n_ports = r * shape.radix, routers.router[r, u.ROUTER_RADIX]
    n_claims = vcs_allocate(outs, first, n_ports, shape, inputs, outputs, grants)
    if keep:
        _holds_allocate(r, step, first, n_ports, shape, inputs, outputs, routers, grants)
        _vcs_claim(n_claims, now, shape, inputs, outputs, routers, wheels, grants)
        _holders_pass(r, step, first, now, shape, inputs, outputs, routers, packets, wheels, x)
    else:
        n = n_sure = switch_allocate(asking, first, n_ports, shape, inputs, outputs, grants)
        if shape.speculative != 0:
            n = switch_speculate(outs, n_sure, first, n_ports, shape, inputs, outputs, grants)
        _vcs_claim(n_claims, now, shape, inputs, outputs, routers, wheels, grants)
        _flits_cross(n_sure, n, step, first, now, shape, inputs, outputs, routers, packets, wheels, grants, x)
    return True


@block
def _links_feed(r, now, shape, inputs, outputs, routers, wheels):
    """Queues before the links of router `r` send a flit, and a message of credits, each."""
    ports = range(r * shape.radix, r * shape.radix + routers.router[r, u.ROUTER_RADIX])
    if _has_queue(shape):
        for port in ports:
            router.queue_send(port, now, shape, outputs, wheels)
    if shape.steps > 1:
        for port in ports:
            router.credit_queue_send(port, now, shape, inputs, wheels)


@kernel
def network_run(until, stop_when_measured, state, created):
    """Run to cycle `until`, or until the last measured packet has arrived. `created`: packets to be created, by time."""
    shape, inputs, outputs, routers, sources = state.shape, state.inputs, state.outputs, state.routers, state.sources
    packets, wheels, x = state.packets, state.wheels, state.run
    now = x[u.RUN_NOW]
    while now < until:
        _sinks_take(now, state)
        _credits_arrive(now, shape, inputs, outputs, routers, sources, wheels)
        _flits_arrive(now, shape, inputs, outputs, routers, packets, wheels)
        _delays_end(now, shape, inputs, outputs, routers, wheels)
        _packets_join(now, created, sources, x)
        _sources_send(now, shape, created, sources, packets, wheels, x)
        for r in range(shape.routers):
            for step in range(shape.steps):
                if not _router_step(r, step, now, state):
                    break
            _links_feed(r, now, shape, inputs, outputs, routers, wheels)
        now += 1
        if stop_when_measured and x[u.RUN_LEFT] == 0:
            break
    x[u.RUN_NOW] = now
    return now
