"""Area of what DySHARP adds to a cluster, from the sizes of its file: columns of `sweep`, `study` and `query`. Needs no synthesis.

Published areas, and the blocks that stand beside each of them.
"""

from collections.abc import Mapping

from dysharp.base import Amounts, frozen
from dysharp.program import sessions_of_table
from dysharp.protocol.lsu import MULTIMEMQ
from dysharp.silicon.area import Spread, added, parts_mm2, switch_ports, total
from dysharp.specs import Cluster, choice_int


@frozen
class _AreaLine:
    """A block of n entries: bits of an entry, of its CAM, and of what does not grow; gates fixed and per entry (`dysharp rtl BLOCK --area`)."""

    entry_bits: int
    cam_bits: int
    kge: float
    kge_per_entry: float
    more_bits: int = 0
    more_cam_bits: int = 0

    def parts(self, n: int, node: int = 12) -> dict[str, Spread]:
        """Area by part; two links of log2 n bits per entry stand in memories of three ports."""
        links = 2 * n * max(1, (n - 1).bit_length())
        bits, cam = self.entry_bits * n + self.more_bits, self.cam_bits * n + self.more_cam_bits
        return parts_mm2(node, kge=self.kge + self.kge_per_entry * n, bits=bits, ported_bits=links, cam_bits=cam)


LINES = {
    "reduction-table": _AreaLine(35, 23, 0.906, 0.0304),
    "al-tlb": _AreaLine(20, 24, 4.53, 0.01166, more_bits=12224, more_cam_bits=3072),
    "tile-status": _AreaLine(50, 18, 2.126, 0.01511, more_bits=480),
    "output-readiness": _AreaLine(40, 32, 1.997, 0.01553),
}
"""Bits are exact, gates a line through two sizes of which one is the published one; a test synthesises another size."""
TARGET_KGE_PER_PORT = 14.2 / 32


def cluster_area(cluster: Cluster) -> dict[str, Spread]:
    """mm2 in 12 nm, by part: tables of a GPU, its MultimemQs, and of a switch its session tables, target logic and sum buffers."""
    entries = {"al-tlb": cluster.al_tlb_entries, "tile-status": cluster.ts_entries, "output-readiness": cluster.or_entries}
    ports = switch_ports(cluster)
    return {
        "gpu_tables": added(total(LINES[name].parts(n)) for name, n in entries.items()),
        "gpu_queues": _area(bits=MULTIMEMQ.bits(cluster.multimemq_entries) * cluster.n_sms),
        "switch_sessions": total(LINES["reduction-table"].parts(sessions_of_table(cluster))).times(ports),
        "switch_targets": _area(kge=TARGET_KGE_PER_PORT * cluster.n_gpus).times(ports),
        "switch_buffers": _area(bits=8 * cluster.reduction_buffer_bytes).times(ports),
    }


def _area(*, kge: float = 0.0, bits: float = 0, ported_bits: float = 0, cam_bits: float = 0) -> Spread:
    """mm2 in 12 nm of all parts together."""
    return total(parts_mm2(12, kge=kge, bits=bits, ported_bits=ported_bits, cam_bits=cam_bits))


def area_columns(cluster: Cluster) -> Amounts:
    """`area_gpu_mm2` (tables and queues of a GPU) and `area_switch_mm2` (sessions, target logic and sum buffers): the middles."""
    area = {name: spread.middle for name, spread in cluster_area(cluster).items()}
    sides = {side: sum(value for name, value in area.items() if name.startswith(side)) for side in ("gpu", "switch")}
    return {f"area_{side}_mm2": round(value, 6) for side, value in sides.items()}


MERGE_KGE = 6.22
"""Gates of the merge unit of a port with 320 entries (`dysharp rtl merge-unit --area`)."""
ENTRIES, LINE_BITS, STATE_BITS = 320, 41, 17
"""Entries of a port; bits of a line in its CAM; askers (8), cached, two counts of 4."""
GROUPS, GROUP_BITS = 1024, 32
"""Groups that a switch counts, and bits of their ids: assumed, a group for each SM of eight GPUs, rounded up."""

WARPS, WARP_KGE = 64, 0.007
"""Warps of an SM (H100), and gates of the bit that holds one back until its group is there: a flip-flop and its multiplexer (`rtl/synthesis.py`)."""


def cais_area(cluster: Cluster) -> dict[str, Spread]:
    """mm2 in 12 nm: `switch`, its merge units with their tables and a group table; `gpu`, a synchronizer with two groups for each SM (the
    thread block that runs there and the one that waits to be launched) and a bit for each warp that waits for its group."""
    gpus = cluster.n_gpus
    links = 2 * ENTRIES * (ENTRIES - 1).bit_length()
    table = 8 * cluster.reduction_buffer_bytes
    port = _area(kge=MERGE_KGE, bits=table + ENTRIES * STATE_BITS, ported_bits=links, cam_bits=ENTRIES * LINE_BITS)
    groups = _area(bits=GROUPS * gpus, cam_bits=GROUPS * GROUP_BITS)
    entries, warps = 2 * cluster.n_sms, WARPS * cluster.n_sms
    waiting = _area(kge=WARP_KGE * warps, bits=entries * (entries - 1).bit_length(), cam_bits=entries * GROUP_BITS)
    return {"switch": added([*[port] * gpus, groups]), "gpu": waiting}


CAIS_PORTS = 8
CAIS_PORT_BITS = 40 * 1024 * 8
PEERS = 16  # active peers of a GPU: 8 to 16 (MoE-Hub)


@frozen
class Published:
    """An area of a paper, the copies of our blocks beside it, and bits of SRAM that stand in no block (`more`: what they are)."""

    name: str
    node: int
    mm2: float
    blocks: Mapping[str, int]
    more: str = ""
    more_bits: int = 0


def published(cluster: Cluster) -> list[Published]:
    """The published areas, for the sizes of `cluster`. DySHARP's switch is published as "under" its value."""
    ports = switch_ports(cluster)
    queues = MULTIMEMQ.bits(cluster.multimemq_entries) * cluster.n_sms
    hub = {"row-allocation": choice_int("moe_hub.rat_banks"), "packet-manager": PEERS, "readiness": 1}
    return [
        Published("DySHARP, GPU", 12, 0.198, {"al-tlb": 1, "tile-status": 1, "output-readiness": 1}, "MultimemQs", queues),
        Published("DySHARP, switch", 12, 0.01, {"reduction-table": ports, "target-logic": ports}),
        Published("MoE-Hub, GPU", 7, 0.49, hub),
        Published("CAIS, switch", 12, 0.50, {"merge-unit": CAIS_PORTS}, "data of merged lines", CAIS_PORTS * CAIS_PORT_BITS),
    ]


def beside(row: Published, blocks: Mapping[str, Mapping[str, Spread]]) -> dict[str, Spread]:
    """mm2 by named part: block and kind of cell. `blocks`: parts of one copy of each block in the node of the row."""
    found = {f"{n} x {name}: {part}": spread.times(n) for name, n in row.blocks.items() for part, spread in blocks[name].items() if spread.middle}
    return found | ({row.more: parts_mm2(row.node, kge=0, bits=row.more_bits)["sram"]} if row.more else {})
