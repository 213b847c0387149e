"""The state of a run as NamedTuples of arrays, handed to kernels whole. `columns.py` names the columns of every array.

A kernel unpacks a tuple in the order of its fields, so this file is part of the digest of the kernel cache.
"""

from typing import Annotated, NamedTuple

from dysharp.base.arrays import Array

# Annotated: the number of columns of an array, which kernels are compiled with (`address.py`)


class MemberState(NamedTuple):
    """The copies of every op.

    `mem`: [n_members + 1, 8] int32. `mem_time`: the same memory as [n_members + 1, 4] int64.
    `fill_row`: [n_fills] int32, the rows that member k fills at MEMBER_FILL of k .. MEMBER_FILL of k + 1.
    """

    mem: Annotated[Array, 8]
    mem_time: Annotated[Array, 4]
    fill_row: Array


class StoreState(NamedTuple):
    """Regions: their rows and tiles, and the edges that leave a tile when it is ready.

    `rows`: [n_rows, 4] int32. `regions`: [n_regions, 5] int32. `slot_row`: [n_rows] int32, the row in a slot, -1 = free.
    `tiles`: [n_tiles, 7] int32. `tile_times`: [n_tiles, 2] int64 ps, -1 = not yet.
    `tile_edge_ptr`: [n_tiles + 1], into `tile_edge_kind` and `tile_edge` (the head of each edge).
    """

    rows: Annotated[Array, 4]
    regions: Annotated[Array, 5]
    slot_row: Array
    tiles: Annotated[Array, 7]
    tile_times: Annotated[Array, 2]
    tile_edge_ptr: Array
    tile_edge_kind: Array
    tile_edge: Array


class Releases(NamedTuple):
    """What falls when a point is passed: its out-edges, and what it gives back to semaphores.

    | point | number |
    |---|---|
    | op o is done | o |
    | op o is issued | n_ops + o |
    | member k is delivered | 2 n_ops + k |
    | row r is first touched (semaphores) and complete (edges) | 2 n_ops + n_members + r |
    | JOIN o has seen its first event | 2 n_ops + n_members + n_rows + o |

    `edge_ptr`: [n_points + 1], into `edge_head_kind` and `edge_head`. `release_ptr`: [n_points + 1], into `release_sem` and
    `release_amount` (below 0: taken). `sem_issuer_ptr`: [n_semaphores + 1], into `sem_issuer` (who may wait for the semaphore).
    Where nothing falls at other points than the ends of ops, n_points is n_ops.
    """

    edge_ptr: Array
    edge_head_kind: Array
    edge_head: Array
    release_ptr: Array
    release_sem: Array
    release_amount: Array
    sem_issuer_ptr: Array
    sem_issuer: Array


class HoldState(NamedTuple):
    """What an op takes from semaphores when it is issued.

    `hold_ptr`: [n_ops + 1], into `hold_sem` and `hold_amount`. `sem_left`: [n_semaphores] int32, what is free.
    """

    hold_ptr: Array
    hold_sem: Array
    hold_amount: Array
    sem_left: Array


class IssuerState(NamedTuple):
    """Queues of ready ops.

    `issuers`: [n_issuers, 7] int64. `issuer_ops`: [n_issued] int32, ops by issuer in program order.
    `heap_keys`, `heap_ids`: [n_issued], the heap of issuer i begins at its ISSUER_NEXT.
    `dirty_issuers`: bit set of the issuers that want a grant attempt.
    """

    issuers: Annotated[Array, 8]
    issuer_ops: Array
    heap_keys: Array
    heap_ids: Array
    dirty_issuers: Array


class PoolState(NamedTuple):
    """SM slots and the tasks that run on them.

    `pools`: [n_pools, 3] int64. `pool_keys`, `pool_ids`: [n_slots] int64, the heap of pool p begins at its POOL_BASE.
    `pool_issuer_ptr`: [n_pools + 1], into `pool_issuer` (who issues to the pool).
    `durations`, `task_bytes`: [n_durations, n_rows] int64, ps and bytes of one task by its rows.
    """

    pools: Annotated[Array, 3]
    pool_keys: Array
    pool_ids: Array
    pool_issuer_ptr: Array
    pool_issuer: Array
    durations: Array
    task_bytes: Array


class Links(NamedTuple):
    """Links and hubs of n ports (a node has one on each net) with c classes of traffic. FIFOs are [n_fifos, 2] int32 (head, tail), -1 = empty.

    `wires`: [n_wires, 16] int64. `nodes`: [n, 32] int64, the two servers of each port, the constants of its links, the memory.
    `hub`: [n * c, 2], trains and responses that wait for the up link. `dirty_up`: bit set of the nodes whose up link
    wants a grant attempt. `packet`: [n * c] int64 bytes of a packet of the train that an up server sent last, by class. `acks`: [n_ops + 1]
    int32, a heap of the pushes whose last acknowledgement is on its way (0: their number). `lines`: [2 * n, 3 + n_links] int64 ps, until when
    each link of a port is busy, up and down (`blocks/lines.py`), and `first`: [n_ops] int8, the first link of each op; empty where links are equal.
    """

    wires: Annotated[Array, 16]
    nodes: Annotated[Array, 32]
    hub: Annotated[Array, 2]
    packet: Array
    acks: Array
    lines: Array
    first: Array
    dirty_up: Array


