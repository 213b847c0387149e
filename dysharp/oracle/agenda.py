"""Pending events in the order of docs/design/0001, Order."""

import heapq
from enum import IntEnum


class Event(IntEnum):
    """Kinds of events, in the order in which they are applied at one instant."""

    COMPUTE_END = 0
    UP_END = 1
    ARRIVE = 2
    DOWN_END = 3
    DELIVER = 4
    RESPOND = 5
    RESULT = 6
    RESULT_DELIVERED = 7
    LOCAL = 8
    ACK = 9
    NOTIFY = 10
    RESPOND_LATE = 11
    CREDIT = 12
    KNOWN = 13
    ISSUER = 14
    DOWN_FREE = 15


class Agenda:
    """A heap of (time, kind, resource, id). `now`: the time of the last event that was taken, in ps."""

    def __init__(self) -> None:
        self.now = 0
        self.n_events = 0
        self._heap: list[tuple[int, int, int, int]] = []
        self._pending: set[tuple[int, int, int, int]] = set()

    def add(self, time: int, kind: Event, resource: int, ident: int) -> None:
        """Schedule an event. A second event with an equal key is dropped."""
        key = (time, int(kind), resource, ident)
        if key not in self._pending:
            self._pending.add(key)
            heapq.heappush(self._heap, key)

    def drop(self, time: int, kind: Event, resource: int, ident: int) -> None:
        """Take a pending event back."""
        self._pending.remove((time, int(kind), resource, ident))

    def due(self) -> bool:
        """Whether an event is pending at `now`."""
        self._forget_dropped()
        return bool(self._heap) and self._heap[0][0] == self.now

    def _forget_dropped(self) -> None:
        while self._heap and self._heap[0] not in self._pending:
            heapq.heappop(self._heap)

    def take(self) -> tuple[Event, int, int] | None:
        """Take the next (kind, resource, id) and set the clock to its time. None: no event is pending."""
        self._forget_dropped()
        if not self._heap:
            return None
        key = heapq.heappop(self._heap)
        self._pending.discard(key)
        self.now, kind, resource, ident = key
        self.n_events += 1
        return Event(kind), resource, ident
