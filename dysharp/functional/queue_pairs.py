"""Messages of the scale-out in the row path: numbered by queue pair, lost, repeated and reordered where a fault says so."""

from collections import Counter, defaultdict
from enum import Enum, auto

from dysharp.functional.faults import Faults
from dysharp.protocol.delivery import TakenNumbers, overtakes, take

QueuePair = tuple[int, int, int]
"""(network, sender, receiver)."""


class Arrival(Enum):
    """What became of a message on its way."""

    GONE = auto()  # lost, or behind others: it comes later
    TAKEN = auto()  # new, and acknowledged
    UNHEARD = auto()  # new; its acknowledgement is lost, so it comes again
    REPEATED = auto()  # taken before, and acknowledged now


class Messages:
    """The queue pairs of one run. A message is named by the member of the op that it serves."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.injected: Counter[str] = Counter()
        self._number: dict[int, int] = {}
        self._sent: Counter[QueuePair] = Counter()
        self._taken: dict[QueuePair, TakenNumbers] = defaultdict(TakenNumbers)
        self._arrivals = 0

    def send(self, member: int, pair: QueuePair) -> None:
        """Number the message of `member`."""
        self._number[member] = self._sent[pair]
        self._sent[pair] += 1

    def arrive(self, member: int, pair: QueuePair) -> Arrival:
        """The message of `member` reaches the end of its way. GONE, UNHEARD: it must be put on its way again."""
        number, f = self._number[member], self.faults
        self._arrivals += 1
        if self._strikes(f.lose_every, 0):
            self.injected["nic-lose"] += 1
            return Arrival.GONE
        if self._strikes(f.late_every, 1):
            return Arrival.GONE
        overtaken = overtakes(self._taken[pair], number)
        self._taken[pair], new = take(self._taken[pair], number)
        if not new:
            return Arrival.REPEATED
        self.injected["nic-reorder"] += overtaken
        if self._strikes(f.unheard_every, 2):
            self.injected["nic-retry"] += 1
            return Arrival.UNHEARD
        return Arrival.TAKEN

    def _strikes(self, every: int, phase: int) -> bool:
        """Whether a fault of every `every` arrivals happens now. Faults of other phases happen to other arrivals."""
        return bool(every) and self._arrivals % every == phase % every
