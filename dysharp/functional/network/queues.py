"""Packets in flight: one FIFO per link, direction and virtual channel.

Packets in different queues overtake each other.
"""

from collections import deque
from typing import Any, NamedTuple

from dysharp.base import frozen
from dysharp.functional.orders import Event, Pool


class Wire(NamedTuple):
    """A virtual channel of the link between a GPU and a switch plane. `up`: GPU to plane, else plane to GPU. `nth`: packet, where none waits for
    another (`Rules.order`)."""

    up: bool
    gpu: int
    plane: int
    channel: int
    nth: int = 0


@frozen
class Rules:
    """Rules of the memory model (docs/memory-model.md). A litmus run deletes one and shows what it forbids.

    `fence`: what follows a fence leaves when all before it is done. `done`: a store is done when its targets have it. `order`: packets of one
    wire stay in order. `trap`: a load of bytes that nobody wrote raises IsaError.
    """

    fence: bool = True
    done: bool = True
    order: bool = True
    trap: bool = True


@frozen
class Flight:
    """A packet on a wire. `history`: expression of its payload, for the record only. Receivers see `data`.

    `home`: destination GPU of a notification, which the packet's fields do not name.
    """

    data: bytes
    history: Any = ()
    home: int = -1


class PacketQueues:
    """Queues between the parts of the network. The head of each queue is an event of `pool`, with the queue's name."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._queues: dict[Event, deque[tuple[Any, int]]] = {}

    def put(self, event: Event, item: Any, time: int = 0) -> None:
        """Append `item`, which may be taken at `time` (orders without times ignore it)."""
        queue = self._queues.get(event)
        if queue is None:
            self._queues[event] = deque(((item, time),))
            self._pool.add(event, time)
        else:
            queue.append((item, time))

    def take(self, event: Event) -> Any:
        """Remove the head of the queue of `event`; the next item's event is added to the pool."""
        queue = self._queues[event]
        item, _ = queue.popleft()
        if queue:
            self._pool.add(event, queue[0][1])
        else:
            del self._queues[event]
        return item
