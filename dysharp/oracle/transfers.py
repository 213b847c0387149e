"""Transfers from issue to completion: acknowledgements, responses, results (docs/design/0001), sessions (0002)."""

from dataclasses import dataclass, field

from dysharp.oracle.depend import Dependencies
from dysharp.oracle.fabric import OracleFabric
from dysharp.oracle.hub_table import Places
from dysharp.oracle.load import PULLS, Op
from dysharp.oracle.stores import RunRegions
from dysharp.oracle.world import Event, World
from dysharp.program import Head, Kind, Tail
from dysharp.protocol.merging import Forward


@dataclass(slots=True)
class _Session:
    """One in-switch session: its contributions, the time of their last byte; of loads the last byte of the latest response.

    `passes`: it has no place in the switch, so its contributions pass one by one; `delivered`: how many have arrived.
    """

    expected: int
    ops: list[Op] = field(default_factory=list)
    tail: int = 0
    passes: bool = False
    delivered: int = 0


class TransferOps:
    """All ops that send data or requests."""

    def __init__(self, world: World, fabric: OracleFabric, stores: RunRegions, dependencies: Dependencies) -> None:
        self.world, self.fabric, self.stores, self.dependencies = world, fabric, stores, dependencies
        self.parts_left: dict[int, int] = {}  # pushes: deliveries; pulls: LOCALs and the result
        self.responses_left: dict[int, int] = {}
        self._held_responses: set[int] = set()
        sessions = world.tables.program.sessions
        self._home: list[int] = [] if sessions is None else sessions.home.tolist()
        self._sessions = [] if sessions is None else [_Session(n) for n in sessions.expected.tolist()]
        self._gated: dict[int, list[int]] = {}
        """Copies that wait for the gate of a session, in the order of exposure."""
        self._opening: list[int] = []
        self.places = Places(world)

    def issue(self, op: Op) -> None:
        """`op` starts. Hub and memory serve its local members, links and switch its remote members."""
        world, local, remote = self.world, self.world.local(op), self.world.remote(op)
        for m in local:
            world.agenda.add(world.now + world.hardware.local, Event.LOCAL, op.port, m)
        one_answer = op.kind in PULLS and bool(remote)
        self.parts_left[op.id] = len(local) + (1 if one_answer else len(remote))
        self.responses_left[op.id] = len(remote)
        if remote:
            self.fabric.send(op)
            return
        world.log.start[op.id] = world.log.end[op.id] = world.now
        if not local:
            world.complete(op)

    # ---- pushes -------------------------------------------------------------------------------------------

    def deliver(self, member: int) -> None:
        """A copy is visible at its member, which acknowledges it."""
        op, to = self.world.op_of(member), self.world.members[member]
        if (piece := self.fabric.bulk.pieces.pop(op.id, None)) is not None:
            if self.fabric.bulk.delivered(piece):
                whole = piece.bulk.op
                self._arrived(whole, whole.members[0])
                self.world.agenda.add(self.world.now + self.fabric.rules[whole.net].ack, Event.ACK, whole.port, whole.id)
            return
        self.world.moves(to.node, op.payload)
        self._arrived(op, member)
        self.fabric.up[to.port].server.owe(op.ack_up)
        self.fabric.acks.visible(to.port, op)
        self._part(op)

    def known(self, member: int) -> None:
        """The places of a copy's rows are known: a store (`member` >= 0) is visible."""
        if member >= 0:
            self.deliver(member)

    def local(self, member: int) -> None:
        """A member on the op's own node was served."""
        op = self.world.op_of(member)
        self.world.moves(op.node, op.payload)
        self._arrived(op, member)
        self._part(op)

    def _arrived(self, op: Op, member: int) -> None:
        self.world.delivered(op, member)
        if op.kind not in PULLS and self._is_whole(op):
            self.stores.fill(self.world.members[member].rows, op.payload, op.id)

    def _is_whole(self, op: Op) -> bool:
        """Whether the rows have what they need of `op`: contributions without a place in the switch fill them together."""
        if op.kind is not Kind.PUSH_REDUCE or not self.world.remote(op):
            return True
        session = self._sessions[op.session]
        session.delivered += 1
        return session.delivered == session.expected

    def _part(self, op: Op) -> None:
        """A delivery, the result or a member on the own node; the last one ends a pull, and a push once its source knows."""
        self.parts_left[op.id] -= 1
        if self.parts_left[op.id] > 0:
            return
        if op.kind in PULLS or not self.world.remote(op):
            self.world.complete(op)
        else:
            self._acknowledge(op, self.fabric.acks.left[op.id])

    def _acknowledge(self, op: Op, left: int) -> None:
        """All of `op` is visible, and its last acknowledgement leaves its member at `left`."""
        self.world.agenda.add(self.fabric.acks.due(op, left, self.fabric.rules[op.net].ack), Event.ACK, op.port, op.id)
        self.fabric.down[op.port].server.owe(op.ack_down)

    # ---- pulls --------------------------------------------------------------------------------------------

    def respond(self, member: int) -> None:
        """A responder has read its memory. Its response may wait for edges."""
        if self.dependencies.waits[Head.MEMBER_RESPOND, member] > 0:
            self._held_responses.add(member)
        else:
            self.fabric.respond(member)

    def may_respond(self, member: int) -> None:
        """The last edge to the response of `member` fell."""
        if member in self._held_responses:
            self._held_responses.discard(member)
            self.fabric.respond(member)

    def responded(self, member: int) -> None:
        """An up server granted the response of `member`."""
        op = self.world.op_of(member)
        self.world.fire(Tail.MEMBER_DELIVERED, member, op.id)
        self.responses_left[op.id] -= 1
        if self.responses_left[op.id] == 0:
            self.world.agenda.add(self.world.now + self.fabric.rules[op.net].lat, Event.RESULT, op.port, op.id)

    def result(self, op: Op) -> None:
        """All contributions of a pull are in the switch, or the answer to a merged load is."""
        if op.kind is not Kind.MERGED_LOAD:
            self.fabric.result_out(op, op.port, op.response_cls, op.result)
            return
        tail = self.fabric.answer_tail[op.id]
        if op.id in self.places.merging:
            self._sessions[op.session].tail = tail
        for answered in self.places.response(op, self._home[op.session]):
            self._answer(self.world.ops[answered], tail, answered == op.id)

    def result_delivered(self, op: Op) -> None:
        """A result is visible: at the source of a pull, or at the home of reducing pushes."""
        if op.kind is Kind.PUSH_REDUCE:
            self.world.moves(self._home[op.session], op.payload)
            self._reduced(op)
        else:
            self.world.moves(op.node, op.payload)
            self._part(op)

    # ---- merging in the switch ----------------------------------------------------------------------------

    def expose(self, op: Op) -> None:
        """The train of `op` is at the head of its buffer."""
        if op.kind is Kind.PUSH_REDUCE:
            self._contribute(op)
        elif op.kind is Kind.MERGED_LOAD:
            self._ask(op)
        else:
            self._pass_gates(op, self.world.remote(op))

    def _pass_gates(self, op: Op, members: list[int]) -> None:
        """Copies of `op` ask for their outputs, but for those whose gate is closed."""
        gate = {m: op.gate + self.world.members[m].node for m in members if op.gate >= 0}
        held = [m for m in members if m in gate and not self._is_open(gate[m])]
        for m in held:
            self._gated.setdefault(gate[m], []).append(m)
            self.world.counts["copy at a closed gate"] += 1
        self.fabric.copy_out(op, [m for m in members if m not in held], len(held))

    def _is_open(self, gate: int) -> bool:
        """Whether the sums of the gate's node and of the node behind it are complete, so that every node is ready, this one too."""
        node, n = self._home[gate], self.world.tables.program.n_nodes
        both = self._sessions[gate], self._sessions[gate - node + (node + 1) % n]
        return all(len(one.ops) == one.expected for one in both)

    def open_gates(self) -> None:
        """Behind everything else of an event: gates whose sums it completed let their copies out."""
        while self._opening:
            gate = self._opening.pop(0)
            for m in self._gated.pop(gate) if gate in self._gated and self._is_open(gate) else ():
                self.fabric.let_out(self.world.op_of(m), m)

    def _contribute(self, op: Op) -> None:
        """A contribution is added at line rate, or passes. The sum leaves after the last contribution and carries its id."""
        session, home = self._sessions[op.session], self._home[op.session]
        if not session.ops and not session.passes:
            session.passes = not self.places.take(home)
            self.world.counts["sum without a place" if session.passes else "sum with a place"] += 1
        if session.passes:
            self.fabric.copy_out(op, self.world.remote(op))
            return
        session.ops.append(op)
        session.tail = max(session.tail, self.fabric.tail[op.id])
        if len(session.ops) == session.expected:
            self.fabric.answer_tail[op.id] = session.tail
            self.fabric.result_out(op, home, op.cls, op.down)
            self._opening += [op.session, op.session - home + (home - 1) % self.world.tables.program.n_nodes]
        self.fabric.leave(op)

    def _reduced(self, last: Op) -> None:
        """The sum is visible at its home. The home sends one acknowledgement, and every contributor gets one."""
        self.stores.fill(self.world.members[last.members[0]].rows, last.payload, last.id)
        self.fabric.up[self._home[last.session]].server.owe(last.ack_up)
        left = self.fabric.acks.leave(self._home[last.session], last)
        self.places.give(self._home[last.session])
        for op in self._sessions[last.session].ops:
            self.world.delivered(op, op.members[0])
            self._acknowledge(op, left)

    def _ask(self, op: Op) -> None:
        """A load is at the head of its buffer: it goes on to the home, waits for the response to an equal load, or is answered."""
        out = self.places.load(op, self._home[op.session])
        if isinstance(out, Forward):
            self.fabric.copy_out(op, self.world.remote(op))
            return
        if out is not None:
            self._answer(op, self._sessions[op.session].tail, False)
        self.fabric.leave(op)

    def _answer(self, op: Op, tail: int, asked: bool) -> None:
        """`op` gets the response whose last byte left its home at `tail`. `asked`: the response is to its own request."""
        if not asked:
            self.fabric.answer_tail[op.id] = tail
            self.world.log.end[op.id] = self.world.now
            self.world.delivered(op, op.members[0])
        self.fabric.result_out(op, op.node, op.response_cls, op.result)
