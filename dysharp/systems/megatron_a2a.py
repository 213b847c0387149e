"""Megatron-Core's alltoall dispatcher: sort by expert, NCCL all-to-all, grouped GEMMs, and the same way back.

The all-to-all moves one row per (token, expert).
"""

from dysharp.base import ConfigError
from dysharp.program import I32, I64, Discipline, frozen
from dysharp.systems.building import Kernels, LayerBuilder, by_rails, mediate, one_after_another, sorted_at_receiver, stream_order
from dysharp.systems.building.between.rails import RailLayer
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
        by_size=True,
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


def _stream_orders(layer: LayerBuilder) -> tuple[I64, I64]:
    """Two orders of the useful rows: as the all-to-all of Dispatch sends them, and as the all-to-all of Combine sends them."""
    return stream_order(layer, layer.p.row_source, layer.p.row_gpu), stream_order(layer, layer.p.row_gpu, layer.p.row_source)


@kernels("megatron-a2a", FACTS, paper=plan_paper, begins=by_rails)
class _RailAllToAll(Kernels, RailLayer):
    """Two all-to-alls and the kernels around them, which sort the rows on both sides."""

    def prepare(self) -> None:
        self.there, self.back = _stream_orders(self)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which rows are sorted by expert."""
        sent, received = self.counted(self.p.row_source), self.counted(self.p.row_gpu)
        permute = self.reorder("permute", self.tokens, sent)
        if self.direction == "fwd":  # a backward pass knows the counts
            self.wait_each(permute, self._counts())
        self.all_to_all("dispatch", "dispatch", [self.dispatch_rows(Discipline.READY_FIFO, self.there)], self.sent_bytes, permute)
        sort = self.reorder("received", received, received)
        self._wait_rows_and_gates(sort, self.rows_here(), gates=bool(self.dispatch_aux))
        return sort

    def combine(self, finished: I32) -> None:
        """Add Combine, after the GEMMs of each GPU, `finished[gpu]`."""
        sent, received = self.counted(self.p.row_gpu), self.counted(self.p.row_source)
        unsort = self.reorder("unsort", sent, sent, after=finished)
        puts = self.combine_rows(Discipline.READY_FIFO, self.back)
        self.all_to_all("combine", "combine", [puts], self.model.row_bytes, unsort)
        unpermute = self.reorder("unpermute", self.tokens, received)
        self._wait_rows_and_gates(unpermute, self.join("returned", finished, tiles=puts.tile), gates=bool(self.combine_aux))

    def _wait_rows_and_gates(self, heads: I32, arrived: I32, *, gates: bool) -> None:
        """`heads[gpu]` waits for the rows, `arrived[gpu]`.

        With `gates` an all-to-all of gate weights, or of their gradients, runs before `heads`.
        """
        self.wait_each(heads, self.delay("gates", self.costs.alltoall_ps(0, 0), after_all=arrived) if gates else arrived)

    def _counts(self) -> I32:
        """Add the all-gather of rows per expert, and the kernel that reads them. Returns `[gpus]` DELAYs."""
        n_bytes = COUNT_BYTES * self.model.n_experts * self.n_gpus
        return self.delay("counts", self.costs.collective_ps("all_gather", self.n_gpus, n_bytes) + self.costs.kernel_ps)
