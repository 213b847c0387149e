"""The array block of one run, in the layout of `engine/flit/columns.py`, and the check that a drained network gave everything back."""

import numpy as np

from dysharp.base.arrays import I64
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.engine.flit import columns as u
from dysharp.engine.flit.config import MAX_SLOTS, NetworkConfig, Traffic
from dysharp.engine.flit.records import FlitSizes, FlitSources, FlitState, Grants, Inputs, OutputPorts, Packets, Routers, Wheels
from dysharp.engine.flit.topology import NOBODY, Wiring, wire


def _zeros(*shape: int) -> I64:
    return np.zeros(shape, np.int64)


def build(config: NetworkConfig, traffic: Traffic) -> FlitState:
    """The state of an empty network at cycle 0."""
    c = config.router
    w = wire(config)
    n_routers, radix = w.to.shape
    n, v, lanes, out_lanes = config.n_terminals, c.num_vcs, c.input_speedup, c.output_speedup
    n_ports = n_routers * radix
    n_ivc = n_ports * v
    link = max(config.terminal_delay, config.link_delay)
    pipeline = 2 + c.routing_delay + c.vc_alloc_delay + c.sw_alloc_delay + c.traversal_delay + c.credit_delay
    wheel = 1 << (2 * (link + 1) + pipeline).bit_length()
    timers = c.routing_delay > 0 or c.vc_alloc_delay > 1 or c.sw_alloc_delay > 1
    queued = c.internal_speedup > 1 or out_lanes > 1
    queue = n_ports * v * c.vc_buf_size
    if c.hold_switch and c.vc_buf_size < traffic.packet_flits:
        raise ConfigError(f"router.vc_buf_size is {c.vc_buf_size}, expected at least the {traffic.packet_flits} flits of a packet with hold_switch")
    pool = queue * (2 if queued else 1) + n_ports * (2 * link + pipeline) + n
    if pool > MAX_SLOTS:
        raise ConfigError(f"network holds up to {pool} packets, expected at most {MAX_SLOTS}: use smaller buffers or fewer routers")
    grants = 2 * radix * max(lanes, out_lanes)
    if c.hold_switch:  # packets on their way into a queue have all their places there
        queue += n_ports * v * traffic.packet_flits
    holds = c.internal_speedup if c.hold_switch else 0
    shape = FlitSizes(
        routers=n_routers, radix=radix, vcs=v, depth=c.vc_buf_size, lanes=lanes, out_lanes=out_lanes, steps=c.internal_speedup, arity=config.k,
        flits=traffic.packet_flits, need=traffic.packet_flits if c.hold_switch else 1, queue=queue // n_ports, mask=wheel - 1,
        route_wait=c.routing_delay, claim_wait=c.vc_alloc_delay - 1 + c.sw_alloc_delay - 1, switch_wait=c.sw_alloc_delay - 1,
        traversal=c.traversal_delay, source_delay=config.terminal_delay + 1, speculative=int(c.speculative),
        vc_islip=int(c.vc_allocator == "islip"), switch_islip=int(c.sw_allocator == "islip"), keep=int(c.hold_switch),
    )  # fmt: skip
    x = _zeros(u.RUN_COUNT)
    x[u.RUN_ALL], x[u.RUN_FROM], x[u.RUN_TO] = 1, 1 << 60, 1 << 60
    a = FlitState(
        shape,
        Inputs(
            vcs=_zeros(n_ivc, 8), buf=_zeros(n_ivc * c.vc_buf_size), lane=_zeros(n_ports * lanes, 10), lane_vcs=_zeros(n_ports * lanes, radix),
            ports=_zeros(n_ports, 6), credit_queue=_zeros(queue if c.internal_speedup > 1 else 1),
        ),
        OutputPorts(
            ports=_zeros(n_ports, 8), vcs=_zeros(n_ivc, 4), turn=_zeros(n_ports * out_lanes, 2), wait_vcs=_zeros(n_ports, radix),
            queue=_zeros(queue if queued else 1, 3),
        ),
        Routers(_zeros(n_routers, 4), np.ascontiguousarray(w.route), hold=_zeros(n_ports * lanes * holds, 3), held=_zeros(n_routers * holds, 2)),
        FlitSources(_zeros(n, 9), credit=np.full(n * v, c.vc_buf_size, np.int64), listed=_zeros(n)),
        Packets(_zeros(pool, 8), _zeros(pool)),
        Wheels(
            flit_to=_zeros(wheel * n_ports), flit_code=_zeros(wheel * n_ports), flit_n=_zeros(wheel),
            sink_code=_zeros(wheel * n), sink_n=_zeros(wheel),
            credit_to=_zeros(wheel * n_ports * (lanes + 1)), credit_n=_zeros(wheel),
            timer=_zeros(wheel * (n_ivc if timers else 1)), timer_n=_zeros(wheel),
        ),
        Grants(
            claim_in=_zeros(radix * v), claim_out=_zeros(radix * v), lane=_zeros(grants), out=_zeros(grants), vc=_zeros(grants),
            ask=_zeros(radix * out_lanes), want=_zeros(radix * lanes), best=_zeros(v), full=_zeros(radix * lanes),
        ),
        accepted=_zeros(n), run=x, stats=_zeros(u.STAT_COUNT),
    )  # fmt: skip
    _fill(a, config, w)
    clear_statistics(a)
    return a


