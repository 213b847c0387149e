"""SRAM of tables from their records (`isa.sram.Sram`): an estimate, not a synthesis. Logic, CAM cells and wires are not in it."""

from dysharp.isa.sram import Sram
from dysharp.protocol.aau import APT, RAT
from dysharp.protocol.al_table import AL_TLB, MISS_REGISTERS
from dysharp.protocol.dam import TILE_COUNTER
from dysharp.protocol.lsu import MULTIMEMQ
from dysharp.protocol.readiness import OUTPUT_READINESS
from dysharp.protocol.reduction import REDUCTION_BUFFER
from dysharp.protocol.rpm import PARTITION
from dysharp.protocol.tracker import TILE_STATUS
from dysharp.specs import Cluster, choice_int
from dysharp.specs.cluster import file_values

DYSHARP_TABLES = (AL_TLB, MISS_REGISTERS, TILE_STATUS, OUTPUT_READINESS, MULTIMEMQ, REDUCTION_BUFFER)
HUB_TABLES = (RAT, APT, PARTITION, TILE_COUNTER)
KIB = 8 * 1024


def entries_of(table: Sram, cluster: Cluster) -> int:
    """The number of entries of one table of this kind in `cluster`."""
    if not table.cluster_key:
        return table.entries
    given = file_values(cluster)[table.cluster_key]
    return int(given * KIB) // table.entry.bits if table.cluster_key.endswith("_KiB") else int(given)


def mm2(bits: int, density: str) -> float:
    """Area of `bits` bits. `density`: name of a choice, in Mbit/mm2."""
    return bits / (1e6 * choice_int(density))


def dysharp_area(cluster: Cluster, queues: int | None = None, misses: int | None = None) -> dict[str, float]:
    """KiB and area of DySHARP's tables: the tables of a GPU, and the reduction buffers of all ports of a switch (`buffer_mm2`).

    `queues`: load/store units of a GPU with a MultimemQ; None = one per SM. `misses`: registers of a hub; None = the most that a
    shape of the figures needs.
    """
    bits = {table: table.bits(entries_of(table, cluster)) for table in DYSHARP_TABLES}
    tables = bits[AL_TLB] + bits[TILE_STATUS] + bits[OUTPUT_READINESS]
    bits[MISS_REGISTERS] = MISS_REGISTERS.bits(MISS_REGISTERS.entries if misses is None else misses)
    queued = bits[MULTIMEMQ] * (cluster.n_sms if queues is None else queues)
    ports = cluster.n_gpus * cluster.links_per_gpu // max(1, cluster.n_switches)
    density = "dysharp.sram_mbit_per_mm2"
    return {
        "tables_kib": tables / KIB,
        "misses_kib": bits[MISS_REGISTERS] / KIB,
        "queues_kib": queued / KIB,
        "gpu_mm2": mm2(tables + bits[MISS_REGISTERS] + queued, density),
        "buffer_mm2": mm2(ports * bits[REDUCTION_BUFFER], density),
    }


def hub_area(rat_entries: int, regions: int, partition_entries: int, peers: int, tiles: int) -> dict[str, float]:
    """KiB of MoE-Hub's tables in a GPU by their entries, and their area. `peers`: partitions of the packet manager."""
    bits = {
        "rat_kib": RAT.bits(rat_entries),
        "apt_kib": APT.bits(regions),
        "partitions_kib": peers * PARTITION.bits(partition_entries),
        "counters_kib": TILE_COUNTER.bits(tiles),
    }
    return {name: n / KIB for name, n in bits.items()} | {"sram_mm2": mm2(sum(bits.values()), "moe_hub.sram_mbit_per_mm2")}
