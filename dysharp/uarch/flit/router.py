"""Blocks of a virtual-channel router: what an input VC asks for, and what changes when a flit or a credit moves.

Timing after recorded curves of an established router simulator (docs/network.md). `wheel` arrays hold what arrives in
a coming cycle: row `cycle & mask` of a list with a count.
"""

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dysharp.uarch.flit.columns import (
    ACTIVE,
    BIT,
    CREDIT,
    H_NEXT,
    H_OUT,
    H_VC,
    HEAD_BIT,
    HELD,
    HELD_IN,
    HELD_OUT,
    I_BASE,
    I_DELAY,
    I_LEN,
    I_READ,
    I_STAMP,
    I_STEP,
    IDLE,
    K_DEST,
    K_HOPS,
    K_SALT,
    L_BIT,
    L_OUTS,
    L_PORT,
    L_ROUTER,
    LANE,
    O_CREDIT,
    O_DELAY,
    O_FREE,
    O_LEN,
    O_READ,
    O_SINK,
    O_TO,
    O_WAIT,
    OCC,
    OUT,
    OVC,
    OWNER,
    PASSING,
    R_FREE,
    R_SWITCH,
    R_WAIT,
    READ,
    ROUTE,
    SLOT_MASK,
    SLOT_SHIFT,
    STATE,
    TAIL_BIT,
    WAIT,
)
from dysharp.uarch.kernel import block

NOT_YET = 1 << 62  # cycle of a flit that has not come

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]

    def lowest(word):
        """Index of the lowest set bit of a non-zero 64-bit word."""
        return (int(word) & -int(word)).bit_length() - 1

else:

    @intrinsic
    def lowest(typingctx, word):
        """Index of the lowest set bit of a non-zero 64-bit word: one machine instruction."""

        def codegen(context, builder, signature, args):
            return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.int64), codegen


@block
def pick(word, start):
    """Round robin: lowest member at or above `start` (0 .. 63) of a non-empty set, else the lowest."""
    high = word & (-1 << start)
    return lowest(high if high != 0 else word)


