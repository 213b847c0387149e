"""The Program: flat tables that every interpreter (engine, oracle, functional machine, counters) reads.

One Program is one (model, cluster, routing, direction, system). Tables are NumPy arrays. The builder writes them once.
Their meaning in time: `docs/design/0001`. Reasons for the columns: `docs/design/0002`.

"Reserved" marks parts that only the oracle and the verifier know. `docs/design/0002`, Reserved, names the systems that need them,
and Other points says which interpreter takes the rest.
"""

from dataclasses import field
from enum import IntEnum

import numpy as np

from dysharp.base import I32, I64, Bools, Numbers, Tally, Texts, frozen
from dysharp.isa.framing import Framing
from dysharp.program.schema import LAYER, NO_DATA, Nature, Operator, Schema


class Kind(IntEnum):
    """What an op does. No kind belongs to one system.

    | kind | meaning |
    |---|---|
    | COMPUTE | a GEMM: a gang of `tasks` thread-block tasks on SM slots |
    | DELAY | a named cost: `tasks` tasks on any pool; a host, stream or copy engine is a pool of one slot |
    | JOIN | counts events and fires at zero delay |
    | PUT | data to one node, acknowledged |
    | SIGNAL | a small PUT; its value adds to the announced thresholds of its JOINs |
    | MULTICAST | data to several nodes, replicated in the switch |
    | GET | a request out, data back |
    | PULL_REDUCE | a request to several nodes, their responses summed in the switch |
    | PUSH_REDUCE | one contribution to a sum in the switch, which goes to the home of its session |
    | MERGED_LOAD | a GET that merges with equal loads in the switch |
    """

    COMPUTE = 0
    DELAY = 1
    JOIN = 2
    PUT = 3
    SIGNAL = 4
    MULTICAST = 5
    GET = 6
    PULL_REDUCE = 7
    PUSH_REDUCE = 8
    MERGED_LOAD = 9


class Discipline(IntEnum):
    """The rule by which an issuer takes its next ready op (docs/design/0001, Ops)."""

    PROGRAM_ORDER = 0
    READY_FIFO = 1
    SMALLEST_KEY = 2
    ROUND_ROBIN = 3


class Alloc(IntEnum):
    """How a region binds rows to slots. FIRST_TOUCH: in order of arrival. PREFIX: row i has slot i from the start."""

    FIRST_TOUCH = 0
    PREFIX = 1


class Tail(IntEnum):
    """The point for which an edge waits. `Edges.tail` is the id of an op, member, tile or row, by this kind.

    docs/design/0002, Other points, says which interpreter takes which tail.
    """

    OP_DONE = 0
    OP_ISSUED = 1
    MEMBER_DELIVERED = 2
    TILE_READY = 3
    ROW_COMPLETE = 4


class Head(IntEnum):
    """The point that an edge holds back. `Edges.head` is the id of an op, member or tile, by this kind.

    JOIN_CANCEL cancels a JOIN and the ops that depend on it, such as surplus tiles of a worst-case grid.
    """

    OP_ISSUE = 0
    MEMBER_RESPOND = 1
    TILE_NOTIFY = 2
    JOIN_CANCEL = 3


class Point(IntEnum):
    """The point at which a semaphore hold begins or ends. Its id is an op or a row.

    A hold from ROW_FIRST_TOUCH or JOIN_FIRST_EVENT on never waits: such a table overflows into memory.
    """

    OP_ISSUED = 0
    OP_DONE = 1
    ROW_FIRST_TOUCH = 2
    JOIN_FIRST_EVENT = 3


class Chaining(IntEnum):
    """Whether a chain keeps its slot while its next op waits."""

    HOLD = 0
    YIELD = 1


