"""Load/store units: an instruction waits for its target list, leaves, and is outstanding until it is done.

A request may be sent again.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Generic

from dysharp.base import EmulationMismatch
from dysharp.functional.network.core import LIST, RETRY, Network
from dysharp.functional.network.transaction import T
from dysharp.protocol import lsu

NO_QUEUE = 1 << 30  # plain stores and loads do not pass the MultimemQ


class LoadStoreUnits(Generic[T]):
    """The units of all GPUs. `send(t, attempt)`: the request of `t` leaves; `done(t)`: `t` is complete.

    `entries`: entries of the MultimemQ, the limit on instructions that wait for a target list. `duplicate_every` n > 0:
    every n-th request to another GPU is sent again with the next attempt number.
    """

    def __init__(self, network: Network[T], entries: int, duplicate_every: int, send: Callable[[T, int], None], done: Callable[[T], None]) -> None:
        self._network, self._duplicate_every, self._send, self._done = network, duplicate_every, send, done
        self._states = [{True: lsu.empty(entries), False: lsu.empty(NO_QUEUE)} for _ in range(network.n_gpus)]
        self._refused: dict[int, deque[T]] = defaultdict(deque)
        self._n_lists = 0
        self._counts = network.statistics.table("multimemq", entries=entries)
        network.on(LIST, self._list_arrived)
        network.on(RETRY, self._retry)

    def enter(self, t: T) -> None:
        """An instruction is executed. A full MultimemQ refuses the instruction until the next list has arrived."""
        self._step(t, lsu.Enter(t.tag, t.n_targets))

    def finish(self, t: T) -> None:
        """All contributions of `t` have arrived."""
        self._step(t, lsu.Finish(t.tag))

    def waiting(self, gpu: int) -> Iterator[str]:
        """One phrase per instruction that is outstanding."""
        for state in self._states[gpu].values():
            for tag in state.outstanding:
                yield f"GPU {gpu} tag {tag} outstanding"

    def _list_arrived(self, t: T) -> None:
        self._network.open(t)
        self._step(t, lsu.ListArrived(t.tag))
        if t.listed and self._refused[t.source]:
            self.enter(self._refused[t.source].popleft())
        self._n_lists += 1
        if self._duplicate_every and t.n_far and self._n_lists % self._duplicate_every == 0:
            self._network.pool.add((RETRY, t))

    def _retry(self, t: T) -> None:
        self._network.statistics.injected["duplicate"] += t.tag in self._states[t.source][t.listed].outstanding
        self._step(t, lsu.Retry(t.tag))

    def _step(self, t: T, event: lsu.Event) -> None:
        states = self._states[t.source]
        states[t.listed], outputs = lsu.step(states[t.listed], event)
        if t.listed:
            self._counts["peak"] = max(self._counts["peak"], len(states[True].queue))
        for out in outputs:
            self._act(t, out)

    def _act(self, t: T, out: lsu.Output) -> None:
        if isinstance(out, lsu.FetchList):
            self._network.pool.add((LIST, t))
        elif isinstance(out, lsu.Send):
            self._send(t, out.attempt)
        elif isinstance(out, lsu.Done):
            self._done(t)
        elif isinstance(out, lsu.Refused):
            self._counts["refused"] += 1
            self._refused[t.source].append(t)
        else:
            raise EmulationMismatch(f"GPU {t.source} tag {t.tag}: found no attempt number left, expected fewer retries")
