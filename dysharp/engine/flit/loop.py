"""The cycle loop of the flit-exact network, over the blocks of `uarch/flit/*.py`.

One cycle: sinks and credits, arriving flits, pipeline delays, new packets, sources; then every router's internal steps. Within a step
all allocations look at the state the step began with. Work is found through sets and lists, so idle ports and links cost nothing.
"""

from dysharp.uarch.flit.allocate import (
    lanes_free,
    lanes_restore,
    switch_islip,
    switch_note,
    switch_separable,
    switch_speculate,
    vc_islip,
    vc_note,
    vc_separable,
    vcs_with_room,
)
from dysharp.uarch.flit.columns import (
    ACTIVE,
    CREDIT,
    H_OUT,
    H_VC,
    HEAD_BIT,
    HELD,
    HELD_IN,
    HELD_OUT,
    I_BASE,
    I_DELAY,
    I_STEP,
    K_CREATED,
    K_DEST,
    K_ENTERED,
    K_HOPS,
    K_MEASURED,
    K_SALT,
    L_IN,
    O_FREE,
    O_LEN,
    O_READ,
    OCC,
    OVC,
    P_ARITY,
    P_BUF,
    P_FLITS,
    P_HOLD,
    P_LANES,
    P_NEED,
    P_OLANES,
    P_QUEUE,
    P_RADIX,
    P_ROUTE,
    P_ROUTERS,
    P_SA,
    P_SA_ISLIP,
    P_SOURCE_DELAY,
    P_SPEC,
    P_ST,
    P_STEPS,
    P_VA,
    P_VA_ISLIP,
    P_VCS,
    P_WHEEL,
    Q_HEAD,
    Q_LEFT,
    Q_LISTED,
    Q_OK,
    Q_PACKET,
    Q_SENT,
    Q_TAIL,
    Q_TO,
    Q_VC,
    R_FREE,
    R_RADIX,
    R_SWITCH,
    R_WAIT,
    ROUTE,
    S_FLIT,
    S_FLIT_MAX,
    S_FLIT_MIN,
    S_FLITS,
    S_HOPS,
    S_N,
    S_NET,
    S_NET_MAX,
    S_NET_MIN,
    S_PACKET,
    S_PACKET_MAX,
    S_PACKET_MIN,
    SLOT_MASK,
    SLOT_SHIFT,
    STATE,
    TAIL_BIT,
    TIME_SHIFT,
    X_ALL,
    X_EJECTED,
    X_EVENT,
    X_FREE,
    X_FRESH,
    X_FROM,
    X_IN_NET,
    X_LEFT,
    X_LISTED,
    X_MOVED,
    X_NOW,
    X_TO,
)
from dysharp.uarch.flit.router import (
    claim,
    credit_queue_put,
    credit_queue_send,
    credit_take,
    flit_cross,
    flit_pass,
    flit_send,
    flit_take,
    hold_begin,
    lowest,
    packet_queue_put,
    pick,
    queue_put,
    request_on,
    wait_on,
    wheel_put,
)
from dysharp.uarch.kernel import block, kernel


@block
def sinks_take(now, begin, n, sink_code, pk, pool, accepted, x, s):
    """Flits that leave the network, and what they tell."""
    x[X_IN_NET] -= n
    x[X_EJECTED] += n
    for j in range(begin, begin + n):
        code = sink_code[j]
        slot = (code >> SLOT_SHIFT) & SLOT_MASK
        accepted[pk[slot, K_DEST]] += 1
        counted = pk[slot, K_MEASURED] != 0 or x[X_ALL] != 0
        if counted:
            t = now - (code >> TIME_SHIFT)
            s[S_FLITS] += 1
            s[S_FLIT] += t
            s[S_FLIT_MIN] = min(s[S_FLIT_MIN], t)
            s[S_FLIT_MAX] = max(s[S_FLIT_MAX], t)
        if code & TAIL_BIT != 0:
            pool[x[X_FREE]] = slot
            x[X_FREE] += 1
            if counted:
                t = now - pk[slot, K_CREATED]
                s[S_N] += 1
                s[S_PACKET] += t
                s[S_PACKET_MIN] = min(s[S_PACKET_MIN], t)
                s[S_PACKET_MAX] = max(s[S_PACKET_MAX], t)
                t = now - pk[slot, K_ENTERED]
                s[S_NET] += t
                s[S_NET_MIN] = min(s[S_NET_MIN], t)
                s[S_NET_MAX] = max(s[S_NET_MAX], t)
                s[S_HOPS] += pk[slot, K_HOPS]
                x[X_LEFT] -= pk[slot, K_MEASURED]


