"""Counts of a packet run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """`packets` by kind, once per link they cross; `flits` per direction; `tables` by block; `injected`: faults that really happened.

    `up_bytes`, `down_bytes`: by GPU, as `Trace.up_busy` and `Trace.down_busy`; `dump`: the followed token's packets as text.
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
