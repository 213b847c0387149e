"""cann-ep: CANN's EP and DeepEP-Ascend: vector cores write a row per (token, expert) into the memory of another NPU, and a flag behind it.

| step | Dispatch | Combine |
|---|---|---|
| counts | `mode` normal: every NPU reads the counts of all NPUs and experts | - |
| a vector core, one row at a time | reads, casts, writes; low latency: a flag behind each row | reads, writes, a flag behind each row |
| a row is written | after the latency of its level: NPUs of one card, of one node (one switch), of two nodes (two switches) | the same |

Source: sgl-project/sgl-kernel-npu, csrc/deepep/ops/op_kernel/cam_moe_dispatch_normal.h and cam_moe_combine_normal.h.

`multiwrite`: in Dispatch a core writes a token once for a list of NPUs, and the switch copies it. The write takes as long as its farthest NPU.
"""

from dataclasses import replace

import numpy as np

from dysharp.base import ConfigError, Numbers, ns_to_ps
from dysharp.program import I32, Discipline, frozen, place_in
from dysharp.specs import choice_int, choice_str
from dysharp.systems import Costs, Facts, Moves, Shown, system
from dysharp.systems.building import LayerBuilder, Sends, one_after_another
from dysharp.systems.building.layer import EXPLICIT
from dysharp.workload.traffic import multicast_in_groups


@frozen
class Options:
    """`mode`: "normal", or "low-latency", whose fixed windows need no counts. `flags`: a flag of its own behind each row ("apart"), or 32 B of every
    512 B that are written whole ("inside", UBEP). `cores`: vector cores that send. `row_ns`, `flag_ns`: of a core for a row and for its flag.
    `count_ns`: for a number of the counts. `card`, `node`: NPUs of a card and of a node; `card_ns`, `node_ns`, `far_ns`: one way inside a card,
    through one switch level, through two. `dispatch`: format of rows. `compute` = False leaves the GEMMs out.
    """

    mode: str = choice_str("cann_ep.mode")
    flags: str = choice_str("cann_ep.flags")
    cores: int = choice_int("cann_ep.cores")
    row_ns: int = choice_int("cann_ep.row_ns")
    flag_ns: int = choice_int("cann_ep.flag_ns")
    count_ns: int = choice_int("cann_ep.count_ns")
    card: int = choice_int("cann_ep.card")
    node: int = choice_int("cann_ep.node")
    card_ns: int = choice_int("cann_ep.card_ns")
    node_ns: int = choice_int("cann_ep.node_ns")
    far_ns: int = choice_int("cann_ep.far_ns")
    dispatch: str = "rows"
    compute: bool = True

    def level(self, node: I32, to: I32) -> I32:
        """`[n]` level of a write from `node[i]` to `to[i]`: 0 own memory, 1 the card, 2 the node, 3 two switch levels."""
        apart = [node != to, node // self.card != to // self.card, node // self.node != to // self.node]
        return np.asarray(np.sum(apart, axis=0), np.int32)

    @property
    def hops_ns(self) -> Numbers:
        """One way by level."""
        return 0, self.card_ns, self.node_ns, self.far_ns


FACTS = Facts(
    source="sgl-project/sgl-kernel-npu (DeepEP-Ascend); UBEP, arXiv 2607.06202, and CloudMatrix384, arXiv 2506.12708, by notes",
    options=Options,
    moves=Moves("one_copy_per_expert", formats=("rows", "int8")),
    costs=Costs(permutes=0, fused=False, drops="launches, barriers of cores, the sum of a token beside its rows"),
    shown=Shown("#B22222"),
)


def _written(layer: LayerBuilder, options: Options, operator: str, sends: Sends, level: I32, begun: I32 | None, flagged: bool) -> None:
    """`sends` follow the work of a vector core each, which follows `begun[gpu]`. `level`: of each write, `Options.level`."""
    row = options.row_ns + options.flag_ns * (flagged and options.flags == "apart")
    cores = layer.issuers(operator, slots=options.cores)  # a row takes the next free core; the kernels give each an equal run
    durations = [0, *(ns_to_ps(row + hop) for hop in options.hops_ns)]
    work = layer.copies(operator, durations, sends.node, cores[sends.node], level + np.int64(1), name="core", begun=begun)
    layer.wait_each(sends.op, work.op)


def _counted(layer: LayerBuilder, options: Options) -> I32 | None:
    """`[gpus]` the counts of a normal Dispatch; None: windows are fixed, or a backward pass knows them."""
    if options.node % options.card:
        raise ConfigError(f"{layer.name}.node: found {options.node} NPUs on cards of {options.card}, expected a multiple")
    told = ns_to_ps(options.count_ns * layer.n_gpus * layer.model.n_experts)
    return layer.delay("dispatch.counts", told) if options.mode == "normal" and layer.direction == "fwd" else None


def _combined(layer: LayerBuilder, options: Options) -> None:
    """The GEMMs, and Combine: a row per (token, expert) with a flag behind it."""
    finished = one_after_another(layer)
    rows = layer.combine_rows(Discipline.READY_FIFO)
    _written(layer, options, "combine", rows, options.level(rows.node, rows.to), finished, True)


@system("cann-ep", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Dispatch, the GEMMs, Combine."""
    counts, rows = _counted(layer, options), layer.dispatch_rows(Discipline.READY_FIFO)
    _written(layer, options, "dispatch", rows, options.level(rows.node, rows.to), counts, options.mode != "normal")
    _combined(layer, options)


@frozen
class _MultiwriteOptions(Options):
    """As `Options`. `fan_out`: most NPUs of one write."""

    fan_out: int = choice_int("cann_ep.fan_out")


MULTIWRITE = replace(
    FACTS,
    source="MultiWrite (arXiv 2605.22428), by its abstract: multicast writes without groups; packets and tables are not found",
    options=_MultiwriteOptions,
    moves=Moves(multicast_in_groups, "one_copy_per_expert", formats=("rows", "int8")),
    costs=replace(FACTS.costs, drops=f"{FACTS.costs.drops}, tables of the switch, the gather of rows by expert"),
    shown=Shown("#E9967A"),
)


@system("multiwrite", MULTIWRITE)
def _plan_multiwrite(layer: LayerBuilder, options: _MultiwriteOptions) -> None:
    """As `cann-ep`, but Dispatch writes a token once for each list of NPUs, with an address for each expert's row."""
    counts = _counted(layer, options)
    writes = layer.dispatch_multicast(layer.tokens, EXPLICIT, fan_out=options.fan_out)
    level, first = options.level(layer.p.source, layer.p.gpu), np.flatnonzero(place_in(layer.p.token) % options.fan_out == 0)
    farthest = np.maximum.reduceat(level, first) if len(first) else level
    _written(layer, options, "dispatch", writes, farthest, counts, options.mode != "normal")
    _combined(layer, options)
