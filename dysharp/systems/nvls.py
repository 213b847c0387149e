"""NVLS: Dispatch as multimem AllGather, Combine as multimem ReduceScatter, operators one after the other.

A shipping relative is Megatron-Core's NVLSAllGatherVDispatcher (inference only, Hopper and later, in CUDA graphs). It differs: counts of tokens vary
by GPU, it gathers three tensors (rows in BF16, routing map, probabilities), sums come back in FP32 or BF16, and a thread block on an SM moves each
token. No time of it is published. The collective `nvls-v` has its two kernels.
"""

from dysharp.base import ConfigError
from dysharp.program import Discipline, Tail, frozen
from dysharp.specs import Cluster, choice_int, choice_str
from dysharp.systems import BOTH_FORMS, SUMS, Costs, Facts, Moves, Reach, Shown, system
from dysharp.systems.building import MULTIMEM, STORE, LayerBuilder, one_after_another
from dysharp.systems.building.between.in_switch import gathered_in_switch


@frozen
class Options:
    """`dispatch_window`, `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py).

    `own`: the issuer's own copy and addend are "sent" to the switch, as today's switches do, or "kept" (docs/design/0041-beyond-the-papers.md).
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch_window: int = choice_int("nvls.dispatch_window")
    combine_window: int = choice_int("nvls.combine_window")
    own: str = choice_str("nvls.own")
    compute: bool = True


FACTS = Facts(
    source="PTX multimem.st and multimem.ld_reduce (NVLS); DySHARP (arXiv 2605.05607), baseline NVLS",
    options=Options,
    moves=Moves("allgather", between="allgather"),
    costs=Costs(permutes=0, fused=False, drops="NCCL channels and their SMs, the permutation of gathered rows"),
    reach=Reach(
        domains=("paper",),
        by_name=BOTH_FORMS,  # every token goes to every GPU, so copies would outnumber those of all other systems
        assumes="all-gathers and reduce-scatters in the scale-out network (SHARP) and NCCL's plugin for them, off by default and not measured",
        switch=SUMS,
    ),
    shown=Shown("#E69F00"),
    today=True,
)


@system("nvls", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """AllGather of all tokens, grouped GEMMs on the rows that a GPU needs, a barrier, ReduceScatter of partial sums.

    Over several NVLink domains the scale-out network multicasts and adds, too (building/between/in_switch.py).
    """
    _check_nics(layer.cluster)
    framing = MULTIMEM if options.own == "sent" else STORE
    dispatch_window, combine_window = layer.windows(framing, options.dispatch_window, options.combine_window, together=False, every_gpu=True)
    if layer.cluster.domains > 1:
        gathered_in_switch(layer, framing, dispatch_window, combine_window)
        return
    layer.dispatch_allgather(dispatch_window, framing)
    done = layer.exchange(16, name="barrier", after=one_after_another(layer))
    pulls = layer.combine_pulls(Discipline.PROGRAM_ORDER, combine_window, framing, every_gpu=True)
    layer.wait_first(pulls, done, tail=Tail.TILE_READY)


def _check_nics(cluster: Cluster) -> None:
    """NCCL sums all-gathers and reduce-scatters in the network with one NIC per GPU only (src/graph/tuning.cc)."""
    net = cluster.scale_out
    if cluster.domains > 1 and net is not None and net.nics_per_gpu != 1:
        raise ConfigError(
            f'nvls on cluster "{cluster.name}": found {net.nics_per_gpu} NICs per GPU, expected 1 (NCCL has no sums in the network otherwise)'
        )
