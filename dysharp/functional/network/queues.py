"""The wires: one queue of packed packets per link, direction and virtual channel. What shares a queue stays in order, nothing else does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dysharp.functional.network.statistics import Statistics
from dysharp.isa.commands import FLIT_BYTES, RULES
from dysharp.isa.dump import dump
from dysharp.isa.packets import Packet, encode


@dataclass(frozen=True, slots=True)
class Flight:
    """A packet on a wire: its bytes, and how its payload was added up (for the record only; receivers see the bytes)."""

    data: bytes
    ghost: Any
    tag: int


@dataclass(frozen=True, slots=True)
class Wire:
    """`up`: GPU to switch plane, else plane to GPU."""

    up: bool
    gpu: int
    plane: int
    channel: int


class Channels:
    """All queues. `moved(id, tag)` is told about every queue that has a new head."""

    def __init__(self, statistics: Statistics, moved: Callable[[int, int], None], follow: Callable[[Packet], bool]) -> None:
        self._queues: list[deque[Flight]] = []
        self.wires: list[Wire] = []
        self._ids: dict[Wire, int] = {}
        self._statistics, self._moved, self._follow = statistics, moved, follow

    def send(self, up: bool, gpu: int, plane: int, packet: Packet, ghost: Any = None) -> None:
        """Put a packet on the wire between `gpu` and `plane`."""
        data = encode(packet)
        wire = Wire(up, gpu, plane, int(packet.channel))
        ident = self._ids.setdefault(wire, len(self._queues))
        if ident == len(self._queues):
            self._queues.append(deque())
            self.wires.append(wire)
        self._count(wire, packet, len(data))
        queue = self._queues[ident]
        queue.append(Flight(data, ghost, packet.tag))
        if len(queue) == 1:
            self._moved(ident, packet.tag)

    def take(self, ident: int) -> tuple[Wire, Flight]:
        """The head of a queue arrives."""
        queue = self._queues[ident]
        flight = queue.popleft()
        if queue:
            self._moved(ident, queue[0].tag)
        return self.wires[ident], flight

    def _count(self, wire: Wire, packet: Packet, n_bytes: int) -> None:
        s = self._statistics
        s.packets[RULES[packet.op].name] += 1
        s.flits["up" if wire.up else "down"] += n_bytes // FLIT_BYTES
        (s.up_bytes if wire.up else s.down_bytes)[wire.gpu] += n_bytes
        if self._follow(packet):
            ends = (f"GPU {wire.gpu}", f"switch port {wire.plane}")
            begin, end = ends if wire.up else ends[::-1]
            s.dump.append(f"--- {begin} to {end}\n{dump(packet)}")