def _fill(a: FlitState, config: NetworkConfig, w: Wiring) -> None:
    """Constant columns, and the values that are not zero in an empty network."""
    c = config.router
    n_routers, radix = w.to.shape
    v, lanes, out_lanes = c.num_vcs, c.input_speedup, c.output_speedup
    ivc = np.arange(n_routers * radix * v)
    a.inputs.vcs[:, u.BIT] = ivc % v
    a.inputs.vcs[:, u.LANE] = ivc // v * lanes + ivc % v % lanes
    e = np.arange(n_routers * radix * lanes)
    a.inputs.lane[:, u.LANE_IN] = e // lanes
    a.inputs.lane[:, u.LANE_ROUTER] = e // lanes // radix
    a.inputs.lane[:, u.LANE_PORT] = e // lanes % radix
    a.inputs.lane[:, u.LANE_BIT] = e % (radix * lanes)
    a.inputs.lane[:, u.LANE_OLANE] = a.inputs.lane[:, u.LANE_PORT] % out_lanes
    a.inputs.lane[:, u.LANE_VCS] = [_bits(range(k % lanes, v, lanes)) for k in e]
    a.inputs.lane[:, u.LANE_RR] = 0
    a.routers.router[:, u.ROUTER_RADIX] = w.ports
    a.routers.router[:, u.ROUTER_FREE] = [_bits(range(ports)) for ports in w.ports]
    a.outputs.ports[:, u.OUT_FREE] = _bits(range(v))
    a.outputs.vcs[:, u.CREDIT] = c.vc_buf_size
    a.outputs.vcs[:, u.OWNER] = -1
    a.sources.source[:, u.SOURCE_HEAD], a.sources.source[:, u.SOURCE_OK], a.sources.source[:, u.SOURCE_VC] = -1, _bits(range(v)), v - 1
    a.inputs.ports[:, u.IN_STAMP] = -1
    for go, to in enumerate(w.to.ravel()):
        sink = NOBODY < to < 0
        d = config.terminal_delay if sink else config.link_delay
        a.outputs.ports[go, u.OUT_TO] = to if to < 0 else to * v
        a.outputs.ports[go, u.OUT_SINK] = sink
        a.outputs.ports[go, u.OUT_DELAY] = c.traversal_delay + d + 1
        a.outputs.ports[go, u.OUT_CREDIT] = c.traversal_delay + 2 * (d + 1) + c.credit_delay
    for gi, frm in enumerate(w.frm.ravel()):
        source = NOBODY < frm < 0
        a.inputs.ports[gi, u.IN_BASE] = -1 - (-1 - frm) * v if source else frm * v
        a.inputs.ports[gi, u.IN_STEP] = -1 if source else 1
        a.inputs.ports[gi, u.IN_DELAY] = (config.terminal_delay if source else config.link_delay + c.credit_delay) + 1
        if source:
            a.sources.source[-1 - frm, u.SOURCE_TO] = gi * v


def _bits(members: range) -> int:
    """The set as one signed 64-bit word."""
    word = sum(1 << m for m in members)
    return word - (1 << 64) if word >> 63 else word


def clear_statistics(a: FlitState) -> None:
    """Forget what was measured."""
    a.stats[:] = 0
    a.stats[[u.STAT_PACKET_MIN, u.STAT_NET_MIN, u.STAT_FLIT_MIN]] = 1 << 60
    a.accepted[:] = 0
    a.sources.source[:, u.SOURCE_SENT] = 0


def settled(a: FlitState) -> bool:
    """Nothing is on a link, in a queue or asking for anything."""
    w = a.wheels
    counts = (w.flit_n, w.sink_n, w.credit_n, w.timer_n, a.inputs.ports[:, u.IN_LEN], a.outputs.ports[:, u.OUT_LEN])
    pending = sum(int(count.sum()) for count in counts)
    return pending == 0 and not a.run[u.RUN_IN_NET] and not a.run[u.RUN_LISTED]


def check_drained(a: FlitState, config: NetworkConfig) -> None:
    """Raises SimulationError, naming the port, unless every flit has left and every credit is back."""
    radix, v, size = int(a.shape.radix), config.router.num_vcs, config.router.vc_buf_size

    def fail(vc: int, side: str, what: str) -> SimulationError:
        return SimulationError(f"drained network: router[{vc // v // radix}].port[{vc // v % radix}].{side} VC {vc % v} {what}")

    for vc in np.flatnonzero((a.inputs.vcs[:, u.OCC] != 0) | (a.inputs.vcs[:, u.STATE] != u.IDLE)):
        raise fail(int(vc), "in", f"holds {a.inputs.vcs[vc, u.OCC]} flits in state {a.inputs.vcs[vc, u.STATE]}, expected 0 in state {u.IDLE}")
    for vc in np.flatnonzero(a.outputs.vcs[:, u.CREDIT] != size):
        raise fail(int(vc), "out", f"has {a.outputs.vcs[vc, u.CREDIT]} credits, expected {size}")
    for vc in np.flatnonzero(a.outputs.vcs[:, u.OWNER] != -1):
        raise fail(int(vc), "out", f"is still claimed by input VC {a.outputs.vcs[vc, u.OWNER]}")
    for q in np.flatnonzero(a.sources.credit != size):
        raise SimulationError(f"drained network: source[{q // v}] VC {q % v} has {a.sources.credit[q]} credits, expected {size}")
    if not settled(a) or a.inputs.lane_vcs.any() or a.outputs.wait_vcs.any() or (a.outputs.ports[:, u.OUT_FREE] != _bits(range(v))).any():
        raise SimulationError(f"drained network: {int(a.run[u.RUN_IN_NET])} flits, a request or an event are left over, expected none")
