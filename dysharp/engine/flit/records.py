"""The state of a flit-exact network as NamedTuples of arrays. `columns.py` names the columns.

Sizes: n_routers routers of `radix` ports, n_ports = n_routers * radix, n_vcs virtual channels a port, n_lanes = n_ports * input_speedup
lanes into the crossbars, n_out = n_ports * output_speedup lanes out of them, n_terminals sources and sinks, n_slots packet records,
n_wheel cycles a wheel reaches ahead. Every array is int64. Scratch arrays mean something within one step of one router only.
"""

from typing import NamedTuple

from dysharp.base.arrays import I64, Bools


class FlitSizes(NamedTuple):
    """Numbers that do not change in a run: sizes, pipeline delays in cycles, and switches (0 or 1)."""

    routers: int
    radix: int
    vcs: int
    depth: int  # flits that an input VC holds
    lanes: int  # of an input port
    out_lanes: int  # of an output port
    steps: int  # internal steps of a router in a cycle
    arity: int  # ports of a router towards the terminals
    flits: int  # of a packet
    need: int  # credits that a packet must find to start
    queue: int  # entries of the queue before a link: as many flits as there are credits
    mask: int  # n_wheel - 1
    route_wait: int
    claim_wait: int  # from the claim of a VC to the first request for the switch
    switch_wait: int
    traversal: int
    source_delay: int
    speculative: int
    vc_islip: int
    switch_islip: int
    keep: int  # packets keep the switch


class Inputs(NamedTuple):
    """Input ports.

    `vcs`: [n_ports * n_vcs, 8]. `buf`: [n_ports * n_vcs * depth], the rings of flits. `lane`: [n_lanes, 10].
    `lane_vcs`: [n_lanes, radix], sets of VCs of a lane that ask for an output. `ports`: [n_ports, 6].
    `credit_queue`: [n_ports * queue], credits before the link back: 2 * VC, + 1 where it travels with the one before it.
    """

    vcs: I64
    buf: I64
    lane: I64
    lane_vcs: I64
    ports: I64
    credit_queue: I64


class OutputPorts(NamedTuple):
    """Output ports.

    `ports`: [n_ports, 8]. `vcs`: [n_ports * n_vcs, 4]. `turn`: [n_out, 2], the lane that is first in the next allocation, sure and
    speculative. `wait_vcs`: [n_ports, radix], sets of VCs of an input that wait for a VC of an output. `queue`: [n_ports * queue, 3],
    flits before the link: cycle it may leave, VC, flit.
    """

    ports: I64
    vcs: I64
    turn: I64
    wait_vcs: I64
    queue: I64


class Routers(NamedTuple):
    """Routers.

    `router`: [n_routers, 4]. `route`: [n_routers, n_terminals], the output port, or -1 - level for "any port up".
    `hold`: [n_lanes * steps, 3] and `held`: [n_routers * steps, 2], where packets keep the switch.
    """

    router: I64
    route: I64
    hold: I64
    held: I64


class FlitSources(NamedTuple):
    """Sources. `source`: [n_terminals, 9]. `credit`: [n_terminals * n_vcs]. `listed`: [n_terminals], sources with something to send."""

    source: I64
    credit: I64
    listed: I64


class Packets(NamedTuple):
    """Packets in flight. `packet`: [n_slots, 8]. `pool`: [n_slots], stack of free records."""

    packet: I64
    pool: I64


class Wheels(NamedTuple):
    """What arrives in a coming cycle: row `cycle & mask` of a list [n_wheel * room] with a count [n_wheel].

    `flit_to`, `flit_code`: input VC and flit. `sink_code`: flits at terminals. `credit_to`: output VC, or -1 - VC of a source.
    `timer`: input VCs whose pipeline delay ends.
    """

    flit_to: I64
    flit_code: I64
    flit_n: I64
    sink_code: I64
    sink_n: I64
    credit_to: I64
    credit_n: I64
    timer: I64
    timer_n: I64


class Grants(NamedTuple):
    """Scratch of the allocators of one router.

    `claim_in`, `claim_out`: input VC and output VC that it gets. `lane`, `out`, `vc`: lane, output lane and VC of each switch grant.
    `ask`, `want`: sets of lanes by output, and of outputs by lane. `best`: [n_vcs], distance of the best request so far.
    `full`: [radix * input_speedup], the requests of a lane without the outputs that are kept.
    """

    claim_in: I64
    claim_out: I64
    lane: I64
    out: I64
    vc: I64
    ask: I64
    want: I64
    best: I64
    full: I64


class Created(NamedTuple):
    """Packets to be created, by time; the last one never comes. `next`: the packet behind it at its source, -1 = none, -2 = taken."""

    time: I64
    source: I64
    dest: I64
    salt: I64
    next: I64


class ReplayDraws(NamedTuple):
    """What sources of a replay draw, in the order they ask.

    `creates`: bool, does this draw make a packet. `ints`: draws of destination, of a number nobody uses, and of the way up.
    `cursor`: [2], positions in the two. `looked`: [n_terminals], cycle that a source has drawn up to. `record`: [n_terminals], is its
    packet measured. `dest_of`: [n_terminals], its fixed target or -1. `cdf`: [n_terminals], cumulative weights of the destinations.
    """

    creates: Bools
    ints: I64
    cursor: I64
    looked: I64
    record: I64
    dest_of: I64
    cdf: I64


class FlitState(NamedTuple):
    """Everything a run changes. `accepted`: [n_terminals] flits. `run`: scalars. `stats`: sums of what was measured."""

    shape: FlitSizes
    inputs: Inputs
    outputs: OutputPorts
    routers: Routers
    sources: FlitSources
    packets: Packets
    wheels: Wheels
    grants: Grants
    accepted: I64
    run: I64
    stats: I64
