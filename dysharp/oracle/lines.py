"""Unequal links: each link of a port has its own time (docs/design/0001, Unequal links)."""

from dysharp.oracle.load import Op
from dysharp.oracle.servers import PS_PER_US
from dysharp.program.tables import Hardware


class Lines:
    """The links of one direction of one node."""

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
        used = [(first_link(op, self.n) + c) % self.n for c in range(op.packets)]
        for link in used:
            self.busy_until[link] += packet_ps
        return max(self.busy_until[link] for link in used)


def first_link(op: Op, n_links: int) -> int:
    """A hash of the key of `op`, or of its id where it has none."""
    word, low = op.key if op.key >= 0 else op.id, (1 << 32) - 1
    word = word * 0x9E3779B1 & low
    word ^= word >> 15
    word = word * 0x2C1B3C6D & low
    word ^= word >> 12
    word = word * 0x297A2D39 & low
    word ^= word >> 15
    return word % n_links
