"""Megatron-Core's alltoall dispatcher: sort by expert, NCCL all-to-all, grouped GEMMs, and the same way back.

The all-to-all moves one row per (token, expert).
"""

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.program import I32, I64, Discipline, frozen
from dysharp.systems.building import Kernels, LayerBuilder, SoftwareSteps, by_rails, mediate, one_after_another, stream_order
from dysharp.systems.building.between.rails import RailLayer
from dysharp.systems.building.software_steps import sorted_at_receiver
from dysharp.systems.facts import AMPERE_ON, ANY_TYPE, BOTH_FORMS, Costs, Facts, Form, Moves, Reach, Ships, Shown
from dysharp.systems.registry import kernels

COUNT_BYTES = 8  # rows of an expert as int64: Megatron-Core, token dispatcher


@frozen
class Options(Form):
    """Options of the alltoall dispatcher.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `mediation` | paper form only: rows are sorted, and the host waits for counts, before Dispatch; they are sorted |
    | | again at the receiver, and results are put back after Combine |
    | `pxn` | several NVLink domains: rows for another rail go by NVLink to the GPU of that rail, which sends them, as NCCL does by |
    | | default; False: straight to the receiver, through the spine |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds permutations, the exchange of counts, and NCCL's start and pace. NCCL's pace is a rate: its rings
    and channels are not modelled. A rail's GPU sends row by row, NCCL in chunks.
    """

    mediation: bool = False
    pxn: bool = True
    compute: bool = True


FACTS = Facts(
    source="https://github.com/NVIDIA/Megatron-LM (alltoall dispatcher)",
    options=Options,
    moves=Moves("one_copy_per_expert"),
    costs=Costs(
        permutes=0,
        fused=False,
        drops="permutations, the exchange of counts, NCCL's start and pace (form real has them); the host's wait for counts, shared experts",
    ),
    reach=Reach(domains=BOTH_FORMS, no_switch=("paper",)),
    shown=Shown("#004D40"),
    ships=Ships("Megatron-LM dispatchers: rows in BF16 by NCCL", AMPERE_ON, ANY_TYPE),
)


def plan_paper(layer: LayerBuilder, options: Options) -> None:
    """Dispatch, GEMMs, Combine in sequence. An all-to-all serves all peers in turn, each peer's rows by expert.

    On NVLink, rows for the own domain and for rails take turns as the all-to-all sends them.
    """
    if options.mediation and layer.cluster.domains > 1:
        raise ConfigError(f"megatron-a2a.mediation: found {layer.cluster.domains} NVLink domains, expected one")
    there, back = _stream_orders(layer)
    discipline = Discipline.SMALLEST_KEY if isinstance(layer, RailLayer) else Discipline.PROGRAM_ORDER
    layer.dispatch_rows(discipline, there)
    finished = one_after_another(layer, sorted_at_receiver(layer) if options.mediation else None)
    returns = layer.combine_rows(discipline, back)
    if isinstance(layer, RailLayer):
        layer.wait_each(returns.op, finished[returns.node])
    else:
        layer.wait_first(returns, finished)
    if options.mediation:
        mediate(layer, counts=True, permutes=True)


@kernels("megatron-a2a", FACTS, paper=plan_paper, begins=by_rails)
def real(layer: LayerBuilder, options: Options) -> Kernels:
    """The paper form with the software costs of two NCCL all-to-alls and the kernels around them."""
    return _AllToAll(layer)


def _stream_orders(layer: LayerBuilder) -> tuple[I64, I64]:
    """Two orders of the useful rows: as the all-to-all of Dispatch sends them, and as the all-to-all of Combine sends them."""
    return stream_order(layer, layer.p.row_source, layer.p.row_gpu), stream_order(layer, layer.p.row_gpu, layer.p.row_source)


class _AllToAll(SoftwareSteps):
    """Two all-to-alls and the kernels around them, which sort the rows on both sides."""

    def __init__(self, layer: LayerBuilder) -> None:
        super().__init__(layer)
        self.there, self.back = _stream_orders(layer)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which rows are sorted by expert."""
        layer = self.layer
        sent, received = layer.counted(layer.p.row_source), layer.counted(layer.p.row_gpu)
        permute = self.delay("permute", self._reorder(np.full(layer.n_gpus, layer.tokens), sent))
        if layer.direction == "fwd":  # a backward pass knows the counts
            layer.wait_each(permute, self._counts())
        self.all_to_all("dispatch", "dispatch", [layer.dispatch_rows(Discipline.READY_FIFO, self.there)], layer.sent_bytes, permute)
        sort = self.delay("received", self._reorder(received, received))
        self._wait_rows_and_gates(sort, layer.rows_here(), gates=bool(layer.dispatch_aux))
        return sort

    def combine(self, finished: I32) -> None:
        """Add Combine, after the GEMMs of each GPU, `finished[gpu]`."""
        layer = self.layer
        sent, received = layer.counted(layer.p.row_gpu), layer.counted(layer.p.row_source)
        unsort = self.delay("unsort", self._reorder(sent, sent), after=finished)
        puts = layer.combine_rows(Discipline.READY_FIFO, self.back)
        self.all_to_all("combine", "combine", [puts], layer.model.row_bytes, unsort)
        unpermute = self.delay("unpermute", self._reorder(np.full(layer.n_gpus, layer.tokens), received))
        self._wait_rows_and_gates(unpermute, layer.join("returned", finished, tiles=puts.tile), gates=bool(layer.combine_aux))

    def _wait_rows_and_gates(self, heads: I32, arrived: I32, *, gates: bool) -> None:
        """`heads[gpu]` waits for the rows, `arrived[gpu]`.

        With `gates` an all-to-all of gate weights, or of their gradients, runs before `heads`.
        """
        self.layer.wait_each(heads, self.delay("gates", self.costs.alltoall_ps(0, 0), after_all=arrived) if gates else arrived)

    def _counts(self) -> I32:
        """Add the all-gather of rows per expert, and the kernel that reads them. Returns `[gpus]` DELAYs."""
        layer, costs = self.layer, self.costs
        n_bytes = COUNT_BYTES * layer.model.n_experts * layer.n_gpus
        return self.delay("counts", costs.collective_ps("all_gather", layer.n_gpus, n_bytes) + costs.kernel_ps)

    def _reorder(self, tokens: I64, rows: I64) -> list[int]:
        layer = self.layer
        element = layer.model.row_bytes / layer.model.hidden
        counts = zip(tokens.tolist(), rows.tolist(), strict=True)
        return [self.costs.reorder_ps(t, r, layer.model.hidden, element) for t, r in counts]
