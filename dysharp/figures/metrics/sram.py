"""SRAM of the tables of DySHARP and of MoE-Hub (`silicon`), as figures ask for it."""

from dataclasses import asdict

from dysharp.base import Amounts, frozen
from dysharp.figures.metric import calculated
from dysharp.protocol.aau import APT
from dysharp.protocol.dam import TILE_COUNTER
from dysharp.protocol.rpm import PARTITION
from dysharp.runs import Point
from dysharp.silicon import dysharp_area, hub_area
from dysharp.specs import choice_int, load_cluster
from dysharp.specs.fields import EntriesOrInfinite


@frozen
class _Queues:
    """`queues`: load/store units of a GPU with a MultimemQ; None = one per SM. `misses`: registers of a hub; None = the most that a shape
    of the figures needs. All other sizes are keys of the cluster."""

    queues: EntriesOrInfinite | None = None
    misses: EntriesOrInfinite | None = None


@frozen
class _HubSizes:
    """Entries of the units of one GPU. `rat_entries`: None = all banks of the packaged choices. `peers`: partitions of the packet manager."""

    rat_entries: EntriesOrInfinite | None = None
    regions: EntriesOrInfinite = APT.entries
    partition_entries: EntriesOrInfinite = PARTITION.entries
    peers: EntriesOrInfinite = 16
    tiles: EntriesOrInfinite = TILE_COUNTER.entries


@calculated("dysharp-area", options=_Queues)
def _dysharp_sram(point: Point, options: _Queues) -> Amounts:
    return dysharp_area(load_cluster(point.cluster), options.queues, options.misses)


@calculated("hub-area", options=_HubSizes)
def _hub_sram(point: Point, sizes: _HubSizes) -> Amounts:
    banks = choice_int("moe_hub.rat_banks") * choice_int("moe_hub.rat_bank_entries")
    return hub_area(**asdict(sizes) | {"rat_entries": banks if sizes.rat_entries is None else sizes.rat_entries})
