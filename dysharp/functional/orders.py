"""Pools of possible events. A policy chooses the next event.

Every policy is a legal machine. Tensors must not depend on the policy.
"""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from dysharp.base import ConfigError, entry_of
from dysharp.program import Trace
from dysharp.specs.arguments import fitting

Event = tuple[int, Any]  # (kind, op, member, tile or packet of the event)


class Pool(Protocol):
    """Events that may happen. `add` takes the time of the event from a Trace, else 0."""

    def add(self, event: Event, time: int = 0) -> None: ...
    def pop(self) -> Event: ...
    def __len__(self) -> int: ...


class _NewestPool:
    """Adversary: pops the event that was added last, so early events wait as long as possible."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def add(self, event: Event, time: int = 0) -> None:
        self._events.append(event)

    def pop(self) -> Event:
        return self._events.pop()

    def __len__(self) -> int:
        return len(self._events)


class RandomPool(_NewestPool):
    """Pops any event, with equal chance."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        if fitting("seed", seed, int) < 0:
            raise ConfigError(f"seed: found {seed}, expected 0 or more")
        self._rng = np.random.default_rng(seed)
        self._draws: list[float] = []

    def pop(self) -> Event:
        if not self._draws:
            self._draws = self._rng.random(4096).tolist()
        events = self._events
        i = int(self._draws.pop() * len(events))
        events[i], events[-1] = events[-1], events[i]
        return events.pop()


class _BiasedPool:
    """Adversary: pops events of the kinds `last` only if there is no other event. Other events pop in random order."""

    def __init__(self, seed: int, last: frozenset[int]) -> None:
        self._last = last
        self._now, self._later = RandomPool(seed), RandomPool(seed + 1)

    def add(self, event: Event, time: int = 0) -> None:
        (self._later if event[0] in self._last else self._now).add(event)

    def pop(self) -> Event:
        return self._now.pop() if len(self._now) else self._later.pop()

    def __len__(self) -> int:
        return len(self._now) + len(self._later)


class _TimedPool:
    """The order of a Trace: pops the smallest time first. Events of equal time pop in the order of adding."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Event]] = []
        self._n = 0

    def add(self, event: Event, time: int = 0) -> None:
        self._n += 1
        heapq.heappush(self._heap, (time, self._n, event))

    def pop(self) -> Event:
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)


class _OldestPool(_TimedPool):
    """Pops the event that was added first."""

    def add(self, event: Event, time: int = 0) -> None:
        super().add(event)


def time_in(trace: Trace | None, column: str, ident: int) -> int:
    """The time of an event in a column of a Trace; 0 without a Trace."""
    return 0 if trace is None else int(getattr(trace, column)[ident])


ORDERS = {
    "trace": "the order of the engine's run",
    "random": "any possible event, seeded",
    "oldest": "first possible event first",
    "newest": "adversary: last possible event first",
    "late-delivery": "adversary: transfers move only when no other event is possible",
    "late-completion": "adversary: completions and acknowledgements come only when no other event is possible",
}


def make_pool(order: str, seed: int, trace: Trace | None, deliveries: frozenset[int], completions: frozenset[int]) -> Pool:
    """The pool of an order by name. `deliveries`, `completions`: event kinds that the adversaries hold back.

    Raises ConfigError for an unknown order, for order trace without a Trace, and for another order with one.
    """
    if (order == "trace") != (trace is not None):
        raise ConfigError(f"order {order!r}: found {'no' if trace is None else 'a'} Trace, expected one for order trace only")
    pools: dict[str, Callable[[], Pool]] = {
        "trace": _TimedPool, "oldest": _OldestPool, "newest": _NewestPool, "random": partial(RandomPool, seed),
        "late-delivery": partial(_BiasedPool, seed, deliveries), "late-completion": partial(_BiasedPool, seed, completions),
    }  # fmt: skip
    return entry_of(order, pools, f"order {order!r}: unknown")()
