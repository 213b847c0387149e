"""The state of the packet fabric as NamedTuples of arrays, beside the op level's (`engine/blocks/state.py`). `columns.py` names the columns.

Sizes: n_links links of all GPUs, n_ports inputs of a switch plane, n_vcs virtual channels of an input, n_groups groups of them,
n_slots packet records, n_classes classes of ops. FIFOs are [n, 2] int32 (head, tail), -1 = empty.
"""

from typing import NamedTuple

from dysharp.base.arrays import Array
from dysharp.engine.blocks.state import Loads


class PacketRecords(NamedTuple):
    """Packet records.

    `packet`: [n_slots, 16] int32. `packet_time`: the same memory as [n_slots, 8] int64.
    `behind`: [n_slots] int32, the packet that crossed to the same output next. `free`: [n_slots] int64, stack of free records.
    """

    packet: Array
    packet_time: Array
    behind: Array
    free: Array


class Lanes(NamedTuple):
    """Links: the up direction, the input port of the switch behind it, and the ingress buffer of the hub behind the down direction.

    `link`: [n_links, 18] int64. `plane_links`: [n_planes, n_ports] int64, the link at each input of a plane, -1 = none.
    `occupied`: [n_links, n_vcs] int64 flits. `channels`: [n_links * n_vcs, 2], packets in each input VC.
    `held`: [n_links, n_groups] int64, flits in the ingress buffer. `credit_due`, `credit_what`: [2**k] int64, a ring of
    credits on their way: when, and link << 32 | vc << 24 | flits. `dirty_links`: links that want a grant attempt.
    """

    link: Array
    plane_links: Array
    occupied: Array
    channels: Array
    held: Array
    credit_due: Array
    credit_what: Array
    dirty_links: Array


class Outputs(NamedTuple):
    """Outputs of the switch: the down links, then the reduction unit of each port.

    `output`: [2 * n_links, OUTPUT_COLUMNS] int64. `out_queues`: [2 * n_links * n_groups * (n_ports + 1), 2] by output, group and
    input (input n_ports: the switch itself). `asking`: [2 * n_links * n_groups, words] int64, bit sets of inputs that ask for an output.
    `asked`: [n_links, words] int64, bit sets of outputs that an input asks for. `dirty_outputs`: outputs that want a grant attempt.
    """

    output: Array
    out_queues: Array
    asking: Array
    asked: Array
    dirty_outputs: Array


class EgressState(NamedTuple):
    """What GPUs send: the egress side of hubs.

    `egress`: [n_links * (n_classes + 2), 2], FIFOs of answers by response class, of acknowledgements, of notifications.
    `cursors`: [n_links * n_classes, 2] int32, op and packet that a link cuts next. `cuts`: [n_wires, 12] int64, how a train is cut.
    `groups`: [2 * n_classes + 2] int64, the VC group of an egress queue. `fetches`: [n_nodes, 1 + entries] int64, a count, then the
    times of the latest target lists. `node_wake`: [n_nodes] int64 ps, when the next list is there. `stripes`: [n_nodes] int64, link of the next op.
    `requests`: [n_links, 2], requests whose answers find no room.
    """

    egress: Array
    cursors: Array
    cuts: Array
    groups: Array
    fetches: Array
    node_wake: Array
    stripes: Array
    requests: Array


class Units(NamedTuple):
    """Reduction units. `sessions`: [n_slots + n_links, 6] int64. `ports`: [n_links, 2] int64. `idle`: [n_slots, 4] int64, timeouts.

    Sums of pushes: `sum_of`: [n_ops] int32, the sum of a contribution; `chunk0`: [n_sessions] int64, the first of its `chunks`: [n, 3] int64,
    one for each packet; `places`: [n_links] int64, free places of a port. Empty where no Program has them. `loads`: the loads that merge, an entry
    for each of `chunks` and a list for each port; None where none do. `gate_of`: [n_ops] int32, the first session of the gates of an op, -1 = none;
    `gates`: [n_sessions, 2] int32, FIFOs of packets at closed gates; empty where no Program has them.
    `log`: [n, 4] int64, what the table of one port did (`switch._port_note`); empty where nobody listens.
    """

    sessions: Array
    ports: Array
    idle: Array
    sum_of: Array
    chunk0: Array
    chunks: Array
    places: Array
    gate_of: Array
    gates: Array
    log: Array
    loads: Loads | None


class Hubs(NamedTuple):
    """AL tables (`engine/blocks/tables.py`). Keys are rows.

    `keys`: [n_keys + n_nodes, 6] int64. `hubs`: [n_nodes, HUB_BANK0 + banks] int64. `waiters`: [n_slots * fills, 2] int64.
    `reads`: [n_keys, 2] int64, entries that memory reads. `stalled`: [n_nodes, 2], packets behind a full set of miss registers.
    `next_free`: [n_regions] int64, slots in use. `answer`: [1] int64, the first lookup that an answer wakes.
    """

    keys: Array
    hubs: Array
    waiters: Array
    reads: Array
    stalled: Array
    next_free: Array
    answer: Array


class Agenda(NamedTuple):
    """Time, sizes and counts. `tree` and `x` are the op level's own.

    `rings`: [n_rings, 2] int32, FIFOs of what ends at a known time. `flit_ps`: [sizes] int64, ps of a packet of so many flits on a link.
    `c`: constants C_*. `st`: statistics ST_*.
    """

    rings: Array
    tree: Array
    flit_ps: Array
    c: Array
    x: Array
    st: Array


class Fabric(NamedTuple):
    """Everything that the packet level adds to `BurstState`.

    `accepted`: [1, 2] int64, first and last packet that leave an ingress buffer at this instant, -1 = none.
    `flits_by_kind`: [2, N_KINDS] int64, flits that have arrived at the switch and at hubs, by kind of packet.
    """

    packets: PacketRecords
    lanes: Lanes
    outputs: Outputs
    sources: EgressState
    units: Units
    hubs: Hubs
    agenda: Agenda
    accepted: Array
    flits_by_kind: Array
