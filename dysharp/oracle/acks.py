"""When the acknowledgements of a push are back at its source (docs/design/0001, Acknowledgements)."""

from dysharp.oracle.load import Op
from dysharp.oracle.servers import PS_PER_US, DownLink, UpLink
from dysharp.oracle.world import World


class Acks:
    """Acknowledgements that take turns with packets of rows. Where they overtake rows, they wait for nothing."""

    def __init__(self, world: World, up: list[UpLink], down: list[DownLink]) -> None:
        self.world, self.up, self.down = world, up, down
        self.hub_free = [0] * len(up)
        self.packet: dict[tuple[int, int], int] = {}
        """Bytes of a packet of the train that a port sent last, by class."""
        self.sent_class = [0] * len(up)
        self.left: dict[int, int] = {}
        """When the last acknowledgement of a push so far leaves its member."""

    def sends(self, port: int, cls: int, op: Op, n_bytes: int) -> None:
        """The up server of `port` sends a train of `op`."""
        self.packet[port, cls] = n_bytes // op.packets
        self.sent_class[port] = cls

    def take_turns(self, op: Op) -> bool:
        """Whether the acknowledgements of `op` wait."""
        return self.world.hardware.ack_turns and op.net == 0

    def leave(self, port: int, op: Op) -> int:
        """When the acknowledgements of a copy that is visible at `port` now have left its hub."""
        now, link = self.world.now, self.up[port]
        if not self.take_turns(op) or op.ack_up == 0:
            return now
        classes = {c for c, fifo in enumerate(link.fifos) if fifo} | {self.sent_class[port]} if link.server.free_at > now else set()
        turn = sum(self.packet.get((port, c), 0) for c in classes)
        self.world.counts["acknowledgement waits for turns"] += turn > 0
        self.world.counts["acknowledgement behind others"] += self.hub_free[port] > now
        n_bytes = op.packets * turn + op.ack_up
        self.hub_free[port] = max(self.hub_free[port], now) + -(-n_bytes * PS_PER_US // link.server.rate)
        return self.hub_free[port]

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
