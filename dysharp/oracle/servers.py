"""Servers of link directions, virtual channels, round robin, and unequal links (docs/design/0001)."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dysharp.base import frozen
from dysharp.oracle.load import Op
from dysharp.program import Hardware

PS_PER_US = 1_000_000


def round_robin(n: int, last: int) -> Iterator[int]:
    """0 .. n - 1 in cyclic order. The first number is the one after `last` (-1: 0)."""
    return ((last + 1 + i) % n for i in range(n))


@dataclass(slots=True)
class Server:
    """One link direction of one node. Times in ps, sizes in bytes. It rounds once per busy period.

    `debt`: bytes of small packets that delay the next train. `total`: all bytes sent, debts included. `message_bytes`: bytes
    that pass in the fixed time of one train.
    """

    rate: int
    idle: bool = True
    free_at: int = 0
    busy_start: int = 0
    busy_bytes: int = 0
    debt: int = 0
    total: int = 0
    message_bytes: int = 0

    def time_of(self, n_bytes: int) -> int:
        """The time of `n_bytes`, rounded up."""
        return -(-n_bytes * PS_PER_US // self.rate)

    def owe(self, n_bytes: int) -> None:
        """Add bytes of small packets. They have no event. They delay the next train."""
        self.debt += n_bytes
        self.total += n_bytes

    def debt_at(self, now: int) -> int:
        """The debt that is left when the server begins to send at `now`: some of it was sent during idle time."""
        return max(0, self.debt - max(0, now - self.free_at) * self.rate // PS_PER_US)

    def serve(self, now: int, n_bytes: int, messages: int = 1) -> int:
        """Send `n_bytes` in `messages` from `now` on. Returns the time of the last byte."""
        if now > self.free_at:
            self.busy_start, self.busy_bytes = now, 0
        self.busy_bytes += self.debt_at(now) + n_bytes + messages * self.message_bytes
        self.debt = 0
        self.total += n_bytes
        self.idle = False
        self.free_at = self.busy_start + self.time_of(self.busy_bytes)
        return self.free_at

    def end_not_before(self, time: int) -> int:
        """Cut-through: the last byte cannot leave before it comes in at `time`. Returns the time of the last byte."""
        if self.free_at < time:
            self.free_at = self.busy_start = time
            self.busy_bytes = 0
        return self.free_at


@frozen
class Outgoing:
    """An item of an up server: the train of an op, or the response of one member (`member` >= 0)."""

    op: Op
    member: int = -1


@dataclass(slots=True)
class UpLink:
    """The up server of a node and its FIFO per class."""

    server: Server
    fifos: list[deque[Outgoing]]
    last_class: int = -1


@frozen
class Incoming:
    """An item of a down server: the copy for one member, or a result (`member` -1)."""

    op: Op
    member: int
    n_bytes: int
    cls: int


@dataclass(slots=True)
class DownLink:
    """The down server of a node and its output buffer.

    `fifos`: what waits for room, by class and source; the last source is the reduction unit. `crossed`: what has room,
    by class and in the order of crossing. `on_lines`: what unequal links send. `held`: bytes of each class in the buffer.
    """

    server: Server
    fifos: list[list[deque[Incoming]]]
    last_source: list[int]
    held: list[int]
    crossed: list[deque[Incoming]]
    last_class: int = -1
    sending: Incoming | None = None
    on_lines: deque[Incoming] = field(default_factory=deque)


@dataclass(slots=True)
class VirtualChannels:
    """The virtual channels of one (source, class): trains in the switch, and bytes that the source has reserved."""

    trains: list[deque[Op]]
    occupied: list[int]

    def pick(self, n_bytes: int, capacity: int) -> int:
        """The least occupied channel if it has room for the train, otherwise -1. An empty channel takes any train."""
        v = min(range(len(self.occupied)), key=lambda i: (self.occupied[i], i))
        return v if self.occupied[v] == 0 or self.occupied[v] + n_bytes <= capacity else -1


class Lines:
    """The links of one direction of one node: each has its own time (docs/design/0001, Unequal links)."""

    def __init__(self, hardware: Hardware) -> None:
        self.n, self.rate = hardware.n_links, hardware.rate
        self.busy_until = [0] * self.n
        self.in_order = 0
        """When the last copy that a down server sent has left all links."""

    def send(self, op: Op, n_bytes: int, late: int, now: int) -> int:
        """Send the packets of `op`, `n_bytes` in all, one after the other from the first link on. Returns when the last has left.

        `late`: time that every link needs for other bytes first.
        """
        packet_ps = -(-(n_bytes // op.packets) * self.n * PS_PER_US // self.rate)
        self.busy_until = [max(time, now) + late for time in self.busy_until]
        used = [(_first_link(op, self.n) + c) % self.n for c in range(op.packets)]
        for link in used:
            self.busy_until[link] += packet_ps
        return max(self.busy_until[link] for link in used)


def _first_link(op: Op, n_links: int) -> int:
    """A hash of the key of `op`, or of its id where it has none."""
    word, low = op.key if op.key >= 0 else op.id, (1 << 32) - 1
    word = word * 0x9E3779B1 & low
    word ^= word >> 15
    word = word * 0x2C1B3C6D & low
    word ^= word >> 12
    word = word * 0x297A2D39 & low
    word ^= word >> 15
    return word % n_links