class SwitchState(NamedTuple):
    """The switch of the burst level: n ports, c classes, v virtual channels. FIFOs as in `Links`.

    `occupied`: [n * c, v] int64 bytes. `channels`: [n * c * v, 2], trains in the input buffer.
    `credits`: [n * c, 2], buffer space on its way back. `out_queues`: [n * c * (n + 1), 2], what waits for room, by output, class and source
    (source n: the reduction unit). `out_mask`: [n * c, words], bit sets of the sources that wait.
    `out_cursor`: [n * c] int64, the source served last, -1 = none. `held`: [n * c] int64 bytes in the output buffers.
    `crossed`: [n * c, 2], copies and results in the output buffers. `dirty_down`: bit set of nodes, as
    `dirty_up`. `sending`: [n, 2], copies and results on unequal down links.
    """

    occupied: Array
    channels: Annotated[Array, 2]
    credits: Annotated[Array, 2]
    out_queues: Annotated[Array, 2]
    out_mask: Array
    out_cursor: Array
    held: Array
    crossed: Annotated[Array, 2]
    sending: Annotated[Array, 2]
    dirty_down: Array


class TableState(NamedTuple):
    """Tables of the hubs: t tables on n nodes, for the rows of all regions.

    `kinds`: [t, 4] int64, sizes and cost. `hubs`: [t * n, 5] int64. `finish`: [t * n, misses] int64 ps, ends of the
    latest misses of a hub, a ring. `asked`: [n_rows + t * n, 4] int64. `waits`: [n, 2] int32, FIFO of the members that
    wait for a row's place (linked as in `Links`). `places`: [n_rows + n * banks, 6] int32 and `spilled`: [n_regions] int64, the
    row table (`engine/blocks/tables.py`); empty where no table is one.
    """

    kinds: Annotated[Array, 4]
    hubs: Annotated[Array, 5]
    finish: Array
    asked: Annotated[Array, 4]
    waits: Annotated[Array, 2]
    places: Annotated[Array, 6]
    spilled: Array


class Loads(NamedTuple):
    """Loads that merge in the switch (`engine/blocks/loads.py`).

    `address_of`: [n_ops] int32, the session of a load from another node than its home, -1 = none. `entries`: [n_sessions + n_nodes, 10] int64.
    `timeout`: [1] int64 ps, 0 = never. `mem_time`: that of `MemberState`.
    """

    address_of: Array
    entries: Annotated[Array, 10]
    timeout: Array
    mem_time: Annotated[Array, 4]


class Points(NamedTuple):
    """What kernels need where a Program has more than ends of ops: other points (`Releases`), chains, paced issuers, sums in the switch.

    `passed`: [n_points - n_ops] int32, links of the worklist. `value`: [n_ops] int32, what an announcement adds. `touched`: [n_rows] int8,
    1 = the row has its first byte. `pace`: [n_issuers, 2] int64 ps. `chains`: [n_chains, 4] int32. `resident`: [n_issuers, 2] int32, FIFOs
    of ready ops whose chain has a slot (linked as in `Links`). `sum_of`: [n_ops] int32, the sum to which a contribution from another node
    than its home belongs, -1 = none. `sums`: [n_sessions, 5] int64. `places`: [n_nodes] int64, free places of the sums and
    loads of a home. `gate_of`: [n_ops] int32, the first session of the gates of an op, -1 = none. `gates`: [n_sessions + 1, 2] int64, FIFOs of
    members at closed gates, then (written, read) of `opening`: [2 * n_sessions] int64, gates to look at.
    `bulk_of`: [n_ops + n_pieces] int32, the bulk op that an op or piece is of, -1 = none. `bulks`: [n_bulk, 10] int64. `pieces`:
    [n_pieces, 8] int64; their records of ops and members stand behind those of all ops. `ports`: [n_ports, 2] int64. `share_of`: [n_queues]
    int32, the share of the pool of an issuer or queue, -1 = none. `shares`: [n_shares, 2], `splits`: [n_splits, 4] int64. `split_of`: [n_ops]
    int32, the first split at the end of an op, -1 = none.
    Each is empty where nothing needs it. `loads`: None where no loads merge, so that kernels are compiled without them.
    `releases`, `holds`, `links` belong to the run.
    """

    passed: Array
    value: Array
    touched: Array
    pace: Annotated[Array, 2]
    chains: Annotated[Array, 4]
    resident: Annotated[Array, 2]
    sum_of: Array
    sums: Annotated[Array, 5]
    places: Array
    gate_of: Array
    gates: Annotated[Array, 2]
    opening: Array
    bulk_of: Array
    bulks: Annotated[Array, 10]
    pieces: Annotated[Array, 8]
    ports: Annotated[Array, 2]
    share_of: Array
    shares: Annotated[Array, 2]
    splits: Annotated[Array, 4]
    split_of: Array
    loads: Loads | None
    releases: Releases
    holds: HoldState
    links: Links


class OpState(NamedTuple):
    """What every op is and where it stands.

    `op`: [n_ops + n_pieces + 1, 32] int32, one record an op. `ot`: the same memory as [n_ops + 1, 16] int64, for times in ps.
    `templates`: [n_templates, 7] int32. The last op record is spare.
    `points`: None for most Programs. Numba compiles every kernel apart for None, without what asks for points.
    """

    op: Annotated[Array, 32]
    ot: Annotated[Array, 16]
    templates: Annotated[Array, 7]
    points: Points | None


class Clock(NamedTuple):
    """Time: `rings`: [N_RINGS * nets, 4] int32 (`fifo.ring_push`); `tree`: [2 * n_leaves] int64 ps; `m`: machine parameters; `x`: scalars
    of the run.
    """

    rings: Annotated[Array, 4]
    tree: Array
    m: Array
    x: Array


class BurstState(NamedTuple):
    """Everything that a run at burst level reads and changes."""

    ops: OpState
    members: MemberState
    stores: StoreState
    releases: Releases
    holds: HoldState
    issue: IssuerState
    slots: PoolState
    links: Links
    switch: SwitchState
    tables: TableState
    clock: Clock
