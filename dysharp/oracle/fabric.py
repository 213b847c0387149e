"""The way of trains: up server, switch buffers, down server, and acknowledgements back (docs/design/0001)."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from fractions import Fraction
from math import ceil

from dysharp.base import frozen
from dysharp.oracle.bulk import BulkOps, turn_push
from dysharp.oracle.hub_table import tables_of
from dysharp.oracle.load import PULLS, Op
from dysharp.oracle.servers import PS_PER_US, DownLink, Incoming, Lines, Outgoing, Server, UpLink, VirtualChannels, round_robin
from dysharp.oracle.world import Event, World


class _Acks:
    """Acknowledgements that take turns with packets of rows. Where they overtake rows, they wait for nothing."""

    def __init__(self, world: World, up: list[UpLink], down: list[DownLink]) -> None:
        self.world, self.up, self.down = world, up, down
        self.waiting = [Fraction(0)] * len(up)
        """Acknowledgements that have not left a hub."""
        self.packet: dict[tuple[int, int], int] = {}
        """Bytes of a packet of the train that a port sent last, by class."""
        self.sent_class = [0] * len(up)
        self.left: dict[int, int] = {}
        """When the last acknowledgement of a push so far leaves its member."""

    def sends(self, port: int, cls: int, op: Op, n_bytes: int) -> None:
        """The up server of `port` sends a train of `op` next. Acknowledgements that wait leave in turn with its packets."""
        link = self.up[port]
        if link.server.free_at < self.world.now:
            self.waiting[port] = Fraction(0)
        self.packet[port, cls] = n_bytes // op.packets
        self.sent_class[port] = cls
        left = self.waiting[port] - Fraction(6 * op.packets // len(self._classes(port)), 6)
        self.waiting[port] = max(left, Fraction(0))

    def _classes(self, port: int) -> set[int]:
        """Classes that the up server of `port` sends or that queue there."""
        return {c for c, fifo in enumerate(self.up[port].fifos) if fifo} | {self.sent_class[port]}

    def take_turns(self, op: Op) -> bool:
        """Whether the acknowledgements of `op` wait."""
        return self.world.hardware.ack_turns and op.net == 0

    def leave(self, port: int, op: Op) -> int:
        """When the acknowledgements of a copy that is visible at `port` now have left its hub."""
        now, server = self.world.now, self.up[port].server
        if not self.take_turns(op) or op.ack_up == 0:
            return now
        if server.free_at <= now:
            self.waiting[port] = Fraction(0)
            return now + server.time_of(op.ack_up)
        ack = op.ack_up // op.packets
        turn = ack + sum(self.packet.get((port, c), 0) for c in self._classes(port))
        self.world.counts["acknowledgement waits for turns"] += 1
        self.world.counts["acknowledgement behind others"] += self.waiting[port] > 0
        self.waiting[port] += op.packets
        in_turn = ceil(self.waiting[port] * turn * PS_PER_US / server.rate)
        behind_all = server.free_at - now + ceil((self._queued(port) + self.waiting[port] * ack) * PS_PER_US / server.rate)
        self.world.counts["acknowledgement behind all that queues"] += behind_all < in_turn
        return now + min(in_turn, behind_all)

    def _queued(self, port: int) -> int:
        """Bytes that queue at the up server of `port`."""
        return sum(item.op.up if item.member < 0 else item.op.response for fifo in self.up[port].fifos for item in fifo)

    def visible(self, port: int, op: Op) -> None:
        """A copy of `op` is visible at `port`."""
        self.left[op.id] = max(self.leave(port, op), self.left.get(op.id, 0))

    def due(self, op: Op, left: int, ack: int) -> int:
        """When the source of `op` knows that all of it is visible, which it is now. The last acknowledgement leaves at `left`."""
        due = max(left, self.world.now) + ack
        if self.take_turns(op):
            due += self.down[op.port].server.time_of(sum(self.down[op.port].held))
        return due


@frozen
class _NetworkConstants:
    """Constants of one network: hop, acknowledgement, bytes of a virtual channel and of an output buffer (0 = infinite)."""

    lat: int
    ack: int
    channel: int
    output: int


class OracleFabric:
    """Links and switch.

    `expose(op)` is called when a train reaches the head of its buffer, `responded(member)` when an up server grants a
    response.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.expose: Callable[[Op], None]
        self.responded: Callable[[int], None]
        program = world.tables.program
        n, classes, n_vcs = program.n_ports, len(program.classes), program.channels[0]
        self.n_ports = n
        nvlink = _NetworkConstants(world.hardware.lat, world.hardware.ack, program.channels[1], world.hardware.output_bytes)
        self.rules = [nvlink] + [_NetworkConstants(net.lat, net.ack, 0, 0) for net in program.nets]
        rates = [world.hardware.rate] * program.n_nodes
        messages = [0] * program.n_nodes
        for net in program.nets:
            of_nodes = [net.rate_of(node) for node in range(program.n_nodes)]
            rates += of_nodes
            messages += [net.message_ps * rate // PS_PER_US for rate in of_nodes]
        self.up = [UpLink(Server(rates[port], message_bytes=messages[port]), [deque() for _ in range(classes)]) for port in range(n)]
        self.down = [
            DownLink(
                Server(rates[port]),
                [[deque() for _ in range(n + 1)] for _ in range(classes)],
                last_source=[-1] * classes,
                held=[0] * classes,
                crossed=[deque() for _ in range(classes)],
            )
            for port in range(n)
        ]
        self.channels: dict[tuple[int, int], VirtualChannels] = defaultdict(lambda: VirtualChannels([deque() for _ in range(n_vcs)], [0] * n_vcs))
        self.tables = tables_of(program, self._pieces())
        self.behind: list[deque[int]] = [deque() for _ in range(program.n_nodes)]
        """Members that wait for a table of their hub, in order of arrival."""
        self.waiting = [0] * program.n_nodes
        """When the last of them goes on."""
        self._turns = [0] * program.n_nodes
        self._n_sent = 0
        self.tail: dict[int, int] = {}
        self.answer_tail: dict[int, int] = {}  # end of a result's last part; copies of requests do not wait for it
        self.copies_left: dict[int, int] = {}
        self._channel_of: dict[int, int] = {}
        self.bulk = BulkOps(world, self.up, self.down, [rule.lat for rule in self.rules], [rule.channel for rule in self.rules])
        self.bulk.queue = self._queue
        self.acks = _Acks(world, self.up, self.down)
        unequal = world.hardware.hashed_links and not any(op.trains > 1 and world.remote(op) for op in world.ops)
        self.lines_up = [Lines(world.hardware) for _ in range(program.n_nodes if unequal else 0)]
        self.lines_down = [Lines(world.hardware) for _ in self.lines_up]

    def _pieces(self) -> Counter[int]:
        """How many trains of each row ask the row table."""
        tables = self.world.tables
        asks = [op for op in tables.ops if op.table >= 0 and op.table == tables.program.row_table]
        return Counter(row for op in asks for member in self.world.remote(op) for row in tables.members[member].rows)

    # ---- up -----------------------------------------------------------------------------------------------

    def send(self, op: Op) -> None:
        """Put the train of `op` in the FIFO of its class at its node."""
        self.up[op.port].fifos[op.cls].append(Outgoing(op))
        self.bulk.joined(op.port, op)

    def _queue(self, op: Op) -> None:
        """A bulk op waits for its next piece."""
        turn_push(self.up[op.port].fifos[op.cls], Outgoing(op), lambda other: other.op.id in self.bulk.of)

    def respond(self, member: int) -> None:
        """Put the response of `member` in the FIFO of the response class at the member's node."""
        op = self.world.op_of(member)
        port = self.world.members[member].port
        self.up[port].fifos[op.response_cls].append(Outgoing(op, member))
        self.bulk.joined(port)

    def grant_up(self, node: int) -> None:
        """Send the next train of a free up server."""
        link = self.up[node]
        if not link.server.idle:
            return
        for cls in round_robin(len(link.fifos), link.last_class):
            if link.fifos[cls] and self._may_go(link.fifos[cls][0]):
                item = link.fifos[cls].popleft()
                link.last_class = self._turn(cls, item.op) if item.member < 0 else cls
                if item.op.id in self.bulk.of:
                    self._send_piece(item.op)
                else:
                    self._send_up(node, link, item)
                return

    def _send_piece(self, op: Op) -> None:
        self.acks.sends(op.port, op.cls, op, op.up)
        piece = self.bulk.send(op)
        if op.id in self._channel_of:  # one train's room, as its trains pass through
            self._channel_of[piece.op.id] = self._channel_of.pop(op.id)
        self.tail[piece.op.id] = piece.sent[-1] + op.stripe_up
        self.world.agenda.add(self.world.now + self.rules[op.net].lat, Event.ARRIVE, op.port, piece.op.id)

    def _turn(self, cls: int, op: Op) -> int:
        """The class after which the next turn begins. A turn of `cls` lasts until the last train of a row."""
        if not op.has_next_train:
            return cls
        self.world.counts["turn of several trains"] += 1
        return cls - 1

    def _may_go(self, item: Outgoing) -> bool:
        """Whether a train may leave. A response has its place in the reduction unit. Other trains reserve space."""
        op, capacity = item.op, self.rules[item.op.net].channel
        if item.member >= 0 or capacity == 0:
            return True
        channels = self.channels[op.port, op.cls]
        v = channels.pick(op.up, capacity)
        if v < 0:
            self.world.counts["channels full"] += 1
            return False
        if op.up > capacity:
            self.world.counts["train above its channel"] += 1
        channels.occupied[v] += op.up
        self._channel_of[op.id] = v
        return True

    def _send_up(self, node: int, link: UpLink, item: Outgoing) -> None:
        world, op = self.world, item.op
        n_bytes, stripe = (op.up, op.stripe_up) if item.member < 0 else (op.response, op.stripe_response)
        self.acks.sends(node, op.cls if item.member < 0 else op.response_cls, op, n_bytes)
        late = link.server.time_of(link.server.debt_at(world.now))
        end = link.server.serve(world.now, n_bytes)
        world.agenda.add(end, Event.UP_END, node, -1)
        tail = self.lines_up[node].send(op, n_bytes, late, world.now) if node < len(self.lines_up) else end + stripe
        tails = self.tail if item.member < 0 else self.answer_tail
        tails[op.id] = max(tails.get(op.id, 0), tail)
        if item.member >= 0 or op.kind not in PULLS:
            world.moves(node % world.tables.program.n_nodes, op.payload)
        if item.member >= 0:
            world.log.member[item.member] = world.now
            world.log.end[op.id] = max(world.log.end[op.id], tail)
            self.responded(item.member)
            return
        world.log.start[op.id] = world.now
        if op.kind not in PULLS:
            world.log.end[op.id] = tail
        world.agenda.add(world.now + self.rules[op.net].lat, Event.ARRIVE, op.port, op.id)

    # ---- switch -------------------------------------------------------------------------------------------

    def arrive(self, op: Op) -> None:
        """The head of a train is in its switch buffer."""
        if op.id not in self._channel_of:
            self.expose(op)
            return
        trains = self.channels[op.port, op.cls].trains[self._channel_of[op.id]]
        trains.append(op)
        if len(trains) == 1:
            self.expose(op)
        else:
            self.world.counts["behind another train"] += 1

    def leave(self, op: Op) -> None:
        """The train of `op` leaves its buffer. The next train is exposed. The source gets the credit one hop later."""
        if op.id not in self._channel_of:
            return
        trains = self.channels[op.port, op.cls].trains[self._channel_of[op.id]]
        trains.popleft()
        if trains:
            self.expose(trains[0])
        self.world.agenda.add(self.world.now + self.rules[op.net].lat, Event.CREDIT, op.port, op.id)

    def credit(self, op: Op) -> None:
        """Buffer space of the train of `op` is back at its source."""
        self.channels[op.port, op.cls].occupied[self._channel_of.pop(op.id)] -= op.up

    def copy_out(self, op: Op, members: list[int], held: int = 0) -> None:
        """The copies of the exposed train of `op` cross to their outputs, or wait there for room. `held`: copies that wait for their gates."""
        self.copies_left[op.id] = self.copies_left.get(op.id, 0) + len(members) + held
        for m in members:
            member = self.world.members[m]
            self._ask(member.port, op.cls, op.port, Incoming(op, m, op.down + member.extra, op.cls))
        if members and self.copies_left[op.id] == 0:
            self.leave(op)

    def let_out(self, op: Op, member: int) -> None:
        """A copy that waited for its gate crosses, or waits for room."""
        self.copies_left[op.id] -= 1
        self.copy_out(op, [member])

    def result_out(self, op: Op, node: int, cls: int, n_bytes: int) -> None:
        """A result of the reduction unit crosses to the output of `node`, or waits there for room."""
        self._ask(node, cls, self.n_ports, Incoming(op, -1, n_bytes, cls))

    def _ask(self, node: int, cls: int, source: int, item: Incoming) -> None:
        link = self.down[node]
        if any(link.fifos[cls]) or not self._has_room(link, item):
            self.world.counts["output buffer full"] += 1
            link.fifos[cls][source].append(item)
        else:
            self._cross(link, item)
        self.bulk.ask(node, item.op)

    def _has_room(self, link: DownLink, item: Incoming) -> bool:
        """Whether the output buffer of the item's class takes the item. An empty buffer takes any."""
        limit, held = self.rules[item.op.net].output, link.held[item.cls]
        return limit == 0 or held == 0 or held + item.n_bytes <= limit

    def _cross(self, link: DownLink, item: Incoming) -> None:
        link.held[item.cls] += item.n_bytes
        link.crossed[item.cls].append(item)
        if item.member >= 0:
            self.copies_left[item.op.id] -= 1

    def _admit(self, node: int, cls: int) -> None:
        """What waits for room in the output buffer of (node, class) crosses, sources round robin, as far as it fits."""
        link = self.down[node]
        while any(link.fifos[cls]):
            source = next(s for s in round_robin(self.n_ports + 1, link.last_source[cls]) if link.fifos[cls][s])
            if not self._has_room(link, link.fifos[cls][source][0]):
                return
            link.last_source[cls] = source
            item = link.fifos[cls][source].popleft()
            self._cross(link, item)
            if item.member >= 0 and self.copies_left[item.op.id] == 0:
                self.leave(item.op)

    # ---- down ---------------------------------------------------------------------------------------------

    def grant_down(self, node: int) -> None:
        """A free down server sends what crossed first in the next class. Classes take turns."""
        link = self.down[node]
        if not link.server.idle:
            return
        for cls in round_robin(len(link.crossed), link.last_class):
            if link.crossed[cls]:
                item = link.crossed[cls].popleft()
                link.last_class = self._turn(cls, item.op) if item.member >= 0 else cls
                self._send_down(node, link, item)
                return

    def _send_down(self, node: int, link: DownLink, item: Incoming) -> None:
        link.sending = item
        if item.member >= 0 and item.op.id in self.bulk.pieces:
            self.world.agenda.add(self.bulk.serve(link, node, item), Event.DOWN_END, node, item.member)
            return
        if node < len(self.lines_down):
            self._send_on_lines(node, link, item)
            return
        sent = link.server.serve(self.world.now, item.n_bytes)
        tails = self.tail if item.member >= 0 else self.answer_tail
        end = link.server.end_not_before(tails[item.op.id] + self.rules[item.op.net].lat)
        self.world.counts["cut-through wait"] += end > sent
        self.world.agenda.add(end, Event.DOWN_END, node, item.op.id if item.member < 0 else item.member)

    def _send_on_lines(self, node: int, link: DownLink, item: Incoming) -> None:
        """The server is free when the links are on average; the copy has left with its last packet, and not before earlier copies."""
        now, op, lines = self.world.now, item.op, self.lines_down[node]
        extra = self.world.members[item.member].extra if item.member >= 0 else 0
        late = link.server.time_of(link.server.debt_at(now)) + link.server.time_of(extra)
        self.world.agenda.add(link.server.serve(now, item.n_bytes), Event.DOWN_FREE, node, -1)
        tails = self.tail if item.member >= 0 else self.answer_tail
        left = lines.send(op, item.n_bytes - extra, late, now)
        left = max(left, tails[op.id] + self.rules[op.net].lat)
        self.world.counts["copy behind an earlier one"] += lines.in_order > left
        lines.in_order = max(left, lines.in_order)
        link.on_lines.append(item)
        self._n_sent += 1
        self.world.agenda.add(lines.in_order, Event.DOWN_END, node, self._n_sent)

    def down_end(self, node: int) -> None:
        """A copy or result has left the switch and its output buffer. Its data is visible one hop later."""
        link, now = self.down[node], self.world.now
        if link.on_lines:
            item = link.on_lines.popleft()
        else:
            assert link.sending is not None
            item, link.sending, link.server.idle = link.sending, None, True
        op = item.op
        if self.bulk.turn_over(node, item):
            turn_push(link.crossed[item.cls], item, lambda other: other.member >= 0 and other.op.id in self.bulk.pieces)
            return
        if item.member < 0:
            self.world.agenda.add(now + self.rules[op.net].lat, Event.RESULT_DELIVERED, op.port, op.id)
        else:
            self._enter_hub(node, op, item.member, now + self.rules[op.net].lat)
        link.held[item.cls] -= item.n_bytes
        self._admit(node, item.cls)

    def _enter_hub(self, node: int, op: Op, member: int, arrival: int) -> None:
        """A copy or request reaches its hub at `arrival` and asks the table of its op, if it has one."""
        known = arrival
        if op.table >= 0:
            known = self.tables[op.table][node].ask(self.world.members[member].rows, arrival)
        if known > arrival:
            self.world.counts["wait for a table"] += 1
            self.world.counts["wait for a row table"] += op.table == self.world.tables.program.row_table
            self.waiting[node] = max(known, self.waiting[node])
            self.world.agenda.add(self.waiting[node], Event.KNOWN, node, self._turns[node])
            self.behind[node].append(member)
            self._turns[node] += 1
        else:
            self._go_on(node, op, member, arrival, Event.RESPOND)

    def _go_on(self, node: int, op: Op, member: int, time: int, respond: Event) -> None:
        if op.kind in PULLS:
            self.world.agenda.add(time + self.world.hardware.responder, respond, node, member)
        else:
            self.world.agenda.add(time, Event.DELIVER, node, member)

    def places_known(self, node: int) -> int:
        """The copy that has waited longest at the hub of `node` goes on. Returns the member of a store, otherwise -1."""
        member = self.behind[node].popleft()
        op = self.world.op_of(member)
        if op.kind not in PULLS:
            return member
        self._go_on(node, op, member, self.world.now, Event.RESPOND_LATE)
        return -1
