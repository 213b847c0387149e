"""Blocks of a virtual-channel router: what an input VC asks for, and what changes when a flit or a credit moves.

Timing after recorded curves of an established router simulator (docs/network.md). `wheel` arrays hold what arrives in
a coming cycle: row `cycle & mask` of a list with a count.
"""

from dysharp.engine.flit import columns as u
from dysharp.engine.kernel import block

NOT_YET = 1 << 62  # cycle of a flit that has not come


@block
def wheel_put(at, entry, wheel, count, mask):
    """`entry` is due in cycle `at`."""
    k = at & mask
    wheel[k * (len(wheel) // len(count)) + count[k]] = entry
    count[k] += 1


@block
def request_on(in_vc, inputs, routers):
    """Input VC `in_vc` asks for the switch from the next allocation on."""
    e, o = inputs.vcs[in_vc, u.LANE], inputs.vcs[in_vc, u.OUT]
    inputs.lane_vcs[e, o] |= 1 << inputs.vcs[in_vc, u.BIT]
    inputs.lane[e, u.LANE_OUTS] |= 1 << o
    routers.router[inputs.lane[e, u.LANE_ROUTER], u.ROUTER_SWITCH] |= 1 << inputs.lane[e, u.LANE_BIT]


@block
def _request_off(in_vc, inputs, routers):
    """`in_vc` no longer asks: its flit left, or the credit that it needs is spent."""
    lane, lane_vcs = inputs.lane, inputs.lane_vcs
    e, o = inputs.vcs[in_vc, u.LANE], inputs.vcs[in_vc, u.OUT]
    lane_vcs[e, o] &= ~(1 << inputs.vcs[in_vc, u.BIT])
    if lane_vcs[e, o] == 0:
        lane[e, u.LANE_OUTS] &= ~(1 << o)
        if lane[e, u.LANE_OUTS] == 0:
            routers.router[lane[e, u.LANE_ROUTER], u.ROUTER_SWITCH] &= ~(1 << lane[e, u.LANE_BIT])


@block
def wait_on(in_vc, shape, inputs, outputs, routers):
    """The head at the front of `in_vc` asks for a VC of its output from the next allocation on."""
    e, o = inputs.vcs[in_vc, u.LANE], inputs.vcs[in_vc, u.OUT]
    r, i = inputs.lane[e, u.LANE_ROUTER], inputs.lane[e, u.LANE_PORT]
    port = r * shape.radix + o
    outputs.wait_vcs[port, i] |= 1 << inputs.vcs[in_vc, u.BIT]
    outputs.ports[port, u.OUT_WAIT] |= 1 << i
    routers.router[r, u.ROUTER_WAIT] |= 1 << o
    inputs.vcs[in_vc, u.STATE] = u.WAIT


@block
def _head_front(in_vc, code, ready, shape, inputs, outputs, routers, packets, wheels):
    """The head `code` comes to the front of `in_vc`: route it and ask for a VC, after the routing delay if there is one.

    A route of -1 - level means "any port up", which the packet's salt decides.
    """
    slot = (code >> u.SLOT_SHIFT) & u.SLOT_MASK
    o = routers.route[inputs.lane[inputs.vcs[in_vc, u.LANE], u.LANE_ROUTER], packets.packet[slot, u.PACKET_DEST]]
    if o < 0:
        digit = packets.packet[slot, u.PACKET_SALT]
        for _ in range(-1 - o):
            digit //= shape.arity
        o = shape.arity + digit % shape.arity
    inputs.vcs[in_vc, u.OUT] = o
    if shape.route_wait == 0:
        wait_on(in_vc, shape, inputs, outputs, routers)
    else:
        inputs.vcs[in_vc, u.STATE] = u.ROUTE
        wheel_put(ready + shape.route_wait, in_vc, wheels.timer, wheels.timer_n, shape.mask)


@block
def claim(in_vc, out_vc, shape, inputs, outputs, routers):
    """Input VC `in_vc` gets output VC `out_vc` for one packet."""
    wait_vcs, ports, router = outputs.wait_vcs, outputs.ports, routers.router
    e, o = inputs.vcs[in_vc, u.LANE], inputs.vcs[in_vc, u.OUT]
    r, i = inputs.lane[e, u.LANE_ROUTER], inputs.lane[e, u.LANE_PORT]
    port = r * shape.radix + o
    wait_vcs[port, i] &= ~(1 << inputs.vcs[in_vc, u.BIT])
    if wait_vcs[port, i] == 0:
        ports[port, u.OUT_WAIT] &= ~(1 << i)
        if ports[port, u.OUT_WAIT] == 0:
            router[r, u.ROUTER_WAIT] &= ~(1 << o)
    ports[port, u.OUT_FREE] &= ~(1 << (out_vc - port * shape.vcs))
    if ports[port, u.OUT_FREE] == 0:
        router[r, u.ROUTER_FREE] &= ~(1 << o)
    outputs.vcs[out_vc, u.OWNER] = in_vc
    inputs.vcs[in_vc, u.OVC] = out_vc
    inputs.vcs[in_vc, u.STATE] = u.ACTIVE


@block
def _release(port, out_vc, shape, outputs, routers):
    """The tail won the switch: another packet may claim output VC `out_vc` from the next allocation on."""
    outputs.vcs[out_vc, u.OWNER] = -1
    outputs.ports[port, u.OUT_FREE] |= 1 << (out_vc - port * shape.vcs)
    routers.router[port // shape.radix, u.ROUTER_FREE] |= 1 << (port % shape.radix)


@block
def credit_take(out_vc, shape, inputs, outputs, routers):
    """A slot downstream of output VC `out_vc` became free; its owner may ask for the switch with `need` of them."""
    vcs = inputs.vcs
    outputs.vcs[out_vc, u.CREDIT] += 1
    in_vc = outputs.vcs[out_vc, u.OWNER]
    if outputs.vcs[out_vc, u.CREDIT] == shape.need and in_vc >= 0 and vcs[in_vc, u.STATE] == u.ACTIVE and vcs[in_vc, u.OCC] > 0:
        request_on(in_vc, inputs, routers)


@block
def flit_take(in_vc, code, now, shape, inputs, outputs, routers, packets, wheels):
    """A flit arrives at input VC `in_vc`."""
    vcs = inputs.vcs
    occ = vcs[in_vc, u.OCC]
    pos = vcs[in_vc, u.READ] + occ
    if pos >= shape.depth:
        pos -= shape.depth
    inputs.buf[in_vc * shape.depth + pos] = code
    vcs[in_vc, u.OCC] = occ + 1
    if occ == 0:
        if vcs[in_vc, u.STATE] == u.IDLE:
            _head_front(in_vc, code, now, shape, inputs, outputs, routers, packets, wheels)
        elif vcs[in_vc, u.STATE] == u.ACTIVE:
            if shape.switch_wait > 0:
                vcs[in_vc, u.STATE] = u.HELD
                wheel_put(now + shape.switch_wait, in_vc, wheels.timer, wheels.timer_n, shape.mask)
            elif outputs.vcs[vcs[in_vc, u.OVC], u.CREDIT] > 0:
                request_on(in_vc, inputs, routers)


@block
def _flit_leave(in_vc, shape, inputs, outputs, packets):
    """The front flit of `in_vc` leaves its buffer and spends a credit. Returns the flit."""
    vcs = inputs.vcs
    pos = vcs[in_vc, u.READ]
    code = inputs.buf[in_vc * shape.depth + pos]
    occ = vcs[in_vc, u.OCC] - 1
    vcs[in_vc, u.OCC] = occ
    vcs[in_vc, u.READ] = 0 if occ == 0 or pos + 1 == shape.depth else pos + 1  # an empty buffer starts anew and so stays in cache
    outputs.vcs[vcs[in_vc, u.OVC], u.CREDIT] -= 1
    if code & u.HEAD_BIT != 0:
        packets.packet[(code >> u.SLOT_SHIFT) & u.SLOT_MASK, u.PACKET_HOPS] += 1
    return code


@block
def _tail_leave(in_vc, now, shape, inputs, outputs, routers, packets, wheels):
    """The tail of the packet at `in_vc` won the switch: its output VC is free, and the next packet comes to the front."""
    vcs = inputs.vcs
    _release(inputs.lane[vcs[in_vc, u.LANE], u.LANE_ROUTER] * shape.radix + vcs[in_vc, u.OUT], vcs[in_vc, u.OVC], shape, outputs, routers)
    vcs[in_vc, u.STATE] = u.IDLE
    if vcs[in_vc, u.OCC] > 0:
        front = inputs.buf[in_vc * shape.depth + vcs[in_vc, u.READ]]
        _head_front(in_vc, front, now + 1, shape, inputs, outputs, routers, packets, wheels)


@block
def flit_cross(in_vc, now, shape, inputs, outputs, routers, packets, wheels):
    """The front flit of `in_vc` wins the switch: takes it out, spends a credit, lets the VC go on. Returns the flit."""
    code = _flit_leave(in_vc, shape, inputs, outputs, packets)
    if code & u.TAIL_BIT != 0:
        _request_off(in_vc, inputs, routers)
        _tail_leave(in_vc, now, shape, inputs, outputs, routers, packets, wheels)
    elif inputs.vcs[in_vc, u.OCC] == 0:
        _request_off(in_vc, inputs, routers)
    elif shape.switch_wait > 0:
        _request_off(in_vc, inputs, routers)
        inputs.vcs[in_vc, u.STATE] = u.HELD
        wheel_put(now + 1 + shape.switch_wait, in_vc, wheels.timer, wheels.timer_n, shape.mask)
    elif outputs.vcs[inputs.vcs[in_vc, u.OVC], u.CREDIT] == 0:
        _request_off(in_vc, inputs, routers)
    return code


@block
def flit_pass(in_vc, now, shape, inputs, outputs, routers, packets, wheels):
    """The front flit of `in_vc`, which keeps the switch, passes. Returns the flit."""
    code = _flit_leave(in_vc, shape, inputs, outputs, packets)
    if code & u.TAIL_BIT != 0:
        _tail_leave(in_vc, now, shape, inputs, outputs, routers, packets, wheels)
    return code


@block
def hold_begin(in_vc, hold_row, e, o, step_row, inputs, routers):
    """Input VC `in_vc` of lane `e` (of its router) keeps that lane and output lane `o` in this step of every cycle."""
    _request_off(in_vc, inputs, routers)
    inputs.vcs[in_vc, u.STATE] = u.PASSING
    routers.hold[hold_row, u.HOLD_VC] = in_vc
    routers.hold[hold_row, u.HOLD_OUT] = o
    routers.held[step_row, u.HELD_IN] |= 1 << e
    routers.held[step_row, u.HELD_OUT] |= 1 << o


@block
def flit_send(port, out_vc, code, at, shape, outputs, wheels):
    """Flit `code` goes on the link of output `port`; delays count from cycle `at`. A sink gives its credit back at once."""
    ports = outputs.ports
    if ports[port, u.OUT_SINK] != 0:
        wheel_put(at + ports[port, u.OUT_DELAY], code, wheels.sink_code, wheels.sink_n, shape.mask)
        wheel_put(at + ports[port, u.OUT_CREDIT], out_vc, wheels.credit_to, wheels.credit_n, shape.mask)
    else:
        k = (at + ports[port, u.OUT_DELAY]) & shape.mask
        j = k * (len(wheels.flit_to) // len(wheels.flit_n)) + wheels.flit_n[k]
        wheels.flit_to[j] = ports[port, u.OUT_TO] + out_vc - port * shape.vcs
        wheels.flit_code[j] = code
        wheels.flit_n[k] += 1


@block
def queue_put(port, out_vc, code, ready, shape, outputs):
    """Flit `code` joins the queue before the link of output `port`."""
    k = outputs.ports[port, u.OUT_READ] + outputs.ports[port, u.OUT_LEN]
    if k >= shape.queue:
        k -= shape.queue
    _entry_put(port * shape.queue + k, out_vc, code, ready, outputs)
    outputs.ports[port, u.OUT_LEN] += 1


@block
def packet_queue_put(port, out_vc, code, ready, hold_row, shape, outputs, routers):
    """As `queue_put`, but a head takes the places of its whole packet, which its flits fill one by one."""
    hold, ports = routers.hold, outputs.ports
    if code & u.HEAD_BIT != 0:
        k = ports[port, u.OUT_READ] + ports[port, u.OUT_LEN]
        if k >= shape.queue:
            k -= shape.queue
        hold[hold_row, u.HOLD_NEXT] = k
        for _ in range(shape.flits - 1):
            k = k + 1 if k + 1 < shape.queue else 0
            outputs.queue[port * shape.queue + k, 0] = NOT_YET
        ports[port, u.OUT_LEN] += shape.flits
    k = hold[hold_row, u.HOLD_NEXT]
    hold[hold_row, u.HOLD_NEXT] = k + 1 if k + 1 < shape.queue else 0
    _entry_put(port * shape.queue + k, out_vc, code, ready, outputs)


@block
def _entry_put(k, out_vc, code, ready, outputs):
    """Entry `k` of the queues before links."""
    outputs.queue[k, 0] = ready
    outputs.queue[k, 1] = out_vc
    outputs.queue[k, 2] = code


@block
def queue_send(port, now, shape, outputs, wheels):
    """The oldest flit of the queue of output `port` goes on its link, if it may leave by now."""
    ports, queue = outputs.ports, outputs.queue
    j = port * shape.queue + ports[port, u.OUT_READ]
    if ports[port, u.OUT_LEN] > 0 and queue[j, 0] <= now:
        ports[port, u.OUT_READ] = ports[port, u.OUT_READ] + 1 if ports[port, u.OUT_READ] + 1 < shape.queue else 0
        ports[port, u.OUT_LEN] -= 1
        flit_send(port, queue[j, 1], queue[j, 2], now - shape.traversal, shape, outputs, wheels)


@block
def credit_send(i, v, now, step, shape, inputs, wheels):
    """Input port `i` gives back a credit of VC `v`: at once, or with several internal steps a cycle as one message a step."""
    ports = inputs.ports
    if shape.steps == 1:
        wheel_put(now + ports[i, u.IN_DELAY], ports[i, u.IN_BASE] + ports[i, u.IN_STEP] * v, wheels.credit_to, wheels.credit_n, shape.mask)
        return
    stamp = now * shape.steps + step
    k = ports[i, u.IN_READ] + ports[i, u.IN_LEN]
    if k >= shape.queue:
        k -= shape.queue
    inputs.credit_queue[i * shape.queue + k] = v * 2 + (1 if ports[i, u.IN_STAMP] == stamp else 0)
    ports[i, u.IN_STAMP] = stamp
    ports[i, u.IN_LEN] += 1


@block
def credit_queue_send(i, now, shape, inputs, wheels):
    """Input port `i` sends its oldest message of credits."""
    ports, credit_queue = inputs.ports, inputs.credit_queue
    more = ports[i, u.IN_LEN] > 0
    while more:
        v = credit_queue[i * shape.queue + ports[i, u.IN_READ]] >> 1
        ports[i, u.IN_READ] = ports[i, u.IN_READ] + 1 if ports[i, u.IN_READ] + 1 < shape.queue else 0
        ports[i, u.IN_LEN] -= 1
        wheel_put(now + ports[i, u.IN_DELAY], ports[i, u.IN_BASE] + ports[i, u.IN_STEP] * v, wheels.credit_to, wheels.credit_n, shape.mask)
        more = ports[i, u.IN_LEN] > 0 and credit_queue[i * shape.queue + ports[i, u.IN_READ]] & 1 != 0
