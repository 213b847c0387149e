"""Megatron-Core's allgather dispatcher: NCCL all-gather of all tokens, a local permutation, grouped GEMMs, NCCL reduce-scatter of all sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Alloc, Discipline, Head, Kind, Program, Tail, Template, To
from dysharp.program.constants import COMBINE, DISPATCH
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.layer import STORE, LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
PROB_BYTES, MAP_BYTES = 4, 1  # per token and expert: FP32 probabilities, a boolean routing map (Megatron-Core, token dispatcher)


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): NCCL's start and pace (as rates: its rings and channels are not modelled), the all-gathers of
    probabilities and routing map, permutations. `compute` = False leaves the GEMMs out: pure communication.
    """

    form: str = "auto"
    compute: bool = True


@system(
    "megatron-ag",
    source="https://github.com/NVIDIA/Megatron-LM (allgather dispatcher); spec/baselines.md sections 4 and 10",
    options=Options,
    traffic="ring",
    permutes=0,
    fused=False,
    colour="#117733",
    ships=Ships("Megatron-LM dispatchers: rows in BF16 by NCCL", ("ampere", "hopper", "blackwell"), {"fp8": {}, "bf16": {}}),
    drops="NCCL's start and pace, the all-gathers of probabilities and routing map, permutations (form real has them); rings: every row takes "
    "the straight way to each GPU (the same bytes on every link); shared experts",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Every token to every GPU, the GEMMs of the rows that a GPU needs, a row back for every token from every GPU."""
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute)
    if is_real(options.form, cluster):
        kernels = _AllGather(layer)
        kernels.combine(one_after_another(layer, kernels.dispatch()))
        return layer.build("ring")
    dispatch = _Rows(layer, "dispatch", layer.dispatch_puts(), np.arange(len(layer.p.token)))
    finished = one_after_another(layer, dispatch.arrived())
    combine = layer.combine_puts(Discipline.PROGRAM_ORDER)
    layer.all_of_gpu_wait(Tail.OP_DONE, finished, combine, layer.p.gpu[layer.push_order])
    surplus = _Rows(layer, "combine", combine, layer.push_order)
    layer.all_of_gpu_wait(Tail.OP_DONE, finished, surplus.first, surplus.nodes)
    return layer.build("ring")


class _Rows:
    """All rows of a collective: those that carry a token to (or a sum from) its experts, and surplus ones between all other pairs of a token and
    a GPU, whose content nobody reads.

    `ops`, `node`, `to` `[rows]`: every row in the order of sending, each GPU's first token to all peers in turn, then its second; `first`, `nodes`
    are the first surplus op and where they start.
    """

    def __init__(self, layer: LayerBuilder, operator: str, useful: int, pairs: I64) -> None:
        """`useful`: first op of the rows with content, of `pairs` in that order."""
        self.layer, self.operator, p = layer, operator, layer.p
        needed = np.zeros((layer.routing.n_tokens, layer.n_gpus), bool)
        needed[p.token, p.gpu] = True
        needed[np.arange(layer.routing.n_tokens), layer.every_source] = True
        token, gpu = (axis.astype(np.int32) for axis in np.nonzero(~needed))
        node, to = self._way(token, gpu)
        order = np.lexsort((token, node))
        token, to = token[order], to[order]
        self.nodes: I32 = node[order]
        self.first = self._surplus(token, to)
        node, away = self._way(p.token[pairs], p.gpu[pairs])
        ops = np.append(useful + np.arange(len(pairs)), self.first + np.arange(len(token)))
        token, node, to = np.append(p.token[pairs], token), np.append(node, self.nodes), np.append(away, to)
        order = np.lexsort(((to - node) % layer.n_gpus, token % layer.tokens, node))
        self.ops, self.node, self.to = ops[order], node[order], to[order]

    def _way(self, token: I32, gpu: I32) -> tuple[I32, I32]:
        """(from, to) of the rows of `token` and `gpu`."""
        source = self.layer.every_source[token]
        return (source, gpu) if self.operator == "dispatch" else (gpu, source)

    def _surplus(self, token: I32, to: I32) -> int:
        """PUTs of surplus rows into a region of their own at each GPU. Returns the first op."""
        layer, operator, n = self.layer, self.operator, self.layer.n_gpus
        n_bytes, cls = (layer.sent_bytes, DISPATCH) if operator == "dispatch" else (layer.model.row_bytes, COMBINE)
        here = np.bincount(to, minlength=n)
        place = np.empty(len(to), np.int64)
        place[np.argsort(to, kind="stable")] = np.arange(len(to))
        _, row, tile = layer.b.regions(np.arange(n), here, n_bytes, int(max(1, here.max())), alloc=Alloc.PREFIX, name=f"{operator}.surplus")
        self.tiles = np.where(here > 0, tile + np.cumsum(here > 0) - 1, -1)
        template = Template(f"{operator}.surplus", Kind.PUT, operator, "control", cls, framing=layer.b.framing(STORE))
        one = np.ones(len(to), np.int32)
        return layer.b.ops(
            layer.b.template(template),
            self.nodes,
            issuer=layer.per_gpu(Discipline.READY_FIFO, f"{operator}.surplus")[self.nodes],
            bytes=n_bytes,
            key=token,
            to=To(one, to, one, row + place),
            targets=1,
        )

    def arrived(self) -> I32:
        """A JOIN per GPU behind its surplus rows."""
        b, gpus = self.layer.b, np.arange(self.layer.n_gpus)
        joins = b.ops(b.template(Template("gathered", Kind.JOIN, "other", "join")), gpus) + gpus
        some = self.tiles >= 0
        b.edges(Tail.TILE_READY, self.tiles[some], Head.OP_ISSUE, joins[some])
        return joins.astype(np.int32)


class _AllGather(SoftwareSteps):
    """Collectives start when all GPUs are there; permutations are kernels of their own."""

    def dispatch(self) -> I32:
        """Returns the DELAY of each GPU behind which its rows lie by expert."""
        layer = self.layer
        rows = _Rows(layer, "dispatch", layer.dispatch_puts(Discipline.READY_FIFO), np.arange(len(layer.p.token)))
        forward = layer.direction == "fwd"  # a backward pass knows who needs what
        ready = self._beside("maps and probabilities", "all_gather", (MAP_BYTES, PROB_BYTES)) if forward else None
        self._send("dispatch", ready, rows, layer.sent_bytes)
        needed = np.bincount(layer.row_gpu, minlength=layer.n_gpus)
        permute = self.delay("permute", [self._reorder(n, n) for n in needed.tolist()])
        self.each_waits(layer.gpu_barrier(Tail.TILE_READY, 0, also=rows.arrived()), permute)
        return permute

    def combine(self, finished: I32) -> None:
        """`finished[gpu]`: the GEMMs of a GPU. Its rows are added into a buffer of all tokens, whose sums go home."""
        layer = self.layer
        needed = np.bincount(layer.row_gpu, minlength=layer.n_gpus)
        unpermute = self.delay("unpermute", [self._reorder(layer.routing.n_tokens, n) for n in needed.tolist()])
        self.each_waits(finished, unpermute)
        rows = _Rows(layer, "combine", layer.combine_puts(Discipline.READY_FIFO), layer.push_order)
        self._send("combine", unpermute, rows, layer.model.row_bytes)
        if layer.direction == "bwd":
            gradients = self._beside("probability gradients", "reduce_scatter", (PROB_BYTES,))
            self.each_waits(rows.arrived(), gradients)
            returned = self.join("returned")
            self.arrived(returned)
            self.each_waits(returned, gradients)

    def _beside(self, name: str, kind: str, sizes: tuple[int, ...]) -> I32:
        """Collectives of `sizes` bytes per token and expert, one after the other. Returns a DELAY per GPU."""
        layer = self.layer
        cells = layer.routing.n_tokens * layer.model.n_experts
        return self.delay(name, sum(self.costs.collective_ps(kind, layer.n_gpus, size * cells) for size in sizes))

    def _reorder(self, tokens: int, rows: int) -> int:
        layer = self.layer
        return self.costs.reorder_ps(tokens, rows, layer.model.hidden, layer.model.row_bytes / layer.model.hidden)

    def _send(self, name: str, after: I32 | None, rows: _Rows, n_bytes: int) -> None:
        """NCCL's ring when all GPUs are there: its start and hops, the own chunk, rows at the pace of its protocol."""
        layer, costs = self.layer, self.costs
        start_ps, part = costs.ring(layer.n_gpus, layer.routing.n_tokens * n_bytes)
        pace = costs.stores_ps(n_bytes, part)
        start = self.delay(f"{name}.nccl", start_ps + round(costs.value("nccl.self_copy") * pace * layer.tokens))
        if after is not None:
            self.all_wait(after, start)
        self.release(start, self.paced(name, rows.ops, rows.node, rows.to, pace, Discipline.PROGRAM_ORDER), rows.node)
