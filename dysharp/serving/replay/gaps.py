"""`Gaps`: times between tokens of a run."""

import math


class Gaps:
    """Times between tokens, counted in bins of 1 %."""

    BINS = 100.0

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.sum, self.n = 0.0, 0

    def add(self, us: float, count: int) -> None:
        """`count` tokens came `us` behind the ones before them."""
        key = int(math.log(us) * self.BINS) if us > 1 else 0
        self.counts[key] = self.counts.get(key, 0) + count
        self.sum, self.n = self.sum + us * count, self.n + count

    def at(self, part: float) -> float:
        """A quantile in microseconds, within 1 %."""
        seen = 0
        for key in sorted(self.counts):
            seen += self.counts[key]
            if seen >= part * self.n:
                return math.exp((key + 0.5) / self.BINS)
        return 0.0
