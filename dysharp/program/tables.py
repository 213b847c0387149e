"""The Program: flat tables that every interpreter (engine, oracle, functional machine, counters) reads.

One Program is one (model, cluster, routing, direction, system). Tables are NumPy arrays, written once by the builder and read-only
afterwards. `docs/design/0001` says what they mean in time, `docs/design/0002` why the columns are these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dysharp.isa.framing import Framing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Kind(IntEnum):
    """What an op does. No kind belongs to one system."""

    COMPUTE = 0  # a GEMM: a gang of `tasks` thread-block tasks on SM slots
    DELAY = 1  # a named cost: `tasks` tasks on any pool; a host, stream or copy engine is a pool of one slot, padding work runs on the SM pool
    JOIN = 2  # counts events, fires at zero delay
    PUT = 3  # data to one node, acknowledged
    SIGNAL = 4  # a small PUT that may carry a value
    MULTICAST = 5  # data to a set, replicated in the switch
    GET = 6  # request out, data back
    PULL_REDUCE = 7  # request to a set, responses summed in the switch
    PUSH_REDUCE = 8  # one contribution to a session that sums on the way home
    MERGED_LOAD = 9  # a load that merges with equal loads in the switch


class Discipline(IntEnum):
    """Which ready op an issuer takes next (docs/design/0001, Ops)."""

    PROGRAM_ORDER = 0
    READY_FIFO = 1
    SMALLEST_KEY = 2
    ROUND_ROBIN = 3  # over destinations, then prio, then key (MoE-Hub's scheduler)


class Alloc(IntEnum):
    """How a region binds rows to slots."""

    FIRST_TOUCH = 0
    PREFIX = 1


class Tail(IntEnum):
    """The point an edge waits for; `tail` indexes ops, members, tiles or rows accordingly."""

    OP_DONE = 0
    OP_ISSUED = 1
    MEMBER_DELIVERED = 2
    TILE_READY = 3
    ROW_COMPLETE = 4


class Head(IntEnum):
    """What an edge holds back; `head` indexes ops, members or tiles accordingly."""

    OP_ISSUE = 0
    MEMBER_RESPOND = 1
    TILE_NOTIFY = 2
    JOIN_CANCEL = 3  # cancels a JOIN and all that depends on it alone (surplus tiles of a worst-case grid)


class Point(IntEnum):
    """Where a semaphore hold begins or ends; the id indexes ops or rows."""

    OP_ISSUED = 0
    OP_DONE = 1
    ROW_FIRST_TOUCH = 2
    JOIN_FIRST_EVENT = 3


class Chaining(IntEnum):
    """What a chain does with its slot while its next op waits."""

    HOLD = 0
    YIELD = 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """Constants of the machine at burst level, from a Cluster and choices.toml.

    Times in picoseconds, sizes in bytes, rate in bytes per microsecond per GPU and direction.
    """

    rate: int
    lat: int  # one hop, GPU to switch or back
    ack: int  # from the last delivery to the source's knowledge of it
    notify: int  # tracker to tracker
    responder: int  # memory read of a pull's responder
    local: int  # hub to own memory
    n_vcs: int  # virtual channels per class group
    vc_bytes: int  # buffer of one VC over all ports of a GPU; 0 = infinite
    n_links: int
    flit: int = 16
    notify_bytes: int = 16
    train_bytes: int = 16384
    memory_rate: int = 0  # bytes per microsecond of a node's memory that tasks and transfers share; 0 = tasks have shares of their own


@dataclass(frozen=True, slots=True)
class Template:
    """What many ops have in common.

    `fn` is what happens to data, `src` and `dst` the buffers it reads and writes; an op's key is the token, of a COMPUTE the tile. "x", "dy",
    "y", "dx" hold one row per token at its source GPU; "expert.NAME" one row per useful (token, expert), in the slots of the regions "expert";
    "partial" one row per (token, GPU), under "row" per (token, expert), in the regions of that name; "w1.grad", "w2.grad" the sums of weight
    gradients.

    | fn | reads, writes |
    |---|---|
    | copy | the token's row (x, dy) into all rows of the op's members (expert.x, expert.dy) |
    | gemm1, gemm2 | expert.x to expert.a (activation included), expert.a to expert.y (gate weight included); a tile of the op's key |
    | gemm2_dgrad, gemm1_dgrad | expert.dy to expert.dh (gradients of gate weight and activation included), expert.dh to expert.dx |
    | gemm2_wgrad, gemm1_wgrad | expert.dy and the stored a to w2.grad, expert.dh and the stored x to w1.grad |
    | sum | expert.y or expert.dx (expert.x, expert.dy in a pass without GEMMs) to y, dx or partial: the token's rows, unweighted |
    | row | one expert's row (as sum) to partial: a token's partial rows are, in order, those of its experts by slot; y, dx is their sum |
    | control, delay, join | no tensor |
    """

    name: str
    kind: Kind
    operator: str  # "dispatch" | "gemm1" | "gemm2" | "combine" | "other"; a gradient counts as the GEMM it belongs to
    fn: str = ""  # what the functional machine does: see above
    cls: int = 0  # traffic class of the train (request of a pull)
    response_cls: int = 0  # traffic class of responses and result
    framing: int = 0  # index into Program.framings
    tasks: int = 0  # tasks per COMPUTE or DELAY
    duration: int = -1  # row of Program.durations
    src: str = ""  # buffer read
    dst: str = ""  # buffer written
    layer: int = 0
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Ops:
    """`[n_ops]` columns; every column int32. -1 = none."""

    template: I32
    node: I32
    bytes: I32  # payload of one copy; an op is one train, at most Hardware.train_bytes
    key: I32  # logical row (global token number), or tile number
    prio: I32
    issuer: I32
    rows: I32  # rows of a COMPUTE, column of Program.durations
    wire: I32  # row of Program.wires, -1 for COMPUTE, DELAY, JOIN
    chain: I32 | None = None
    session: I32 | None = None  # PUSH_REDUCE, MERGED_LOAD
    threshold: I32 | None = None  # JOIN: dependencies it waits for beyond its edges, announced by signals (-1 = none)
    value: I32 | None = None  # SIGNAL: value it adds to the threshold of the JOINs behind it


@dataclass(frozen=True, slots=True)
class Wires:
    """`[n_wires]` int64: bytes on the wire of one train of a kind and size."""

    up: I64  # source to switch: data or request
    down: I64  # one copy, switch to member
    response: I64  # member to switch
    result: I64  # switch to source
    ack_up: I64  # debt per delivered copy on the member's up server
    ack_down: I64  # debt per op on the source's down server
    stripe_up: I64  # ps: last byte on the most loaded link after the average
    stripe_response: I64
    aux: I64  # payload bytes riding along per copy, response and result (gate weights or their gradients, operator "other")


@dataclass(frozen=True, slots=True)
class Members:
    """Destinations of ops in CSR: op o owns `ptr[o]:ptr[o+1]`; member m fills rows `fill_row[fill_ptr[m]:fill_ptr[m+1]]`."""

    ptr: I32  # [n_ops + 1]
    node: I32  # [n_members]
    fill_ptr: I32  # [n_members + 1]
    fill_row: I32  # [n_fills] region rows written (pushes) or read and summed (pulls)
    ext_bytes: I32 | None = None  # [n_members] wire bytes of this copy beyond Wires.down


@dataclass(frozen=True, slots=True)
class Regions:
    """Row stores. Region r owns rows `row_ptr[r]:row_ptr[r+1]`, tiles `tile_ptr[r]:tile_ptr[r+1]`, slots numbered like rows."""

    node: I32
    alloc: I32
    tile_rows: I32
    row_bytes: I32
    row_ptr: I32  # [n_regions + 1]
    tile_ptr: I32  # [n_regions + 1]
    row_key: I32  # [n_rows] logical row
    row_notify: I32  # [n_rows] op released when the row's tile notifies, -1 = none
    name: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edges:
    """`[n_edges]`: head waits for tail."""

    tail_kind: I32
    tail: I32
    head_kind: I32
    head: I32


@dataclass(frozen=True, slots=True)
class Holds:
    """`[n_holds]`: `amount` of semaphore `sem` is held from one point to another. Sorted by semaphore acquisition op."""

    sem: I32
    amount: I32
    acquire_kind: I32
    acquire: I32
    release_kind: I32
    release: I32


@dataclass(frozen=True, slots=True)
class Semaphores:
    """`[n_semaphores]`: capacity at a node, in `unit`."""

    node: I32
    capacity: I32
    name: tuple[str, ...]
    unit: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Issuers:
    """`[n_issuers]`: who puts ops on the machine. `pool` -1 = not an SM pool; `interval_ps` 0 = unpaced."""

    node: I32
    pool: I32
    discipline: I32
    interval_ps: I64
    name: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pools:
    """`[n_pools]`: SM slots (or one host thread) of a node."""

    node: I32
    slots: I32
    name: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chains:
    """`[n_chains]`: ops with `Ops.chain == c` run one after the other, by id, on one slot of `pool`."""

    pool: I32
    mode: I32


@dataclass(frozen=True, slots=True)
class Sessions:
    """`[n_sessions]`: in-switch merging of PUSH_REDUCE (`expected` contributions) or MERGED_LOAD (`expected` requests)."""

    home: I32
    expected: I32


@dataclass(frozen=True, slots=True)
class Declared:
    """What the plan promises: useful rows, payload bytes per operator and direction (from the closed form of the Routing), expert slots."""

    useful_rows: int
    traffic: dict[str, dict[str, int]] = field(default_factory=dict)  # {"up": {"dispatch": ..}, "down": {..}}
    expert_slots: int = 0  # expert slots of all GPUs, each with one region "expert"; 0 = no layer


@dataclass(frozen=True, slots=True)
class Program:
    """All tables of one point. Build with `ProgramBuilder`, check with `verify`, read everywhere."""

    n_nodes: int
    hardware: Hardware
    templates: tuple[Template, ...]
    framings: tuple[Framing, ...]
    classes: tuple[str, ...]
    durations: I64  # [n_durations, max_rows + 1] ps of one task
    task_bytes: I64  # [n_durations, max_rows + 1] memory bytes of one task, 0 = it takes nothing from the memory that is shared
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

    def kinds(self) -> I32:
        """`[n_ops]` Kind of every op."""
        return np.array([t.kind for t in self.templates], np.int32)[self.ops.template]
