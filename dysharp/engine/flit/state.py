"""The array block of one run, in the layout of `uarch/flit/columns.py`, and the check that a drained network gave everything back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dysharp.engine.flit.config import MAX_SLOTS, NetworkConfig, Traffic
from dysharp.engine.flit.topology import NOBODY, Wiring, wire
from dysharp.errors import ConfigError, SimulationError
from dysharp.uarch.flit import columns as u
from dysharp.uarch.flit.state import State

Ints = npt.NDArray[np.int64]


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, np.int64)


def build(config: NetworkConfig, traffic: Traffic) -> State:
    """The state of an empty network at cycle 0."""
    c = config.router
    w = wire(config)
    n_routers, radix = w.to.shape
    n, v, lanes, olanes = config.n_terminals, c.num_vcs, c.input_speedup, c.output_speedup
    n_ports = n_routers * radix
    n_ivc = n_ports * v
    link = max(config.terminal_delay, config.link_delay)
    pipeline = 2 + c.routing_delay + c.vc_alloc_delay + c.sw_alloc_delay + c.traversal_delay + c.credit_delay
    wheel = 1 << (2 * (link + 1) + pipeline).bit_length()
    timers = c.routing_delay > 0 or c.vc_alloc_delay > 1 or c.sw_alloc_delay > 1
    queued = c.internal_speedup > 1 or olanes > 1
    queue = n_ports * v * c.vc_buf_size
    if c.hold_switch and c.vc_buf_size < traffic.packet_flits:
        raise ConfigError(f"router.vc_buf_size is {c.vc_buf_size}, expected at least the {traffic.packet_flits} flits of a packet with hold_switch")
    pool = queue * (2 if queued else 1) + n_ports * (2 * link + pipeline) + n
    if pool > MAX_SLOTS:
        raise ConfigError(f"network holds up to {pool} packets, expected at most {MAX_SLOTS}: use smaller buffers or fewer routers")
    grants = 2 * radix * max(lanes, olanes)
    if c.hold_switch:  # packets on their way into a queue have all their places there
        queue += n_ports * v * traffic.packet_flits
    holds = c.internal_speedup if c.hold_switch else 0
    p = _zeros(u.P_COUNT)
    p[u.P_HOLD], p[u.P_NEED], p[u.P_QUEUE] = c.hold_switch, traffic.packet_flits if c.hold_switch else 1, queue // n_ports
    p[u.P_ROUTERS], p[u.P_RADIX], p[u.P_VCS], p[u.P_BUF] = n_routers, radix, v, c.vc_buf_size
    p[u.P_LANES], p[u.P_OLANES], p[u.P_STEPS], p[u.P_SPEC] = lanes, olanes, c.internal_speedup, c.speculative
    p[u.P_VA_ISLIP], p[u.P_SA_ISLIP] = c.vc_allocator == "islip", c.sw_allocator == "islip"
    p[u.P_ROUTE], p[u.P_VA], p[u.P_SA], p[u.P_ST] = c.routing_delay, c.vc_alloc_delay, c.sw_alloc_delay, c.traversal_delay
    p[u.P_WHEEL], p[u.P_ARITY], p[u.P_FLITS] = wheel, config.k, traffic.packet_flits
    p[u.P_SOURCE_DELAY] = config.terminal_delay + 1
    x = _zeros(u.X_COUNT)
    x[u.X_ALL], x[u.X_FROM], x[u.X_TO] = 1, 1 << 60, 1 << 60
    a = State(
        vcs=_zeros(n_ivc, 8), buf=_zeros(n_ivc * c.vc_buf_size), lane=_zeros(n_ports * lanes, 10),
        lane_vcs=_zeros(n_ports * lanes, radix), out=_zeros(n_ports, 8), ovc=_zeros(n_ivc, 4),
        out_ptr=_zeros(n_ports * olanes, 2), wait_vcs=_zeros(n_ports, radix), inp=_zeros(n_ports, 6), router=_zeros(n_routers, 4),
        src=_zeros(n, 9), src_credit=np.full(n * v, c.vc_buf_size, np.int64), listed=_zeros(n), pk=_zeros(pool, 8), pool=_zeros(pool),
        route=np.ascontiguousarray(w.route),
        flit_to=_zeros(wheel * n_ports), flit_code=_zeros(wheel * n_ports), flit_n=_zeros(wheel),
        sink_code=_zeros(wheel * n), sink_n=_zeros(wheel),
        credit_to=_zeros(wheel * n_ports * (lanes + 1)), credit_n=_zeros(wheel),
        timer=_zeros(wheel * (n_ivc if timers else 1)), timer_n=_zeros(wheel),
        out_q=_zeros(queue if queued else 1, 3), credit_q=_zeros(queue if c.internal_speedup > 1 else 1),
        ask=_zeros(radix * olanes), want=_zeros(radix * lanes), best=_zeros(v),
        va_giv=_zeros(radix * v), va_gov=_zeros(radix * v), gr_lane=_zeros(grants),
        gr_out=_zeros(grants), gr_vc=_zeros(grants), hold=_zeros(n_ports * lanes * holds, 3), held=_zeros(n_routers * holds, 2),
        full=_zeros(radix * lanes), accepted=_zeros(n), p=p, x=x, s=_zeros(u.S_COUNT),
    )  # fmt: skip
    _fill(a, config, w)
    clear_statistics(a)
    return a


def _fill(a: State, config: NetworkConfig, w: Wiring) -> None:
    """Constant columns, and the values that are not zero in an empty network."""
    c = config.router
    n_routers, radix = w.to.shape
    v, lanes, olanes = c.num_vcs, c.input_speedup, c.output_speedup
    ivc = np.arange(n_routers * radix * v)
    a.vcs[:, u.BIT] = ivc % v
    a.vcs[:, u.LANE] = ivc // v * lanes + ivc % v % lanes
    e = np.arange(n_routers * radix * lanes)
    a.lane[:, u.L_IN] = e // lanes
    a.lane[:, u.L_ROUTER] = e // lanes // radix
    a.lane[:, u.L_PORT] = e // lanes % radix
    a.lane[:, u.L_BIT] = e % (radix * lanes)
    a.lane[:, u.L_OLANE] = a.lane[:, u.L_PORT] % olanes
    a.lane[:, u.L_VCS] = [_bits(range(k % lanes, v, lanes)) for k in e]
    a.lane[:, u.L_RR] = 0
    a.router[:, u.R_RADIX] = w.ports
    a.router[:, u.R_FREE] = [_bits(range(ports)) for ports in w.ports]
    a.out[:, u.O_FREE] = _bits(range(v))
    a.ovc[:, u.CREDIT] = c.vc_buf_size
    a.ovc[:, u.OWNER] = -1
    a.src[:, u.Q_HEAD], a.src[:, u.Q_OK], a.src[:, u.Q_VC] = -1, _bits(range(v)), v - 1
    a.inp[:, u.I_STAMP] = -1
    for go, to in enumerate(w.to.ravel()):
        sink = NOBODY < to < 0
        d = config.terminal_delay if sink else config.link_delay
        a.out[go, u.O_TO] = to if to < 0 else to * v
        a.out[go, u.O_SINK] = sink
        a.out[go, u.O_DELAY] = c.traversal_delay + d + 1
        a.out[go, u.O_CREDIT] = c.traversal_delay + 2 * (d + 1) + c.credit_delay
    for gi, frm in enumerate(w.frm.ravel()):
        source = NOBODY < frm < 0
        a.inp[gi, u.I_BASE] = -1 - (-1 - frm) * v if source else frm * v
        a.inp[gi, u.I_STEP] = -1 if source else 1
        a.inp[gi, u.I_DELAY] = (config.terminal_delay if source else config.link_delay + c.credit_delay) + 1
        if source:
            a.src[-1 - frm, u.Q_TO] = gi * v


def _bits(members: range) -> int:
    """The set as one signed 64-bit word."""
    word = sum(1 << m for m in members)
    return word - (1 << 64) if word >> 63 else word


def clear_statistics(a: State) -> None:
    """Forget what was measured."""
    a.s[:] = 0
    a.s[[u.S_PACKET_MIN, u.S_NET_MIN, u.S_FLIT_MIN]] = 1 << 60
    a.accepted[:] = 0
    a.src[:, u.Q_SENT] = 0


def settled(a: State) -> bool:
    """Nothing is on a link, in a queue or asking for anything."""
    pending = sum(int(count.sum()) for count in (a.flit_n, a.sink_n, a.credit_n, a.timer_n, a.inp[:, u.I_LEN], a.out[:, u.O_LEN]))
    return pending == 0 and not a.x[u.X_IN_NET] and not a.x[u.X_LISTED]


def check_drained(a: State, config: NetworkConfig) -> None:
    """Raises SimulationError, naming the port, unless every flit has left and every credit is back."""
    radix, v, size = int(a.p[u.P_RADIX]), config.router.num_vcs, config.router.vc_buf_size

    def fail(vc: int, side: str, what: str) -> SimulationError:
        return SimulationError(f"drained network: router[{vc // v // radix}].port[{vc // v % radix}].{side} VC {vc % v} {what}")

    for vc in np.flatnonzero((a.vcs[:, u.OCC] != 0) | (a.vcs[:, u.STATE] != u.IDLE)):
        raise fail(int(vc), "in", f"holds {a.vcs[vc, u.OCC]} flits in state {a.vcs[vc, u.STATE]}, expected 0 in state {u.IDLE}")
    for vc in np.flatnonzero(a.ovc[:, u.CREDIT] != size):
        raise fail(int(vc), "out", f"has {a.ovc[vc, u.CREDIT]} credits, expected {size}")
    for vc in np.flatnonzero(a.ovc[:, u.OWNER] != -1):
        raise fail(int(vc), "out", f"is still claimed by input VC {a.ovc[vc, u.OWNER]}")
    for q in np.flatnonzero(a.src_credit != size):
        raise SimulationError(f"drained network: source[{q // v}] VC {q % v} has {a.src_credit[q]} credits, expected {size}")
    if not settled(a) or a.lane_vcs.any() or a.wait_vcs.any() or (a.out[:, u.O_FREE] != _bits(range(v))).any():
        raise SimulationError(f"drained network: {int(a.x[u.X_IN_NET])} flits, a request or an event are left over, expected none")
