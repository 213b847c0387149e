"""Megatron-Core's allgather dispatcher: NCCL all-gather, local permutation, grouped GEMMs, NCCL reduce-scatter."""

from dysharp.base import Numbers
from dysharp.program import I32, Discipline, frozen
from dysharp.systems.building import Kernels, LayerBuilder, Sends, collective, one_after_another
from dysharp.systems.building.between.rings import Pace, gather, scatter
from dysharp.systems.facts import AMPERE_ON, ANY_TYPE, BOTH_FORMS, Costs, Facts, Form, Moves, Reach, Ships, Shown
from dysharp.systems.registry import kernels

PROB_BYTES, MAP_BYTES = 4, 1  # per token and expert: FP32, boolean (Megatron-Core, token dispatcher)


@frozen
class Options(Form):
    """Options of the allgather dispatcher.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds NCCL's start and pace, the all-gathers of probabilities and routing map, and permutations. NCCL's
    pace is a rate: its rings and channels are not modelled.
    """

    compute: bool = True


FACTS = Facts(
    source="https://github.com/NVIDIA/Megatron-LM (allgather dispatcher)",
    options=Options,
    moves=Moves("ring", between="ring"),
    costs=Costs(
        permutes=0,
        fused=False,
        drops="NCCL's start and pace, the all-gathers of probabilities and routing map, permutations (form real has them); rings: every row takes "
        "the straight way to each GPU (the same bytes on every link); shared experts",
        by_size=True,
    ),
    reach=Reach(
        domains=BOTH_FORMS,
        by_name=BOTH_FORMS,  # every token goes to every GPU, so ops would outnumber those of all other systems
        assumes="NCCL's rings at the rate of the NICs; no all-gather between nodes is measured",
    ),
    shown=Shown("#777755"),
    ships=Ships("Megatron-LM dispatchers: rows in BF16 by NCCL", AMPERE_ON, ANY_TYPE),
)


def plan_paper(layer: LayerBuilder, options: Options) -> None:
    """Every GPU receives every token, computes its experts' rows, and returns one row per token.

    Rows leave peer by peer, so all links are busy at any time as in a ring. Over several NVLink domains they take rings hop by hop.
    """
    if layer.cluster.domains > 1:
        scatter(layer, one_after_another(layer, gather(layer)))
        return
    out, back = (layer.per_gpu(Discipline.SMALLEST_KEY, operator) for operator in ("dispatch", "combine"))
    gathered = collective(layer, "dispatch", layer.dispatch_puts(turns=out), out)
    finished = one_after_another(layer, layer.join("gathered", tiles=gathered.tile))
    combine = layer.combine_puts(back)
    for rows in (combine, collective(layer, "combine", combine, back).surplus):
        layer.wait_each(rows.op, finished[rows.node])


class _AllGather(Kernels):
    """A collective starts when all GPUs have called it. Permutations are separate kernels."""

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which the rows of a GPU are sorted by expert."""
        gathered = collective(self, "dispatch", self.dispatch_puts(Discipline.READY_FIFO))
        self._nccl("dispatch", self._maps(), gathered.rows, self.sent_bytes)
        permute = self._permute()
        self.wait_each(permute, self.rows_here(self.join("gathered", tiles=gathered.tile)))
        return permute

    def _maps(self) -> I32 | None:
        """The all-gathers of routing map and probabilities; None: a backward pass uses the gathered data of its forward pass."""
        forward = self.direction == "fwd"
        return self._beside("maps and probabilities", "all_gather", (MAP_BYTES, PROB_BYTES)) if forward else None

    def _permute(self) -> I32:
        """`[gpus]` DELAYs that sort the rows of a GPU."""
        needed = self.counted(self.p.row_gpu)
        return self.reorder("permute", needed, needed)

    def _unpermuted(self, finished: I32) -> I32:
        """`[gpus]` DELAYs that add the rows of a GPU into a buffer of all tokens, after `finished[gpu]`."""
        return self.reorder("unpermute", self.routing.n_tokens, self.counted(self.p.row_gpu), after=finished)

    def combine(self, finished: I32) -> None:
        """Add Combine: after `finished[gpu]` a GPU adds its rows into a buffer of all tokens and returns the sums."""
        unpermute = self._unpermuted(finished)
        combine = self.combine_puts(Discipline.READY_FIFO)
        scattered = collective(self, "combine", combine)
        self._nccl("combine", unpermute, scattered.rows, self.model.row_bytes)
        if self.direction == "bwd":
            gradients = self._beside("probability gradients", "reduce_scatter", (PROB_BYTES,))
            self.wait_each(gradients, self.join("gathered", tiles=scattered.tile))
            self.wait_each(gradients, self.join("returned", tiles=combine.tile))

    def _beside(self, name: str, kind: str, sizes: Numbers) -> I32:
        """Add NCCL collectives of `sizes` bytes per token and expert, in sequence. Returns `[gpus]` the last DELAYs."""
        cells = self.routing.n_tokens * self.model.n_experts
        return self.delay(name, sum(self._collective_ps(kind, size * cells) for size in sizes))

    def _collective_ps(self, kind: str, n_bytes: int) -> int:
        """The time of one collective."""
        return self.costs.collective_ps(kind, self.n_gpus, n_bytes)

    def _nccl(self, name: str, after: I32 | None, rows: Sends, n_bytes: int) -> None:
        """Add NCCL's ring after `after` of all GPUs: start, hops, the own chunk, rows paced by the protocol."""
        start_ps, part = self.costs.ring(self.n_gpus, self.routing.n_tokens * n_bytes)
        pace = self.costs.ring_ps(n_bytes, part)
        start = self.delay(f"{name}.nccl", start_ps, after_all=after)
        self.paced(name, rows, pace, Discipline.PROGRAM_ORDER, begun=start)


class _RailRings(_AllGather):
    """As `_AllGather` over several NVLink domains: rings hop by hop, one per rail. No row judges these times."""

    def dispatch(self) -> I32:
        start, pace = self._ring("dispatch", self._maps(), self.sent_bytes)
        gathered = gather(self, pace, start)
        permute = self._permute()
        self.wait_each(permute, self.rows_here(gathered))
        return permute

    def combine(self, finished: I32) -> None:
        start, pace = self._ring("combine", self._unpermuted(finished), self.model.row_bytes)
        tiles = scatter(self, start, pace)
        if self.direction == "bwd":
            returned = self.join("returned", start, tiles=tiles)
            self.wait_all(self._beside("probability gradients", "reduce_scatter", (PROB_BYTES,)), returned)

    def _ring(self, name: str, after: I32 | None, n_bytes: int) -> tuple[I32, Pace]:
        """(`[gpus]` DELAYs that start a ring of rows of `n_bytes`, after `after` of all GPUs; the pace of its hops by NVLink)."""
        domains = self.cluster.domains
        ring_ps, _, part = self.costs.rail_rings(self.routing.n_tokens * n_bytes)
        flights = (self.n_gpus - domains) * self.flight_ps + (domains - 1) * 2 * self.b.nets[0].lat
        start = self.delay(f"{name}.nccl", max(1, ring_ps - flights), after_all=after)
        cost, pools = self.costs.ring_ps(n_bytes, part), self.pools(1, "stores")
        return start, lambda sends: self.paced(name, sends, cost, pools=pools).op

    def _collective_ps(self, kind: str, n_bytes: int) -> int:
        start, moved, _ = self.costs.rail_rings(n_bytes)
        return start + moved


kernels("megatron-ag", FACTS, between=_RailRings, paper=plan_paper)(_AllGather)
