"""Counts of a packet run."""

from collections import Counter
from dataclasses import dataclass, field

from dysharp.isa.commands import FLIT_BYTES, RULES, Command

TABLES = ("al_tlb", "ts", "reduction", "or", "multimemq")  # in the order in which they are printed


@dataclass(slots=True)
class Statistics:
    """Counts of a run of the network.

    | field | counts |
    |---|---|
    | `packets` | packets by kind, once per link they cross |
    | `flits` | flits by direction, `up` and `down` |
    | `up_bytes`, `down_bytes` | bytes by GPU, as `Trace.up_busy` and `Trace.down_busy` |
    | `tables` | per block: size, and events by kind |
    | `injected` | faults that happened, by kind |
    | `dump` | packets of the followed token, as text |
    """

    packets: Counter[str] = field(default_factory=Counter)
    flits: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in TABLES})
    injected: Counter[str] = field(default_factory=Counter)
    up_bytes: Counter[int] = field(default_factory=Counter)
    down_bytes: Counter[int] = field(default_factory=Counter)
    dump: list[str] = field(default_factory=list)

    def table(self, name: str, **sizes: int) -> Counter[str]:
        """The counters of a block; `sizes` are set, not counted."""
        counts = self.tables.setdefault(name, Counter())
        counts.update({key: value - counts[key] for key, value in sizes.items()})
        return counts

    def count(self, op: Command, up: bool, gpu: int, n_bytes: int) -> None:
        """A packet of `n_bytes` enters the link of `gpu`, towards the switch (`up`) or away from it."""
        self.packets[RULES[op].name] += 1
        self.flits["up" if up else "down"] += n_bytes // FLIT_BYTES
        (self.up_bytes if up else self.down_bytes)[gpu] += n_bytes
