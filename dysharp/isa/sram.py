"""`Sram`: the record of a table on chip, declared beside the state machine of the table in `protocol/`."""

from typing import Final

from dysharp.base import frozen_keywords
from dysharp.isa.fields import Field, Layout

GPU: Final = "GPU"
LSU: Final = "load/store unit"
PEER: Final = "peer of a GPU"
PORT: Final = "switch port"


@frozen_keywords
class Sram:
    """A table on chip. All bits are an estimate: papers give the number of entries, not their fields.

    | field | meaning |
    |---|---|
    | `entry` | fields of an entry |
    | `owner` | what has one such table: `GPU`, `LSU`, `PEER` or `PORT` |
    | `meaning` | what the number of entries counts, in words |
    | `cluster_key` | key of a cluster file with the number of entries, or with the KiB of all entries; "": no key |
    | `entries` | their number where there is no key |
    | `option` | option that sweeps the number at packet level; "": none |
    | `reads`, `writes` | ports: accesses of one cycle |
    """

    entry: Layout
    owner: str
    meaning: str
    cluster_key: str = ""
    entries: int = 0
    option: str = ""
    reads: int = 1
    writes: int = 1

    def bits(self, entries: int) -> int:
        """Bits of `entries` entries."""
        return entries * self.entry.bits


def entry(table: str, **bits: int) -> Layout:
    """The entry of a table: its fields with their bits, from the most significant."""
    return Layout(f"{table} entry", tuple(Field(name, n, name.replace("_", " ")) for name, n in bits.items()))
