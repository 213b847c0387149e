"""Counts of a packet run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """`packets` by kind and hop-less (each packet once per link), `flits` per direction, `tables` by block, `injected` faults that happened.

    `sent` `[GPU]` bytes up and down per GPU, for comparison with a Trace.
    """

    packets: Counter[str] = field(default_factory=Counter)
    flits: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    injected: Counter[str] = field(default_factory=Counter)
    up_bytes: Counter[int] = field(default_factory=Counter)
    down_bytes: Counter[int] = field(default_factory=Counter)
    dump: list[str] = field(default_factory=list)

    def table(self, name: str, **sizes: int) -> Counter[str]:
        """The counters of a block; `sizes` are set, not counted."""
        counts = self.tables.setdefault(name, Counter())
        counts.update({key: value - counts[key] for key, value in sizes.items()})
        return counts
