"""Bulk ops: an op of many trains goes in pieces, each as long as nothing interrupts it (docs/design/0001, Bulk).

Every piece lists the end of each of its trains on its up link, so a cut only looks into this list.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dysharp.oracle.load import Member, Op
from dysharp.oracle.servers import PS_PER_US, DownLink, Incoming, UpLink
from dysharp.oracle.world import Event, World

T = TypeVar("T")
SPARE_PIECES = 4
ENDLESS_TRAINS = 256
PART = 64


@dataclass(slots=True)
class _Bulk:
    """A bulk op. `unsent`, `undelivered`: trains. `most`: trains of a piece. `pieces`: how many may be under way, `under_way`: how many are.

    `flow`: its port, class and the port of its member. `at_hub`: it waits for its up link.
    """

    op: Op
    flow: tuple[int, int, int]
    unsent: int
    undelivered: int
    most: int
    pieces: int
    under_way: int = 0
    at_hub: bool = False


@dataclass(slots=True)
class TrainGroup:
    """Trains of a bulk op that go together. `sent`: when each has left its port. `served`: trains that the down server has sent before its
    present turn, which ends after each train at the times `turn`."""

    bulk: _Bulk
    op: Op
    sent: list[int]
    served: int = 0
    turn: list[int] = field(default_factory=list)
    own_end: list[int] = field(default_factory=list)  # of the turn, if it did not have to wait for the up link
    turn_start: tuple[int, int] = (0, 0)  # busy start and bytes of the down server before the turn


class BulkOps:
    """All bulk ops of a run. `queue(op)` puts an op into the hub of its node; `of` finds the bulk op of an op or piece by its id."""

    def __init__(self, world: World, up: list[UpLink], down: list[DownLink], hop: list[int], channel: list[int]) -> None:
        self.world, self.up, self.down, self.hop = world, up, down, hop
        self.queue: Callable[[Op], None]
        self.of: dict[int, _Bulk] = {}
        self.pieces: dict[int, TrainGroup] = {}
        self.sending: dict[int, TrainGroup] = {}
        """The piece that the up link of a port sent last."""
        self.asked = [0] * len(down)
        """Copies and results that have asked for the down link of each port and have not left on it."""
        self.asking: Counter[tuple[int, int, int]] = Counter()
        """Pieces of each flow among them."""
        program = world.tables.program
        tasks_move = program.hardware.memory_rate > 0 and any(n > 0 for row in program.task_bytes.tolist() for n in row)
        self._watched = tasks_move or any(op.ack_up + op.ack_down > 0 for op in world.ops if world.remote(op))
        """Whether bytes follow each train that others feel: a task that waits for memory, or a link that carries acknowledgements."""
        for op in list(world.ops):
            if op.trains > 1 and world.remote(op):
                self.of[op.id] = self._bulk(op, channel[op.net])

    def _bulk(self, op: Op, room: int) -> _Bulk:
        program = self.world.tables.program
        trip = 2 * self.hop[op.net] * self.up[op.port].server.rate // PS_PER_US
        most = op.trains
        if self._watched:
            most = max(1, op.trains // PART)
        if room and program.channels[0] * max(1, room // op.up) * op.up < trip + op.up:
            most = 1
        buffers = program.channels[0] * room + program.hardware.output_bytes if room else ENDLESS_TRAINS * op.up
        flow = op.port, op.cls, self.world.members[op.members[0]].port
        return _Bulk(op, flow, op.trains, op.trains, most, min(op.trains, SPARE_PIECES + -(-(trip + buffers) // op.up)))

    # ---- up -----------------------------------------------------------------------------------------------

    def joined(self, port: int, op: Op | None = None) -> None:
        """A train, a response (None) or a bulk op has joined the hub of `port`. A piece that is being sent makes way for the new item, unless this
        is a bulk op of the same class."""
        is_bulk = op is not None and op.id in self.of
        if op is not None and is_bulk:
            self.of[op.id].at_hub = True
        if port in self.sending and not (op is not None and is_bulk and op.cls == self.sending[port].op.cls):
            self.cut(self.sending[port])

    def send(self, op: Op) -> TrainGroup:
        """`op` was taken from the hub of its port, whose up server sends a piece of it now."""
        world, bulk, link = self.world, self.of[op.id], self.up[op.port]
        target = world.members[op.members[0]]
        alone = all(cls == op.cls and item.op.id in self.of for cls, fifo in enumerate(link.fifos) for item in fifo)
        alone = alone and self.asked[target.port] == self.asking[bulk.flow]
        n = min(bulk.unsent, bulk.most) if alone else 1
        world.counts["piece of several trains" if n > 1 else "piece of one train"] += 1
        own = replace(op, id=len(world.ops), members=[len(world.members)])
        world.ops.append(own)
        world.members.append(Member(own.id, target.node, target.port, [], 0))
        server = link.server
        end = server.serve(world.now, n * op.up, messages=n)
        size = op.up + server.message_bytes
        before = server.busy_bytes - n * size
        piece = TrainGroup(bulk, own, [server.busy_start + server.time_of(before + i * size) for i in range(1, n + 1)])
        assert piece.sent[-1] == end
        self.of[own.id], self.pieces[own.id], self.sending[op.port] = bulk, piece, piece
        bulk.unsent -= n
        bulk.under_way += 1
        bulk.at_hub = False
        if world.log.start[op.id] < 0:
            world.log.start[op.id] = world.now
        world.log.end[op.id] = end + op.stripe_up
        world.agenda.add(end, Event.UP_END, op.port, -1)
        self._wait_again(bulk)
        return piece

    def _wait_again(self, bulk: _Bulk) -> bool:
        """The op joins the hub if it has trains to send and may have one more piece under way. Returns whether it did."""
        if bulk.unsent == 0 or bulk.under_way == bulk.pieces or bulk.at_hub:
            return False
        bulk.at_hub = True
        self.queue(bulk.op)
        return True

    def cut(self, piece: TrainGroup) -> None:
        """If `piece` is being sent, it ends with the train that has begun. Its other trains wait again."""
        world, bulk, op = self.world, piece.bulk, piece.bulk.op
        server, now = self.up[op.port].server, world.now
        if self.sending.get(op.port) is not piece or server.idle or server.free_at <= now or server.free_at != piece.sent[-1]:
            return
        kept = next(i for i, end in enumerate(piece.sent, 1) if end > now)
        rest = len(piece.sent) - kept
        if rest == 0:
            return
        world.counts["piece cut at its up link"] += 1
        world.agenda.drop(piece.sent[-1], Event.UP_END, op.port, -1)
        del piece.sent[kept:]
        bulk.unsent += rest
        server.busy_bytes -= rest * (op.up + server.message_bytes)
        server.total -= rest * op.up
        server.free_at = piece.sent[-1]
        world.agenda.add(server.free_at, Event.UP_END, op.port, -1)
        world.log.end[op.id] = server.free_at + op.stripe_up
        self._wait_again(bulk)
        item = self.down[world.members[piece.op.members[0]].port].sending
        if item is not None and item.op.id == piece.op.id and piece.served + len(piece.turn) > kept:
            self._end_turn_after(piece, kept - piece.served)

    # ---- down ---------------------------------------------------------------------------------------------

    def ask(self, port: int, op: Op) -> None:
        """A copy or result of `op` has asked for the down link of `port`. Pieces of other ops make way, and the copy's own piece does."""
        self.asked[port] += 1
        bulk = self.of.get(op.id)
        if bulk is not None:
            self.asking[bulk.flow] += 1
        item = self.down[port].sending
        there = None if item is None else self.pieces.get(item.op.id)
        if there is not None and (bulk is None or there.bulk.flow != bulk.flow):
            self.cut(there)
            self._end_turn_after(there, next((i for i, end in enumerate(there.turn, 1) if end > self.world.now), len(there.turn)))
        if bulk is not None and self.asked[port] > self.asking[bulk.flow]:
            self.cut(self.pieces[op.id])

    def serve(self, link: DownLink, port: int, item: Incoming) -> int:
        """The down server of `port` takes a piece: all its trains if nothing else has asked for the link, else one. Returns the end."""
        piece = self.pieces[item.op.id]
        alone = self.asked[port] == self.asking[piece.bulk.flow]
        n = len(piece.sent) - piece.served if alone else 1
        self.world.counts["turn of a piece" if n > 1 else "turn of one train"] += 1
        server = link.server
        server.serve(self.world.now, n * item.n_bytes)
        before = server.busy_bytes - n * item.n_bytes
        piece.own_end = [server.busy_start + server.time_of(before + i * item.n_bytes) for i in range(1, n + 1)]
        late = piece.op.stripe_up + self.hop[piece.op.net]  # before which a train cannot leave the switch
        piece.turn = [max(end, sent + late) for end, sent in zip(piece.own_end, piece.sent[piece.served : piece.served + n], strict=True)]
        piece.turn_start = server.busy_start, before
        return server.end_not_before(piece.turn[-1])

    def _end_turn_after(self, piece: TrainGroup, n: int) -> None:
        if n == len(piece.turn):
            return
        port = self.world.members[piece.op.members[0]].port
        link = self.down[port]
        item, server = link.sending, link.server
        assert item is not None
        self.world.counts["turn cut"] += 1
        self.world.agenda.drop(piece.turn[-1], Event.DOWN_END, port, item.member)
        server.total -= (len(piece.turn) - n) * item.n_bytes
        server.busy_start, server.busy_bytes = piece.turn_start[0], piece.turn_start[1] + n * item.n_bytes
        server.free_at = piece.own_end[n - 1]
        server.end_not_before(piece.turn[n - 1])
        del piece.turn[n:]
        self.world.agenda.add(piece.turn[-1], Event.DOWN_END, port, item.member)

    def turn_over(self, port: int, item: Incoming) -> bool:
        """The down server of `port` has sent `item`. Returns whether it is a piece with trains left, which waits for its next turn."""
        piece = self.pieces.get(item.op.id) if item.member >= 0 else None
        if piece is not None:
            piece.served += len(piece.turn)
            if piece.served < len(piece.sent):
                return True
            self.asking[piece.bulk.flow] -= 1
        self.asked[port] -= 1
        return False

    # ---- delivery -----------------------------------------------------------------------------------------

    def delivered(self, piece: TrainGroup) -> bool:
        """A piece is visible: its bytes have been read and written, its trains are acknowledged. Returns whether the whole op is."""
        world, bulk, op = self.world, piece.bulk, piece.bulk.op
        n, target = len(piece.sent), world.members[piece.op.members[0]]
        payload = n * -(-op.payload // op.trains)
        world.moves(op.node, payload)
        world.moves(target.node, payload)
        self.up[target.port].server.owe(n * op.ack_up)
        self.down[op.port].server.owe(n * op.ack_down)
        bulk.under_way -= 1
        if self._wait_again(bulk):
            self.joined(op.port)
        bulk.undelivered -= n
        return bulk.undelivered == 0


def turn_push(fifo: deque[T], item: T, is_bulk: Callable[[T], bool]) -> None:
    """Put `item` of a bulk op behind the first item of no bulk op and the bulk items directly after it; without one, first."""
    rows = [i for i, other in enumerate(fifo) if not is_bulk(other)]
    fifo.insert((rows[1] if len(rows) > 1 else len(fifo)) if rows else 0, item)
