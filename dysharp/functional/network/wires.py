"""Links between GPUs and switch planes: every packet is encoded, counted, moved in the order of a pool, and decoded."""

from collections.abc import Callable
from functools import partial
from typing import Any

from dysharp.functional.network.queues import Flight, PacketQueues, Rules, Wire
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.orders import Pool
from dysharp.isa.dump import dump
from dysharp.isa.packets import Packet, decode, encode

# Kinds of events that every user of the links has. MOVE, LOCAL: a packet, or what a GPU sends to itself, arrives.
MOVE, LOCAL = range(2)


class PacketWires:
    """Packets on links. A subclass or a caller registers further kinds of events with `on`.

    `arrived(gpu, packet)` receives packets that nobody answers (`post`). `follows(packet)`: whether `statistics.dump` lists the packet.
    """

    def __init__(
        self,
        pool: Pool,
        arrived: Callable[[int, Packet], None],
        *,
        experts_per_gpu: int = 1,
        n_experts: int = 1,
        follows: Callable[[Packet], bool] | None = None,
        rules: Rules = Rules(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.pool, self.statistics = pool, Statistics()
        self._arrived, self._follows = arrived, follows
        self._experts_per_gpu, self._n_experts = experts_per_gpu, n_experts
        self._queues = PacketQueues(pool)
        self.rules, self._sent = rules, 0
        self._acts: list[Callable[[Any], None]] = [self._move, lambda what: self._queues.take((LOCAL, what))()]

    def on(self, kind: int, act: Callable[[Any], None]) -> None:
        """`act(what)` is called when an event `(kind, what)` of the pool happens; kinds are registered in ascending order."""
        assert kind == len(self._acts), f"kind {kind} is registered out of order"
        self._acts.append(act)

    def step(self) -> None:
        """One event of the pool happens."""
        self.act(*self.pool.pop())

    def act(self, kind: int, what: Any) -> None:
        """An event of the pool happens."""
        self._acts[kind](what)

    def post(self, packet: Packet, home: int, plane: int, lane: Any) -> None:
        """Send a packet that nobody answers from its source to GPU `home` through `plane`. What a GPU sends to itself is no packet on a wire; it
        arrives in the order of its `lane`."""
        if packet.source == home:
            self._queues.put((LOCAL, (home, lane)), partial(self._arrived, home, packet))
        else:
            self._send(Wire(True, packet.source, plane, int(packet.channel)), packet, home=home)

    def _send(self, wire: Wire, packet: Packet, *, history: Any = (), home: int = -1, due: int = 0) -> None:
        if not self.rules.order:
            self._sent += 1
            wire = wire._replace(nth=self._sent)
        data = encode(packet, experts=self._n_experts)
        self.statistics.count(packet.op, wire.up, wire.gpu, len(data))
        if self._follows and self._follows(packet):
            ends = (f"GPU {wire.gpu}", f"switch port {wire.plane}")
            begin, end = ends if wire.up else ends[::-1]
            self.statistics.dump.append(f"--- {begin} to {end}\n{dump(packet)}")
        self._queues.put((MOVE, wire), Flight(data, history, home), due)

    def _move(self, wire: Wire) -> None:
        """The head of a wire arrives."""
        flight: Flight = self._queues.take((MOVE, wire))
        packet = decode(flight.data, local_experts=self._experts_per_gpu, experts=self._n_experts)
        if flight.home < 0:
            self._routed(wire, packet, flight.history)
        elif wire.up:
            self._send(wire._replace(up=False, gpu=flight.home), packet, home=flight.home)
        else:
            self._arrived(wire.gpu, packet)

    def _routed(self, wire: Wire, packet: Packet, history: Any) -> None:
        """A packet of a transaction arrives at a switch or a GPU."""
        raise NotImplementedError
