"""Published areas, and the blocks that stand beside each of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from dysharp.protocol.lsu import MULTIMEMQ
from dysharp.silicon.density import Spread, parts_mm2
from dysharp.specs import Cluster, choice_int

CAIS_PORTS = 8
CAIS_PORT_BITS = 40 * 1024 * 8
PEERS = 16  # active peers of a GPU: 8 to 16 (MoE-Hub)


@dataclass(frozen=True, slots=True)
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
    ports = cluster.n_gpus * cluster.links_per_gpu // max(1, cluster.n_switches)
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
    found = {
        f"{n} x {name}: {part}": Spread(*(n * end for end in spread))
        for name, n in row.blocks.items()
        for part, spread in blocks[name].items()
        if spread.middle
    }
    return found | ({row.more: parts_mm2(row.node, kge=0, bits=row.more_bits)["sram"]} if row.more else {})
