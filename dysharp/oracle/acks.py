"""When the acknowledgements of a push are back at its source (docs/design/0001, Acknowledgements)."""

from fractions import Fraction
from math import ceil

from dysharp.oracle.load import Op
from dysharp.oracle.servers import PS_PER_US, DownLink, UpLink
from dysharp.oracle.world import World


class Acks:
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
            return now + -(-op.ack_up * PS_PER_US // server.rate)
        turn = op.ack_up // op.packets + sum(self.packet.get((port, c), 0) for c in self._classes(port))
        self.world.counts["acknowledgement waits for turns"] += 1
        self.world.counts["acknowledgement behind others"] += self.waiting[port] > 0
        self.waiting[port] += op.packets
        return now + ceil(self.waiting[port] * turn * PS_PER_US / server.rate)

    def visible(self, port: int, op: Op) -> None:
        """A copy of `op` is visible at `port`."""
        self.left[op.id] = max(self.leave(port, op), self.left.get(op.id, 0))

    def due(self, op: Op, left: int, ack: int) -> int:
        """When the source of `op` knows that all of it is visible, which it is now. The last acknowledgement leaves at `left`."""
        due = max(left, self.world.now) + ack
        if self.take_turns(op):
            link = self.down[op.port]
            due += -(-sum(link.held) * PS_PER_US // link.server.rate)
        return due
