"""Area of what CAIS adds, from the synthesised merge unit and from bits. Sizes of group tables are choices of ours: the paper gives none."""

from dysharp.silicon.density import Spread, parts_mm2, total
from dysharp.specs import Cluster

MERGE_KGE = 20.16
"""Gates of the merge unit of a port with 320 entries (`dysharp rtl merge-unit --area`)."""
ENTRIES, LINE_BITS, STATE_BITS = 320, 41, 17
"""Entries of a port; bits of a line in its CAM; askers (8), cached, two counts of 4."""
GROUPS, GROUP_BITS = 1024, 32
"""Groups that a switch counts, and bits of their ids: assumed, a group for each SM of eight GPUs, rounded up."""

WARPS, WARP_KGE = 64, 0.007
"""Warps of an SM (H100), and gates of the bit that holds one back until its group is there: a flip-flop and its multiplexer (`rtl/cost.py`)."""


def _sum(spreads: list[Spread]) -> Spread:
    return Spread(*(sum(ends) for ends in zip(*spreads, strict=True)))


def cais_area(cluster: Cluster) -> dict[str, Spread]:
    """mm2 in 12 nm: `switch`, its merge units with their tables and a group table; `gpu`, a synchronizer with two groups for each SM (the
    thread block that runs there and the one that waits to be launched) and a bit for each warp that waits for its group."""
    gpus = cluster.n_gpus
    links = 2 * ENTRIES * (ENTRIES - 1).bit_length()
    table = 8 * cluster.reduction_buffer_bytes
    port = total(parts_mm2(12, kge=MERGE_KGE, bits=table + ENTRIES * STATE_BITS, ported_bits=links, cam_bits=ENTRIES * LINE_BITS))
    groups = total(parts_mm2(12, kge=0.0, bits=GROUPS * gpus, cam_bits=GROUPS * GROUP_BITS))
    entries, warps = 2 * cluster.n_sms, WARPS * cluster.n_sms
    waiting = total(parts_mm2(12, kge=WARP_KGE * warps, bits=entries * (entries - 1).bit_length(), cam_bits=entries * GROUP_BITS))
    return {"switch": _sum([*[port] * gpus, groups]), "gpu": waiting}
