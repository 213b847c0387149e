"""Bulk ops as arrays of the burst kernels: their pieces, and what a piece may be (docs/design/0001, Bulk)."""

import numpy as np

from dysharp.base import Array
from dysharp.engine.blocks import columns as col
from dysharp.program import Program, owners

SPARE_PIECES = 4  # of a bulk op besides those that are on links and in buffers
ENDLESS_TRAINS = 256  # of a bulk op that wait in a buffer without end
PART = 64  # a piece is at most this part of its op where each train has bytes that others feel


def _constants(p: Program, ops: Array) -> tuple[Array, Array, Array]:
    """Of every bulk op: trains, wire bytes of a train, bytes that its up link sends in the time to its member and back."""
    wire, net = p.ops.wire[ops], p.op_net()[ops]
    port = p.ops.node[ops] + net * p.n_nodes
    return p.wires.trains[wire], p.wires.up[wire], 2 * p.hop_ps[net] * p.port_rate[port] // 1_000_000


def pieces_of(p: Program) -> Array:
    """`[n_pieces]` the bulk op of every piece, in the order of ops. A bulk op has as many pieces as may be under way."""
    ops = p.bulk_ops()
    trains, size, trip = _constants(p, ops)
    (vcs, room), endless = p.channels, ENDLESS_TRAINS * size
    buffers = np.where(p.op_net()[ops] > 0, endless, vcs * room + p.hardware.output_bytes if room else endless)
    return np.repeat(ops, np.minimum(trains, SPARE_PIECES - (-(trip + buffers) // size)))


def bulk_state(p: Program, of_piece: Array) -> dict[str, Array]:
    """The columns of `Points` for bulk ops."""
    ops, first, count = np.unique(of_piece, return_index=True, return_counts=True)
    n = len(ops)
    bulks, pieces, ports = np.zeros((n, 10), np.int64), np.zeros((len(of_piece), 8), np.int64), np.zeros((p.n_ports if n else 0, 2), np.int64)
    bulk_of = np.full(p.n_ops + len(of_piece) if n else 0, -1, np.int32)
    if n:
        trains, size, trip = _constants(p, ops)
        wire, net = p.ops.wire[ops], p.op_net()[ops]
        bulks[:, col.BULK_OP], bulks[:, col.BULK_FREE] = ops, first
        bulks[:, col.BULK_LEFT] = bulks[:, col.BULK_DUE] = trains
        bulks[:, col.BULK_MOST] = _most(p, trains, size, np.where(net > 0, 0, trip), net)
        bulks[:, col.BULK_TO] = p.members.node[p.members.ptr[ops]] + net * p.n_nodes
        cls = np.array([t.cls for t in p.templates])[p.ops.template[ops]]
        _, first_of, flow = np.unique(np.stack((p.ops.node[ops], bulks[:, col.BULK_TO], cls, net)), axis=1, return_index=True, return_inverse=True)
        bulks[:, col.BULK_FLOW] = first_of[flow]
        bulks[:, col.BULK_BYTES] = -(-p.ops.bytes[ops].astype(np.int64) // p.wires.trains[wire])
        pieces[:, col.PIECE_BULK] = np.repeat(np.arange(n), count)
        bulk_of[ops], bulk_of[p.n_ops :] = np.arange(n), pieces[:, col.PIECE_BULK]
        ports[:, col.PORT_PIECE] = -1
    return {"bulk_of": bulk_of, "bulks": bulks, "pieces": pieces, "ports": ports}


def _most(p: Program, trains: Array, size: Array, trip: Array, net: Array) -> Array:
    """Most trains of a piece. Bytes that follow a train (acknowledgements on other links, memory that tasks share) come with its piece.

    One train where buffers of the switch are shorter than the round trip, so that a train waits for the credit of another.
    """
    vcs, room = p.channels
    most = trains.copy()
    owner = owners(p.members.ptr)
    far = p.ops.wire[owner[p.members.node != p.ops.node[owner]]]
    if (p.hardware.memory_rate and p.task_bytes.max(initial=0)) or (p.wires.ack_up + p.wires.ack_down)[far].any():
        most = np.maximum(1, most // PART)
    if room:
        most[(net == 0) & (vcs * np.maximum(1, room // size) * size < trip + size)] = 1
    return most
