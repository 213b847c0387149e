"""Packets in flight: one FIFO per link, direction and virtual channel.

Packets in different queues overtake each other.
"""

from collections import deque
from typing import Any, NamedTuple

from dysharp.base.values import frozen
from dysharp.functional.orders import Event, Pool


class Wire(NamedTuple):
    """A virtual channel of the link between a GPU and a switch plane. `up`: GPU to plane, else plane to GPU."""

    up: bool
    gpu: int
    plane: int
    channel: int


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