@block
def wheel_put(at, entry, wheel, count, mask):
    """`entry` is due in cycle `at`."""
    k = at & mask
    wheel[k * (len(wheel) // len(count)) + count[k]] = entry
    count[k] += 1


@block
def request_on(giv, vcs, lane, lane_vcs, router):
    """Input VC `giv` asks for the switch from the next allocation on."""
    e = vcs[giv, LANE]
    o = vcs[giv, OUT]
    lane_vcs[e, o] |= 1 << vcs[giv, BIT]
    lane[e, L_OUTS] |= 1 << o
    router[lane[e, L_ROUTER], R_SWITCH] |= 1 << lane[e, L_BIT]


@block
def request_off(giv, vcs, lane, lane_vcs, router):
    """It no longer does: its flit left, or the credit it needs is spent."""
    e = vcs[giv, LANE]
    o = vcs[giv, OUT]
    lane_vcs[e, o] &= ~(1 << vcs[giv, BIT])
    if lane_vcs[e, o] == 0:
        lane[e, L_OUTS] &= ~(1 << o)
        if lane[e, L_OUTS] == 0:
            router[lane[e, L_ROUTER], R_SWITCH] &= ~(1 << lane[e, L_BIT])


@block
def wait_on(giv, vcs, lane, wait_vcs, out, router, radix):
    """The head at the front of `giv` asks for a VC of its output from the next allocation on."""
    e = vcs[giv, LANE]
    o = vcs[giv, OUT]
    r = lane[e, L_ROUTER]
    i = lane[e, L_PORT]
    wait_vcs[r * radix + o, i] |= 1 << vcs[giv, BIT]
    out[r * radix + o, O_WAIT] |= 1 << i
    router[r, R_WAIT] |= 1 << o
    vcs[giv, STATE] = WAIT


@block
def head_front(giv, code, ready, route_wait, arity, vcs, lane, wait_vcs, out, router, radix, route, pk, timer, timer_n, mask):
    """The head `code` comes to the front of `giv`: route it and ask for a VC, after the routing delay if there is one.

    route [n_routers, n_terminals]: output port, or -1 - level for "any port up", which the packet's salt decides.
    """
    slot = (code >> SLOT_SHIFT) & SLOT_MASK
    o = route[lane[vcs[giv, LANE], L_ROUTER], pk[slot, K_DEST]]
    if o < 0:
        digit = pk[slot, K_SALT]
        for _ in range(-1 - o):
            digit //= arity
        o = arity + digit % arity
    vcs[giv, OUT] = o
    if route_wait == 0:
        wait_on(giv, vcs, lane, wait_vcs, out, router, radix)
    else:
        vcs[giv, STATE] = ROUTE
        wheel_put(ready + route_wait, giv, timer, timer_n, mask)


@block
def claim(giv, gov, n_vcs, vcs, ovc, lane, wait_vcs, out, router, radix):
    """Input VC `giv` gets output VC `gov` for one packet."""
    e = vcs[giv, LANE]
    o = vcs[giv, OUT]
    r = lane[e, L_ROUTER]
    i = lane[e, L_PORT]
    go = r * radix + o
    wait_vcs[go, i] &= ~(1 << vcs[giv, BIT])
    if wait_vcs[go, i] == 0:
        out[go, O_WAIT] &= ~(1 << i)
        if out[go, O_WAIT] == 0:
            router[r, R_WAIT] &= ~(1 << o)
    out[go, O_FREE] &= ~(1 << (gov - go * n_vcs))
    if out[go, O_FREE] == 0:
        router[r, R_FREE] &= ~(1 << o)
    ovc[gov, OWNER] = giv
    vcs[giv, OVC] = gov
    vcs[giv, STATE] = ACTIVE


@block
def release(go, gov, n_vcs, ovc, out, router, radix):
    """The tail won the switch: another packet may claim output VC `gov` from the next allocation on."""
    ovc[gov, OWNER] = -1
    out[go, O_FREE] |= 1 << (gov - go * n_vcs)
    router[go // radix, R_FREE] |= 1 << (go % radix)


@block
def credit_take(gov, need, vcs, ovc, lane, lane_vcs, router):
    """A slot downstream of output VC `gov` became free; its owner may ask for the switch with `need` of them."""
    ovc[gov, CREDIT] += 1
    giv = ovc[gov, OWNER]
    if ovc[gov, CREDIT] == need and giv >= 0 and vcs[giv, STATE] == ACTIVE and vcs[giv, OCC] > 0:
        request_on(giv, vcs, lane, lane_vcs, router)


@block
def flit_take(
    giv, code, now, route_wait, sa_wait, depth, arity, vcs, buf, ovc, lane, lane_vcs, wait_vcs, out, router, radix, route, pk,
    timer, timer_n, mask,
):  # fmt: skip
    """A flit arrives at input VC `giv`."""
    occ = vcs[giv, OCC]
    pos = vcs[giv, READ] + occ
    if pos >= depth:
        pos -= depth
    buf[giv * depth + pos] = code
    vcs[giv, OCC] = occ + 1
    if occ == 0:
        if vcs[giv, STATE] == IDLE:
            head_front(
                giv, code, now, route_wait, arity, vcs, lane, wait_vcs, out, router, radix, route, pk, timer, timer_n, mask
            )  # fmt: skip
        elif vcs[giv, STATE] == ACTIVE:
            if sa_wait > 0:
                vcs[giv, STATE] = HELD
                wheel_put(now + sa_wait, giv, timer, timer_n, mask)
            elif ovc[vcs[giv, OVC], CREDIT] > 0:
                request_on(giv, vcs, lane, lane_vcs, router)


@block
def flit_cross(
    giv, now, route_wait, sa_wait, depth, arity, n_vcs, vcs, buf, ovc, lane, lane_vcs, wait_vcs, out, router, radix, route, pk,
    timer, timer_n, mask,
):  # fmt: skip
    """The front flit of `giv` wins the switch: takes it out, spends a credit, lets the VC go on. Returns the flit."""
    o = vcs[giv, OUT]
    gov = vcs[giv, OVC]
    pos = vcs[giv, READ]
    code = buf[giv * depth + pos]
    occ = vcs[giv, OCC] - 1
    vcs[giv, OCC] = occ
    vcs[giv, READ] = 0 if occ == 0 or pos + 1 == depth else pos + 1  # an empty buffer starts anew and so stays in cache
    ovc[gov, CREDIT] -= 1
    if code & HEAD_BIT != 0:
        pk[(code >> SLOT_SHIFT) & SLOT_MASK, K_HOPS] += 1
    if code & TAIL_BIT != 0:
        request_off(giv, vcs, lane, lane_vcs, router)
        release(lane[vcs[giv, LANE], L_ROUTER] * radix + o, gov, n_vcs, ovc, out, router, radix)
        if occ == 0:
            vcs[giv, STATE] = IDLE
        else:
            head_front(
                giv, buf[giv * depth + vcs[giv, READ]], now + 1, route_wait, arity, vcs, lane, wait_vcs, out, router, radix, route,
                pk, timer, timer_n, mask,
            )  # fmt: skip
    elif occ == 0:
        request_off(giv, vcs, lane, lane_vcs, router)
    elif sa_wait > 0:
        request_off(giv, vcs, lane, lane_vcs, router)
        vcs[giv, STATE] = HELD
        wheel_put(now + 1 + sa_wait, giv, timer, timer_n, mask)
    elif ovc[gov, CREDIT] == 0:
        request_off(giv, vcs, lane, lane_vcs, router)
    return code


@block
def flit_pass(
    giv, now, route_wait, depth, arity, n_vcs, vcs, buf, ovc, lane, wait_vcs, out, router, radix, route, pk, timer, timer_n, mask,
):  # fmt: skip
    """The front flit of `giv`, which keeps the switch, passes. Returns the flit."""
    gov = vcs[giv, OVC]
    code = buf[giv * depth + vcs[giv, READ]]
    occ = vcs[giv, OCC] - 1
    vcs[giv, OCC] = occ
    vcs[giv, READ] = 0 if occ == 0 or vcs[giv, READ] + 1 == depth else vcs[giv, READ] + 1
    ovc[gov, CREDIT] -= 1
    if code & HEAD_BIT != 0:
        pk[(code >> SLOT_SHIFT) & SLOT_MASK, K_HOPS] += 1
    if code & TAIL_BIT != 0:
        release(lane[vcs[giv, LANE], L_ROUTER] * radix + vcs[giv, OUT], gov, n_vcs, ovc, out, router, radix)
        vcs[giv, STATE] = IDLE
        if occ > 0:
            head_front(
                giv, buf[giv * depth + vcs[giv, READ]], now + 1, route_wait, arity, vcs, lane, wait_vcs, out, router, radix, route, pk,
                timer, timer_n, mask,
            )  # fmt: skip
    return code


@block
def hold_begin(giv, h, e, o, step_row, vcs, lane, lane_vcs, router, hold, held):
    """Input VC `giv` of lane `e` (of its router) keeps that lane and output lane `o` in this step of every cycle."""
    request_off(giv, vcs, lane, lane_vcs, router)
    vcs[giv, STATE] = PASSING
    hold[h, H_VC] = giv
    hold[h, H_OUT] = o
    held[step_row, HELD_IN] |= 1 << e
    held[step_row, HELD_OUT] |= 1 << o


@block
def packet_queue_put(go, gov, code, ready, n_flits, cap, h, hold, out, out_q):
    """As `queue_put`, but a head takes the places of its whole packet, which its flits fill one by one."""
    if code & HEAD_BIT != 0:
        k = out[go, O_READ] + out[go, O_LEN]
        if k >= cap:
            k -= cap
        hold[h, H_NEXT] = k
        for _ in range(n_flits - 1):
            k = k + 1 if k + 1 < cap else 0
            out_q[go * cap + k, 0] = NOT_YET
        out[go, O_LEN] += n_flits
    k = hold[h, H_NEXT]
    hold[h, H_NEXT] = k + 1 if k + 1 < cap else 0
    out_q[go * cap + k, 0] = ready
    out_q[go * cap + k, 1] = gov
    out_q[go * cap + k, 2] = code


@block
def flit_send(go, gov, code, at, n_vcs, out, flit_to, flit_code, flit_n, sink_code, sink_n, credit_to, credit_n, mask):
    """Flit `code` goes on the link of output `go`; delays count from cycle `at`. A sink gives its credit back at once."""
    if out[go, O_SINK] != 0:
        wheel_put(at + out[go, O_DELAY], code, sink_code, sink_n, mask)
        wheel_put(at + out[go, O_CREDIT], gov, credit_to, credit_n, mask)
    else:
        k = (at + out[go, O_DELAY]) & mask
        j = k * (len(flit_to) // len(flit_n)) + flit_n[k]
        flit_to[j] = out[go, O_TO] + gov - go * n_vcs
        flit_code[j] = code
        flit_n[k] += 1


@block
def queue_put(go, gov, code, ready, cap, out, out_q):
    """Flit `code` joins the queue before the link of output `go`. out_q [n_ports * cap, 3]: cycle it may leave, VC, flit."""
    k = out[go, O_READ] + out[go, O_LEN]
    if k >= cap:
        k -= cap
    out_q[go * cap + k, 0] = ready
    out_q[go * cap + k, 1] = gov
    out_q[go * cap + k, 2] = code
    out[go, O_LEN] += 1


@block
def credit_queue_put(i, v, stamp, cap, inp, credit_q):
    """The credit of VC `v` joins the queue of input port `i`; credits of one internal step (`stamp`) travel in one message."""
    k = inp[i, I_READ] + inp[i, I_LEN]
    if k >= cap:
        k -= cap
    credit_q[i * cap + k] = v * 2 + (1 if inp[i, I_STAMP] == stamp else 0)
    inp[i, I_STAMP] = stamp
    inp[i, I_LEN] += 1


@block
def credit_queue_send(i, now, cap, inp, credit_q, credit_to, credit_n, mask):
    """Input port `i` sends its oldest message of credits."""
    more = inp[i, I_LEN] > 0
    while more:
        v = credit_q[i * cap + inp[i, I_READ]] >> 1
        inp[i, I_READ] = inp[i, I_READ] + 1 if inp[i, I_READ] + 1 < cap else 0
        inp[i, I_LEN] -= 1
        wheel_put(now + inp[i, I_DELAY], inp[i, I_BASE] + inp[i, I_STEP] * v, credit_to, credit_n, mask)
        more = inp[i, I_LEN] > 0 and credit_q[i * cap + inp[i, I_READ]] & 1 != 0