@frozen
class Hardware:
    """Constants of the hardware at burst level, from a Cluster and choices.toml.

    Times in picoseconds, sizes in bytes, rates in bytes per microsecond.
    """

    rate: int  # of one GPU and direction
    lat: int  # one hop: GPU to switch, or switch to GPU
    ack: int  # from the last delivery until the source knows of it
    notify: int  # from tracker to tracker
    responder: int  # memory read of a pull's responder
    local: int  # from hub to own memory
    n_vcs: int  # virtual channels per class
    vc_bytes: int  # buffer of one virtual channel over all ports of a GPU; 0 = infinite
    n_links: int
    flit: int = 16
    notify_bytes: int = 16
    train_bytes: int = 16384
    memory_rate: int = 0  # of a node's memory that tasks and transfers share; 0 = each task has a fixed part
    ack_turns: bool = False  # acknowledgements take turns with packets of rows; otherwise they overtake rows
    hashed_links: bool = False  # a train begins at the link that its key hashes to; otherwise all links are equally full

    @property
    def output_bytes(self) -> int:
        """Room of one class in the output buffer of a node's down link, bytes; 0 = infinite.

        A crossing reserves room in the ingress buffer of the hub, `n_vcs` channels of `vc_bytes`. Bytes that are on the
        link keep their room until they arrive, so the bandwidth-delay product of the hop is not available. At least 1:
        an empty buffer takes any train.
        """
        return max(1, self.n_vcs * self.vc_bytes - self.rate * self.lat // 1_000_000) if self.vc_bytes else 0


@frozen
class Net:
    """A network besides NVLink, to which every node has one link out and one link in (docs/design/0012-several-domains.md).

    Times in picoseconds, sizes in bytes, rates in bytes per microsecond. Its buffers are infinite: what waits, waits at the
    link in.

    With `step` the network is one link of every node (docs/design/0017-fabrics-without-a-switch.md): nodes are in rings of
    `ring`, and the link leads to the node `step` places on in the ring. All rings of a Program have one name.
    """

    name: str
    rate: int  # of one node and direction
    lat: int  # one hop: half of the way from node to node
    ack: int  # from the last delivery until the source knows of it
    message_ps: int = 0  # time of one train on the link out besides its bytes
    train_bytes: int = 1 << 30  # most payload of one train
    rates: Numbers = ()  # by node, where not every node has `rate`
    step: int = 0  # places on in the ring; 0 = the network joins any nodes
    ring: int = 0  # nodes of a ring; 0 = no ring

    def rate_of(self, node: int) -> int:
        """The rate of the links of `node`."""
        return self.rates[node] if self.rates else self.rate

    def peer(self, node: I32) -> I32:
        """The node to which the link of each `node` leads, in a network with `step`."""
        first = node - node % np.int32(self.ring)
        return np.asarray(first + (node - first + np.int32(self.step)) % np.int32(self.ring))


@frozen
class HubTable:
    """A table of every hub that maps rows to their place, read through a cache (docs/design/0010-tables-and-trains.md).

    `Template.table` says which ops ask: each copy or request that arrives at a hub asks for each of its rows. A row that
    is not cached is a miss, which reads memory. The cache drops the row that was asked for least recently.

    With `allocates` it is a row table (`protocol/aau.py`), which only stores ask: a new row takes its place without a read,
    the oldest row of a full bank leaves, and a row leaves by itself with its last train.
    """

    name: str
    entries: int  # rows in the cache of one hub, 0 = all
    misses: int  # most misses of one hub under way, 0 = any number; a further miss and all that arrive behind it wait
    miss_ps: int  # time of one miss
    allocates: bool = False  # rows take their places in it; at most one table of a Program does
    banks: int = 1  # of a row table: row r of region g is in bank (g + r) mod banks


ColumnRange = tuple[int, int, int]
"""(first, end, all): columns first .. end - 1 of a row of `all` columns. Tensors of another width take the same part of it."""
ALL_COLUMNS: ColumnRange = (0, 1, 1)


def columns_of(columns: ColumnRange, width: int) -> slice:
    """The columns of a row of `width` columns."""
    first, end, of = columns
    return slice(first * width // of, end * width // of)


@frozen
class Template:
    """Properties that many ops share.

    `fn` names what the op does with data: a function of `Program.schema`, or one of `schema.CARRIES_NOTHING`. It reads buffer `src` and
    writes buffer `dst`. The key of an op is a row of these buffers. The key of a COMPUTE is its tile.
    """

    name: str
    kind: Kind
    operator: str  # the name of one of Program.operators
    fn: str = ""
    cls: int = 0  # traffic class of the train (of a pull: of its request)
    response_cls: int = 0  # traffic class of responses and result
    framing: int = 0  # index into Program.framings
    tasks: int = 0  # tasks of one COMPUTE or DELAY
    duration: int = -1  # row of Program.durations
    src: str = ""
    dst: str = ""
    table: int = -1  # index into Program.tables: the table that copies (of a pull: requests) ask at the hub, -1 = none
    net: int = 0  # the network of a transfer: 0 = NVLink, i = Program.nets[i - 1]
    columns: ColumnRange = ALL_COLUMNS  # that a COMPUTE writes; only the GEMM that writes results may be cut
    layer: int = 0  # of the part, where Programs are merged
    microbatch: int = 0  # of the part


@frozen
class Ops:
    """`[n_ops]` columns; every column int32. -1 = none."""

    template: I32
    node: I32
    bytes: I32  # payload of one copy; an op is one train, at most Hardware.train_bytes, or bulk: `Wires.trains` equal trains
    key: I32  # logical row (global token number), or tile number
    prio: I32
    issuer: I32
    rows: I32  # rows of a COMPUTE, column of Program.durations
    wire: I32  # row of Program.wires, -1 for COMPUTE, DELAY, JOIN
    chain: I32 | None = None  # see Chains
    session: I32 | None = None  # see Sessions
    threshold: I32 | None = None  # events for which a JOIN waits besides announcements, -1 = its edges
    value: I32 | None = None  # value that a SIGNAL adds to the thresholds of its JOINs
    offset: I32 | None = None  # first byte of the row that the op's train carries; a row may travel in several trains
    gate: I32 | None = None  # session of node 0 among those, one per node, whose sums let copies of a push out of the switch (docs/design/0041)


@frozen
class Wires:
    """`[n_wires]` int64: wire bytes of one train of a kind and size, and how many such trains an op is."""

    up: I64  # source to switch: data or request
    down: I64  # one copy, switch to member
    response: I64  # member to switch
    result: I64  # switch to source
    ack_up: I64  # debt per delivered copy on the member's up server
    ack_down: I64  # debt per op on the source's down server
    stripe_up: I64  # ps from the mean end of the train on its links to its end on the most loaded link
    stripe_response: I64  # the same time of a response
    aux: I64  # further payload per copy, response and result (gate weights or their gradients; it counts as the host operator)
    trains: I64  # trains of one op; above 1, the op is bulk: the engine cuts it (docs/design/0001, Bulk), each train has ceil(bytes / trains)


@frozen
class Members:
    """Destinations of ops. Op o has the members `ptr[o]:ptr[o+1]`.

    Member m fills or reads the rows `fill_row[fill_ptr[m]:fill_ptr[m+1]]`.
    """

    ptr: I32  # [n_ops + 1]
    node: I32  # [n_members]
    fill_ptr: I32  # [n_members + 1]
    fill_row: I32  # [n_fills] region rows written (pushes) or read and summed (pulls)
    ext_bytes: I32 | None = None  # [n_members] wire bytes of this copy beyond Wires.down


@frozen
class Regions:
    """Row stores. Region r has the rows `row_ptr[r]:row_ptr[r+1]` and the tiles `tile_ptr[r]:tile_ptr[r+1]`.

    Its slots are numbered like its rows.
    """

    node: I32
    alloc: I32
    tile_rows: I32
    row_bytes: I32
    row_ptr: I32  # [n_regions + 1]
    tile_ptr: I32  # [n_regions + 1]
    row_key: I32  # [n_rows] logical row
    row_notify: I32  # [n_rows] op that the notification of the row's tile releases, -1 = none
    name: Texts = ()


@frozen
class Edges:
    """`[n_edges]`: the head waits for the tail."""

    tail_kind: I32
    tail: I32
    head_kind: I32
    head: I32


@frozen
class Holds:
    """`[n_holds]`: `amount` of semaphore `sem` is held from point `acquire` to point `release`."""

    sem: I32
    amount: I32
    acquire_kind: I32
    acquire: I32
    release_kind: I32
    release: I32


@frozen
class Semaphores:
    """`[n_semaphores]`: capacity at a node, in `unit`."""

    node: I32
    capacity: I32
    name: Texts
    unit: Texts


@frozen
class Issuers:
    """`[n_issuers]`: queues that issue ops. `pool` -1 = no pool.

    `interval_ps` is the least time between two ops, 0 = none.
    """

    node: I32
    pool: I32
    discipline: I32
    interval_ps: I64
    name: Texts
    share: I32 | None = None  # see Shares, -1 = none: the issuer takes whatever slots of its pool are free


@frozen
class Pools:
    """`[n_pools]`: SM slots (or one host thread) of a node."""

    node: I32
    slots: I32
    name: Texts


@frozen
class Shares:
    """`[n_shares]`: parts of pools. The issuers of a share together hold at most `most` slots of `pool` at once.

    `[n_splits]`, by rising op: when `split_op` is done, share `split_share` has `split_most` slots; where `split_more` is not 0, so many more
    than before (below 0: fewer). Tasks that run keep theirs.
    """

    pool: I32
    most: I32
    split_op: I32
    split_share: I32
    split_most: I32
    split_more: I32 | None = None


@frozen
class Chains:
    """`[n_chains]`: ops with `Ops.chain == c` run one after the other, by id, on one slot of `pool`.

    The functional machine and the packet level refuse chains.
    """

    pool: I32
    mode: I32


@frozen
class Sessions:
    """`[n_sessions]`: merging in the switch of `expected` PUSH_REDUCE contributions, or of `expected` MERGED_LOADs of one address.

    `places`: sums and addresses of one home that the switch can hold at once, 0 = any number. Contributions without a place pass the switch one by
    one. `timeout_ps`: after this time without a load a cached response is gone, 0 = never (docs/design/0002).
    """

    home: I32
    expected: I32
    places: int = 0
    timeout_ps: int = 0


@frozen
class Declared:
    """Numbers that the plan promises; `verify` compares the tables with the promise."""

    useful_rows: int
    traffic: dict[str, Tally] = field(default_factory=dict)
    """Payload bytes by direction and operator, {"up": {"dispatch": ..}, "down": {..}}, from the closed form.

    "up" and "down" are NVLink. The links of another network NAME are "NAME out" and "NAME in".
    """
    slots: int = 0
    """Tiled regions (`Schema.tiled`) of all nodes, an equal number on each. A MoE layer has one for every expert slot. 0 = no rule."""
    kernel_sms: int = 0
    """SMs that each communication kernel keeps while it runs (`shares.py`); 0 = none, or not known."""


@frozen
class MergedPart:
    """The place of one part in a merged Program (`merge.merge`): its label and the ids that are its own."""

    label: str
    layer: int
    microbatch: int
    direction: str
    declared: Declared
    schema: Schema
    ops: range
    regions: range
    edges: range
    holds: range


@frozen
class Program:
    """All tables of one point. `ProgramBuilder` builds them, `verify` checks them, every interpreter reads them."""

    n_nodes: int
    hardware: Hardware
    templates: tuple[Template, ...]
    framings: tuple[Framing, ...]
    classes: Texts
    durations: I64  # [n_durations, max_rows + 1] ps of one task
    task_bytes: I64  # [n_durations, max_rows + 1] bytes of one task from shared memory bandwidth
    wires: Wires
    ops: Ops
    members: Members
    regions: Regions
    edges: Edges
    holds: Holds
    semaphores: Semaphores
    issuers: Issuers
    pools: Pools
    declared: Declared
    chains: Chains | None = None
    sessions: Sessions | None = None
    shares: Shares | None = None
    tables: tuple[HubTable, ...] = ()
    row_trains: int = 1
    """Most trains of one row (`Ops.offset`) that leave one behind the other. Slices of a result leave at times of their own.

    At burst level each virtual channel becomes this many, each with its part of the buffer, so that a source exposes as
    many rows to the outputs as with whole rows.
    """
    nets: tuple[Net, ...] = ()
    """Networks besides NVLink. Their numbers (`Template.net`) begin with 1."""
    domain_nodes: int = 0
    """Nodes of one NVLink domain; node i is in domain i // domain_nodes. 0 = all nodes are one domain."""
    operators: tuple[Operator, ...] = LAYER
    """What the ops are for, in the order of outputs. Names are distinct, and one operator at least is of nature HOST."""
    schema: Schema = NO_DATA
    """Buffers and functions that templates name."""
    sections: tuple[MergedPart, ...] = ()
    """The parts of a merged Program, by label. (): no merge. Ops that join parts belong to none."""

    @property
    def channels(self) -> tuple[int, int]:
        """(virtual channels of a class, bytes of each) at burst level; 0 bytes = infinite."""
        return self.hardware.n_vcs * self.row_trains, -(-self.hardware.vc_bytes // self.row_trains)

    @property
    def n_ops(self) -> int:
        return len(self.ops.template)

    @property
    def n_members(self) -> int:
        return len(self.members.node)

    @property
    def n_rows(self) -> int:
        return len(self.regions.row_key)

    @property
    def n_tiles(self) -> int:
        return int(self.regions.tile_ptr[-1])

    @property
    def n_regions(self) -> int:
        return len(self.regions.node)

    @property
    def row_table(self) -> int:
        """Index of the table in which rows take their places, -1 = none."""
        return next((i for i, table in enumerate(self.tables) if table.allocates), -1)

    @property
    def n_nets(self) -> int:
        """Networks, NVLink included."""
        return 1 + len(self.nets)

    @property
    def n_ports(self) -> int:
        """Ports of all nodes: the port of node i in network k is k * n_nodes + i."""
        return self.n_nets * self.n_nodes

    @property
    def hop_ps(self) -> I64:
        """`[n_nets]` one hop of every network, ps."""
        return np.array([self.hardware.lat, *(net.lat for net in self.nets)], np.int64)

    @property
    def ack_ps(self) -> I64:
        """`[n_nets]` from the last delivery until the source knows of it, ps."""
        return np.array([self.hardware.ack, *(net.ack for net in self.nets)], np.int64)

    @property
    def port_rate(self) -> I64:
        """`[n_ports]` bytes per microsecond of the links of every port and direction."""
        nodes = range(self.n_nodes)
        return np.array([self.hardware.rate for _ in nodes] + [net.rate_of(node) for net in self.nets for node in nodes], np.int64)

    @property
    def operator_names(self) -> Texts:
        """Names of `operators`, in their order."""
        return tuple(operator.name for operator in self.operators)

    @property
    def host_operator(self) -> str:
        """The first operator of nature HOST."""
        return self.with_nature(Nature.HOST)[0]

    def host_beside(self, operator: str) -> str:
        """The first operator of nature HOST in the part of `operator`; without parts, of the Program."""
        part = operator.partition(".")[0] + "." if self.sections else ""
        return next(name for name in self.with_nature(Nature.HOST) if name.startswith(part))

    def with_nature(self, *natures: Nature) -> Texts:
        """Names of the operators with one of `natures`."""
        return tuple(operator.name for operator in self.operators if operator.nature in natures)

    def template_operator(self) -> I64:
        """`[n_templates]` place of every template's operator in `operators`."""
        place = {name: i for i, name in enumerate(self.operator_names)}
        return np.array([place[t.operator] for t in self.templates], np.int64)

    def tiled_regions(self) -> Bools:
        """`[n_regions]` bool: COMPUTE ops run on the tiles of the region."""
        tiled = self.schema.tiled
        return np.array([name in tiled for name in self.regions.name] or [False] * self.n_regions, np.bool_)

    def bulk_ops(self) -> I32:
        """Ids of the ops that have several trains and whose member is on another node."""
        if not (self.wires.trains > 1).any():
            return np.zeros(0, np.int32)
        many = np.append(self.wires.trains > 1, False)[self.ops.wire]
        many &= np.append(self.members.node, -1)[np.minimum(self.members.ptr[:-1], self.n_members)] != self.ops.node
        return np.flatnonzero(many).astype(np.int32)

    def op_net(self) -> I32:
        """`[n_ops]` network of every op."""
        return np.array([t.net for t in self.templates], np.int32)[self.ops.template]

    def kinds(self) -> I32:
        """`[n_ops]` Kind of every op."""
        return np.array([t.kind for t in self.templates], np.int32)[self.ops.template]

    def work_ps(self, ops: I64) -> I64:
        """`[len(ops)]` time (ps) of all tasks of `ops`, COMPUTE or DELAY, one after the other."""
        tasks, took = np.array([(t.tasks, t.duration) for t in self.templates], np.int64).reshape(-1, 2)[self.ops.template[ops]].T
        return np.asarray(tasks * self.durations[took, self.ops.rows[ops]])
