"""One link direction of one node: its time, its debt, and round robin (docs/design/0001)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

PS_PER_US = 1_000_000


def round_robin(n: int, last: int) -> Iterator[int]:
    """0 .. n - 1 in cyclic order, beginning after `last` (-1: at 0)."""
    return ((last + 1 + i) % n for i in range(n))


@dataclass(slots=True)
class Server:
    """Rounds once per busy period. Times in ps, sizes in bytes; `total`: all bytes put here, debts too."""

    rate: int
    idle: bool = True
    free_at: int = 0
    busy_start: int = 0
    busy_bytes: int = 0
    debt: int = 0
    total: int = 0

    def owe(self, n_bytes: int) -> None:
        """Small packets that need no event of their own: they delay the next train."""
        self.debt += n_bytes
        self.total += n_bytes

    def serve(self, now: int, n_bytes: int) -> int:
        """Send `n_bytes` from now on; the time of the last byte."""
        gap = now - self.free_at
        if gap > 0:
            self.busy_start, self.busy_bytes = now, 0
            # What was owed had the idle time to go.
            self.debt = max(0, self.debt - gap * self.rate // PS_PER_US)
        self.busy_bytes += self.debt + n_bytes
        self.debt = 0
        self.total += n_bytes
        self.idle = False
        self.free_at = self.busy_start + -(-self.busy_bytes * PS_PER_US // self.rate)
        return self.free_at

    def end_not_before(self, time: int) -> int:
        """Cut-through: the last byte cannot leave before it has come in."""
        if self.free_at < time:
            self.free_at = self.busy_start = time
            self.busy_bytes = 0
        return self.free_at


@dataclass(slots=True)
class Memory:
    """Bandwidth of one node's memory (`rate` bytes per microsecond, 0 = not shared): first come, first served; rounds every time."""

    rate: int
    given_until: int = 0

    def read_or_write(self, now: int, n_bytes: int) -> int:
        """The time at which these bytes, behind all others, have gone."""
        if self.rate > 0:
            self.given_until = max(self.given_until, now) + -(-n_bytes * PS_PER_US // self.rate)
        return self.given_until


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an up server sends: an op's train, or the response of one member (`member` >= 0)."""

    op: int
    member: int = -1


@dataclass(slots=True)
class UpLink:
    """The up server of a node and its FIFO per class."""

    server: Server
    fifos: list[deque[Outgoing]]
    last_class: int = -1


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a down server sends: the copy for one member, or a result (`member` -1)."""

    op: int
    member: int
    n_bytes: int


@dataclass(slots=True)
class DownLink:
    """The down server of a node: FIFOs per class and source, the last source being the reduction unit."""

    server: Server
    fifos: list[list[deque[Incoming]]]
    last_class: int = -1
    last_source: list[int] = field(default_factory=list)
    sending: Incoming | None = None


@dataclass(slots=True)
class Channels:
    """The virtual channels of one (source, class): trains in the switch, and bytes reserved by the source."""

    trains: list[deque[int]]
    occupied: list[int]

    def pick(self, n_bytes: int, capacity: int) -> int:
        """The least occupied channel if it can take a train, else -1. An empty channel takes any train."""
        v = min(range(len(self.occupied)), key=lambda i: (self.occupied[i], i))
        return v if self.occupied[v] == 0 or self.occupied[v] + n_bytes <= capacity else -1