@block
def packets_join(now, ev_time, ev_src, ev_next, src, listed, x):
    """Packets created by now join the queue of their source. The columns end with a packet that is never created."""
    e = x[X_EVENT]
    while ev_time[e] <= now:
        q = ev_src[e]
        ev_next[e] = -1
        if src[q, Q_HEAD] < 0:
            src[q, Q_HEAD] = e
            if src[q, Q_LISTED] == 0:
                src[q, Q_LISTED] = 1
                listed[x[X_LISTED]] = q
                x[X_LISTED] += 1
        else:
            ev_next[src[q, Q_TAIL]] = e
        src[q, Q_TAIL] = e
        e += 1
    x[X_EVENT] = e


@block
def packet_begin(q, now, n_vcs, n_flits, keep, ev_time, ev_dest, ev_salt, ev_next, src, src_credit, pk, pool, x):
    """Source `q` takes its next packet and the next VC that has a credit (one packet at a time: none of them is claimed).

    `keep`: the VC with most credits instead.
    """
    e = src[q, Q_HEAD]
    if keep:
        best = 0
        for v in range(1, n_vcs):
            if src_credit[q * n_vcs + v] > src_credit[q * n_vcs + best]:
                best = v
        src[q, Q_VC] = best
    else:
        src[q, Q_VC] = pick(src[q, Q_OK], src[q, Q_VC] + 1 if src[q, Q_VC] + 1 < n_vcs else 0)
    src[q, Q_HEAD] = ev_next[e]
    ev_next[e] = -2  # taken
    if x[X_FREE] > 0:
        x[X_FREE] -= 1
        slot = pool[x[X_FREE]]
    else:
        slot = x[X_FRESH]
        x[X_FRESH] += 1
    pk[slot, K_CREATED] = ev_time[e]
    pk[slot, K_ENTERED] = now
    pk[slot, K_DEST] = ev_dest[e]
    pk[slot, K_SALT] = ev_salt[e]
    pk[slot, K_MEASURED] = 1 if x[X_FROM] <= ev_time[e] < x[X_TO] else 0
    pk[slot, K_HOPS] = 0
    src[q, Q_PACKET] = slot
    src[q, Q_LEFT] = n_flits


@block
def sources_send(
    now, n_vcs, n_flits, keep, need, delay, mask, ev_time, ev_dest, ev_salt, ev_next, src, src_credit, listed, pk, pool, flit_to, flit_code, flit_n, x
):  # fmt: skip
    """One flit a cycle from every source that has one and a credit, one packet at a time; a packet starts where there are `need` credits."""
    k = (now + delay) & mask
    cap = len(flit_to) // len(flit_n)
    n = flit_n[k]
    j = 0
    while j < x[X_LISTED]:
        q = listed[j]
        j += 1
        head = src[q, Q_LEFT] == 0
        if head:
            if src[q, Q_OK] == 0:
                continue
            packet_begin(q, now, n_vcs, n_flits, keep, ev_time, ev_dest, ev_salt, ev_next, src, src_credit, pk, pool, x)
        v = src[q, Q_VC]
        if src_credit[q * n_vcs + v] == 0:
            continue
        src[q, Q_LEFT] -= 1
        code = now << TIME_SHIFT | src[q, Q_PACKET] << SLOT_SHIFT
        if head:
            code |= HEAD_BIT
        if src[q, Q_LEFT] == 0:
            code |= TAIL_BIT
        src_credit[q * n_vcs + v] -= 1
        if src_credit[q * n_vcs + v] < need:
            src[q, Q_OK] &= ~(1 << v)
        src[q, Q_SENT] += 1
        flit_to[k * cap + n] = src[q, Q_TO] + v
        flit_code[k * cap + n] = code
        n += 1
        if src[q, Q_LEFT] == 0 and src[q, Q_HEAD] < 0:
            src[q, Q_LISTED] = 0
            x[X_LISTED] -= 1
            j -= 1
            listed[j] = listed[x[X_LISTED]]
    if n > flit_n[k]:
        x[X_IN_NET] += n - flit_n[k]
        x[X_MOVED] = now
    flit_n[k] = n


