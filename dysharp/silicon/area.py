"""SRAM of tables from their records (`isa.sram.Sram`): an estimate, not a synthesis. Logic, CAM cells and wires are not in it.

From gates and bits to square millimetres, with a spread. Sources: docs/rtl.md, "Area".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dysharp.base import Amounts
from dysharp.isa.sram import Sram
from dysharp.protocol.aau import APT, RAT
from dysharp.protocol.al_table import AL_TLB, MISS_REGISTERS
from dysharp.protocol.dam import TILE_COUNTER
from dysharp.protocol.lsu import MULTIMEMQ
from dysharp.protocol.readiness import OUTPUT_READINESS
from dysharp.protocol.reduction import REDUCTION_BUFFER
from dysharp.protocol.rpm import PARTITION
from dysharp.protocol.tracker import TILE_STATUS
from dysharp.specs import Cluster, choice_int, file_values


class Spread(NamedTuple):
    """A value with the ends of its range."""

    low: float
    middle: float
    high: float

    def times(self, n: float) -> Spread:
        """`n` times the value and its ends."""
        return Spread(*(n * end for end in self))


GE_PER_MM2 = {12: Spread(4.5e6, 6.5e6, 9.0e6), 7: Spread(11e6, 16.4e6, 23e6)}
"""Gate equivalents (four transistors) per mm2. Middle: V100 and A100, transistors over die."""
SRAM_CHOICES = {12: ("dysharp.sram_mbit_per_mm2", 3, 8), 7: ("moe_hub.sram_mbit_per_mm2", 6, 24)}
THIRD_PORT = Spread(1.5, 1.8, 2.25)
"""Size of a bit with one port more than a read and a write; the high end is the square of 3/2. Assumed."""
CAM_BIT = Spread(1.6, 2.0, 3.0)
"""SRAM bits that a bit of a CAM takes. Assumed: a binary CAM cell has 9 or 10 transistors and match lines, an SRAM cell 6."""


def parts_mm2(node: int, *, kge: float, bits: float, ported_bits: float = 0, cam_bits: float = 0) -> dict[str, Spread]:
    """Area by named part in `node` (12 or 7) nm. `ported_bits`: bits of memories with three ports, beside `bits`."""
    name, lowest, highest = SRAM_CHOICES[node]
    per_mm2 = Spread(1e6 * highest, 1e6 * choice_int(name), 1e6 * lowest)
    return {
        "logic": Spread(*(1000 * kge / d for d in reversed(GE_PER_MM2[node]))),
        "sram": Spread(*(bits / d for d in per_mm2)),
        "order lists and other ports": Spread(*(ported_bits * f / d for f, d in zip(THIRD_PORT, per_mm2, strict=True))),
        "cam": Spread(*(cam_bits * f / d for f, d in zip(CAM_BIT, per_mm2, strict=True))),
    }


def added(spreads: Iterable[Spread]) -> Spread:
    """The sum; its ends add the ends."""
    return Spread(*(sum(ends) for ends in zip(*spreads, strict=True)))


def total(parts: Mapping[str, Spread]) -> Spread:
    """The sum of named parts."""
    return added(parts.values())


DYSHARP_TABLES = (AL_TLB, MISS_REGISTERS, TILE_STATUS, OUTPUT_READINESS, MULTIMEMQ, REDUCTION_BUFFER)
HUB_TABLES = (RAT, APT, PARTITION, TILE_COUNTER)
KIB = 8 * 1024


def _entries_of(table: Sram, cluster: Cluster) -> int:
    """The number of entries of one table of this kind in `cluster`."""
    if not table.cluster_key:
        return table.entries
    given = file_values(cluster)[table.cluster_key]
    return int(given * KIB) // table.entry.bits if table.cluster_key.endswith("_KiB") else int(given)


def switch_ports(cluster: Cluster) -> int:
    """Ports of a switch."""
    return cluster.n_gpus * cluster.links_per_gpu // max(1, cluster.n_switches)


def _mm2(bits: int, density: str) -> float:
    """Area of `bits` bits. `density`: name of a choice, in Mbit/mm2."""
    return bits / (1e6 * choice_int(density))


def dysharp_area(cluster: Cluster, queues: int | None = None, misses: int | None = None) -> Amounts:
    """KiB and area of DySHARP's tables: the tables of a GPU, and the reduction buffers of all ports of a switch (`buffer_mm2`).

    `queues`: load/store units of a GPU with a MultimemQ; None = one per SM. `misses`: registers of a hub; None = the most that a
    shape of the figures needs.
    """
    bits = {table: table.bits(_entries_of(table, cluster)) for table in DYSHARP_TABLES}
    tables = bits[AL_TLB] + bits[TILE_STATUS] + bits[OUTPUT_READINESS]
    bits[MISS_REGISTERS] = MISS_REGISTERS.bits(MISS_REGISTERS.entries if misses is None else misses)
    queued = bits[MULTIMEMQ] * (cluster.n_sms if queues is None else queues)
    density = "dysharp.sram_mbit_per_mm2"
    return {
        "tables_kib": tables / KIB,
        "misses_kib": bits[MISS_REGISTERS] / KIB,
        "queues_kib": queued / KIB,
        "gpu_mm2": _mm2(tables + bits[MISS_REGISTERS] + queued, density),
        "buffer_mm2": _mm2(switch_ports(cluster) * bits[REDUCTION_BUFFER], density),
    }


def hub_area(rat_entries: int, regions: int, partition_entries: int, peers: int, tiles: int) -> Amounts:
    """KiB of MoE-Hub's tables in a GPU by their entries, and their area. `peers`: partitions of the packet manager."""
    bits = {
        "rat_kib": RAT.bits(rat_entries),
        "apt_kib": APT.bits(regions),
        "partitions_kib": peers * PARTITION.bits(partition_entries),
        "counters_kib": TILE_COUNTER.bits(tiles),
    }
    return {name: n / KIB for name, n in bits.items()} | {"sram_mm2": _mm2(sum(bits.values()), "moe_hub.sram_mbit_per_mm2")}