@kernel
def network_run(until, stop_when_measured, state, ev_time, ev_src, ev_dest, ev_salt, ev_next):
    """Run to cycle `until`, or until the last measured packet has arrived. The event columns are packets to be created, by time."""
    (
        vcs, buf, lane, lane_vcs, out, ovc, out_ptr, wait_vcs, inp, router, src, src_credit, listed, pk, pool, route,
        flit_to, flit_code, flit_n, sink_code, sink_n, credit_to, credit_n, timer, timer_n,
        out_q, credit_q, ask, want, best, va_giv, va_gov, gr_lane, gr_out, gr_vc, hold, held, full, accepted, p, x, s,
    ) = state  # fmt: skip
    n_routers, radix, n_vcs, depth, arity = p[P_ROUTERS], p[P_RADIX], p[P_VCS], p[P_BUF], p[P_ARITY]
    lanes, olanes, steps = p[P_LANES], p[P_OLANES], p[P_STEPS]
    spec, va_islip, sa_islip = p[P_SPEC] != 0, p[P_VA_ISLIP] != 0, p[P_SA_ISLIP] != 0
    mask = p[P_WHEEL] - 1
    cap = p[P_QUEUE]  # of the queues: as many flits as there are credits
    keep, need, n_flits = p[P_HOLD] != 0, p[P_NEED], p[P_FLITS]
    queued = steps > 1 or olanes > 1  # several flits may reach one output in a cycle: a queue before the link
    route_wait = p[P_ROUTE]
    sa_wait = p[P_SA] - 1
    va_wait = p[P_VA] - 1 + sa_wait
    now = x[X_NOW]
    while now < until:
        at = now & mask
        n = sink_n[at]
        if n > 0:
            sink_n[at] = 0
            sinks_take(now, at * (len(sink_code) // len(sink_n)), n, sink_code, pk, pool, accepted, x, s)
        n = credit_n[at]
        if n > 0:
            credit_n[at] = 0
            begin = at * (len(credit_to) // len(credit_n))
            for j in range(begin, begin + n):
                to = credit_to[j]
                if to >= 0:
                    credit_take(to, need, vcs, ovc, lane, lane_vcs, router)
                else:
                    src_credit[-1 - to] += 1
                    if src_credit[-1 - to] >= need:
                        src[(-1 - to) // n_vcs, Q_OK] |= 1 << ((-1 - to) % n_vcs)
        n = flit_n[at]
        if n > 0:
            flit_n[at] = 0
            begin = at * (len(flit_to) // len(flit_n))
            for j in range(begin, begin + n):
                flit_take(
                    flit_to[j], flit_code[j], now, route_wait, sa_wait, depth, arity, vcs, buf, ovc, lane, lane_vcs, wait_vcs, out,
                    router, radix, route, pk, timer, timer_n, mask,
                )  # fmt: skip
        n = timer_n[at]
        if n > 0:
            timer_n[at] = 0
            begin = at * (len(timer) // len(timer_n))
            for j in range(begin, begin + n):
                giv = timer[j]
                if vcs[giv, STATE] == ROUTE:
                    wait_on(giv, vcs, lane, wait_vcs, out, router, radix)
                else:
                    vcs[giv, STATE] = ACTIVE
                    if vcs[giv, OCC] > 0 and ovc[vcs[giv, OVC], CREDIT] >= need:
                        request_on(giv, vcs, lane, lane_vcs, router)
        packets_join(now, ev_time, ev_src, ev_next, src, listed, x)
        sources_send(
            now, n_vcs, n_flits, keep, need, p[P_SOURCE_DELAY], mask, ev_time, ev_dest, ev_salt, ev_next, src, src_credit, listed, pk, pool,
            flit_to, flit_code, flit_n, x,
        )  # fmt: skip
        for r in range(n_routers):
            first = r * radix
            first_lane = first * lanes
            ports = router[r, R_RADIX]
            for step in range(steps):
                asking = router[r, R_SWITCH]
                outs = router[r, R_WAIT] & router[r, R_FREE]
                if asking == 0 and outs == 0 and not keep:
                    break
                n_va = 0
                m = outs
                while m != 0:
                    o = lowest(m)
                    m &= m - 1
                    free = out[first + o, O_FREE]
                    if keep:
                        room = vcs_with_room(first + o, need, n_vcs, out, ovc)
                        if room == 0:
                            continue
                        out[first + o, O_FREE] = room
                    if va_islip:
                        taken = vc_islip(first + o, o, first, ports, n_vcs, vcs, ovc, wait_vcs, out, best)
                    else:
                        taken = vc_separable(first + o, o, first, ports, n_vcs, vcs, ovc, wait_vcs, out, best)
                    out[first + o, O_FREE] = free
                    n_va = vc_note(taken, n_va, first + o, o, first, ports, n_vcs, vcs, ovc, va_giv, va_gov)
                n = 0
                if keep:
                    # a grant lasts for a packet, so allocation is repeated until no lane is left that a waiting packet could have
                    row = r * steps + step
                    rounds = True
                    while rounds:
                        all_asking = router[r, R_SWITCH] & ~held[row, HELD_IN]
                        asking = lanes_free(all_asking, held[row, HELD_OUT], first_lane, olanes, lane, full)
                        if sa_islip:
                            n_sure = switch_islip(asking, first, first_lane, olanes, lane, out_ptr, ask, want, gr_lane, gr_out)
                        else:
                            n_sure = switch_separable(asking, first, first_lane, olanes, lane, out_ptr, ask, gr_lane, gr_out)
                        lanes_restore(all_asking, first_lane, lane, full)
                        switch_note(
                            n_sure, first, first_lane, ports, lanes, olanes, n_vcs, lane, lane_vcs, out_ptr, gr_lane, gr_out, gr_vc
                        )  # fmt: skip
                        for j in range(n_sure):
                            e = gr_lane[j]
                            hold_begin(
                                lane[first_lane + e, L_IN] * n_vcs + gr_vc[j], (first_lane + e) * steps + step, e, gr_out[j], row, vcs, lane,
                                lane_vcs, router, hold, held,
                            )  # fmt: skip
                        rounds = n_sure > 0
                else:
                    if sa_islip:
                        n_sure = switch_islip(asking, first, first_lane, olanes, lane, out_ptr, ask, want, gr_lane, gr_out)
                    else:
                        n_sure = switch_separable(asking, first, first_lane, olanes, lane, out_ptr, ask, gr_lane, gr_out)
                    switch_note(n_sure, first, first_lane, ports, lanes, olanes, n_vcs, lane, lane_vcs, out_ptr, gr_lane, gr_out, gr_vc)
                    n = n_sure
                    if spec:
                        n = switch_speculate(
                            outs, n_sure, first, first_lane, ports, lanes, olanes, n_vcs, ovc, lane, out, wait_vcs, out_ptr, ask, want,
                            gr_lane, gr_out, gr_vc,
                        )  # fmt: skip
                for j in range(n_va):
                    giv = va_giv[j]
                    claim(giv, va_gov[j], n_vcs, vcs, ovc, lane, wait_vcs, out, router, radix)
                    if va_wait > 0:
                        vcs[giv, STATE] = HELD
                        wheel_put(now + 1 + va_wait, giv, timer, timer_n, mask)
                    elif ovc[va_gov[j], CREDIT] >= need:
                        request_on(giv, vcs, lane, lane_vcs, router)
                if keep:
                    kept = held[row, HELD_IN]
                    while kept != 0:
                        e = lowest(kept)
                        kept &= kept - 1
                        h = (first_lane + e) * steps + step
                        giv = hold[h, H_VC]
                        if vcs[giv, OCC] == 0:
                            continue  # only if flits of one packet came with a gap
                        gov = vcs[giv, OVC]
                        o = hold[h, H_OUT]
                        code = flit_pass(
                            giv, now, route_wait, depth, arity, n_vcs, vcs, buf, ovc, lane, wait_vcs, out, router, radix, route, pk, timer,
                            timer_n, mask,
                        )  # fmt: skip
                        if code & TAIL_BIT != 0:
                            held[row, HELD_IN] &= ~(1 << e)
                            held[row, HELD_OUT] &= ~(1 << o)
                        x[X_MOVED] = now
                        i = lane[first_lane + e, L_IN]
                        if steps == 1:
                            wheel_put(now + inp[i, I_DELAY], inp[i, I_BASE] + inp[i, I_STEP] * (giv - i * n_vcs), credit_to, credit_n, mask)
                        else:
                            credit_queue_put(i, giv - i * n_vcs, now * steps + step, cap, inp, credit_q)
                        o = first + o // olanes
                        if queued:
                            ready = now + p[P_ST] - (1 if step + 1 < steps else 0)
                            packet_queue_put(o, gov, code, ready, n_flits, cap, h, hold, out, out_q)
                        else:
                            flit_send(o, gov, code, now, n_vcs, out, flit_to, flit_code, flit_n, sink_code, sink_n, credit_to, credit_n, mask)
                for j in range(n):
                    i = lane[first_lane + gr_lane[j], L_IN]
                    v = gr_vc[j]
                    giv = i * n_vcs + v
                    if j >= n_sure and (vcs[giv, STATE] != ACTIVE or ovc[vcs[giv, OVC], CREDIT] == 0):
                        continue  # speculated in vain
                    gov = vcs[giv, OVC]
                    code = flit_cross(
                        giv, now, route_wait, sa_wait, depth, arity, n_vcs, vcs, buf, ovc, lane, lane_vcs, wait_vcs, out, router, radix,
                        route, pk, timer, timer_n, mask,
                    )  # fmt: skip
                    x[X_MOVED] = now
                    # the credit leaves at once; with several internal steps the link carries one message a cycle
                    if steps == 1:
                        wheel_put(now + inp[i, I_DELAY], inp[i, I_BASE] + inp[i, I_STEP] * v, credit_to, credit_n, mask)
                    else:
                        credit_queue_put(i, v, now * steps + step, cap, inp, credit_q)
                    o = first + gr_out[j] // olanes
                    if queued:
                        queue_put(o, gov, code, now + p[P_ST] - (1 if step + 1 < steps else 0), cap, out, out_q)
                    else:
                        flit_send(o, gov, code, now, n_vcs, out, flit_to, flit_code, flit_n, sink_code, sink_n, credit_to, credit_n, mask)
            if queued:
                for o in range(first, first + ports):
                    j = o * cap + out[o, O_READ]
                    if out[o, O_LEN] > 0 and out_q[j, 0] <= now:
                        out[o, O_READ] = out[o, O_READ] + 1 if out[o, O_READ] + 1 < cap else 0
                        out[o, O_LEN] -= 1
                        flit_send(
                            o, out_q[j, 1], out_q[j, 2], now - p[P_ST], n_vcs, out, flit_to, flit_code, flit_n, sink_code, sink_n,
                            credit_to, credit_n, mask,
                        )  # fmt: skip
            if steps > 1:
                for i in range(first, first + ports):
                    credit_queue_send(i, now, cap, inp, credit_q, credit_to, credit_n, mask)
        now += 1
        if stop_when_measured and x[X_LEFT] == 0:
            break
    x[X_NOW] = now
    return now
