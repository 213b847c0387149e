"""Time of one layer, of the embedding and of the head on one GPU, by part: a fold over `model.operators` with the clock of `costs.layer`.

The routed experts with dispatch and combine are a Row (`EpTimes`), or closed forms by dispatcher (`moe_block`) where a step must be quick.
`NOT_MODELLED`: what a step of Rows does not count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dysharp.base import frozen
from dysharp.model import CORE, DENSE, NORMS, POSITIONS, ROUTER, SHARED, UP, LayerOperator, MemoryOp, RowExchange, Sum, Weight
from dysharp.model.operators import CONTEXT, CONVOLUTION, COUNTS, EXCHANGE, RESIDUAL, TENSOR, is_routed, operators
from dysharp.model.weights import head_weights, mtp_weights
from dysharp.training.cost import EpTimes, PassCost, collectives
from dysharp.training.memory import FULL
from dysharp.training.moe_block import ELEMENT, LOADED, Basis, exchange, expert_tensor, routed
from dysharp.training.recipe import MODULES, MOE_PIECES, SINGLE, Dispatcher, TrainingRecipe

NOT_MODELLED = (
    "SMs that communication takes from attention", "graphs of launches", "overlap of tensor-parallel communication",
    "variation between layers of one model",
)  # fmt: skip
EXPERTS = "routed experts, dispatch, combine"
AHEAD = (ROUTER, COUNTS)
"""Pieces behind attention that are done before the host knows how many rows come."""
BEHIND = (ROUTER, SHARED, DENSE)
"""Pieces behind attention and norms."""
LABELS = {NORMS: "norms and residual", RESIDUAL: "norms and residual", POSITIONS: "positions", UP: "positions",
          CONVOLUTION: "convolution and gate", DENSE: "activation", SHARED: "activation", ROUTER: "router"}  # fmt: skip
"""Piece -> the name of its memory-bound kernels in `PassCost.parts`."""


@frozen
class Block(Basis):
    """Closed forms of the layers and ends of a model."""

    def layer(self, number: int, ep: EpTimes | None) -> PassCost:
        """Layer `number`; `ep`: the Row of its routed experts, for a MoE layer. With a dispatcher in the recipe, a closed form takes its place.

        Of the recipes that may keep linears in BF16 (`TrainingRecipe.choices`) the fastest counts.
        """
        return self.chosen(number, ep)[1]

    def chosen(self, number: int, ep: EpTimes | None) -> tuple[TrainingRecipe, PassCost]:
        """The training recipe of layer `number` and its cost."""
        tried = self.training_recipe.choices(self.model.is_moe(number), bool(self.model.shared_hidden))
        every = [(one, replace(self, training_recipe=one)._layer(number, ep)) for one in tried]
        return min(every, key=lambda one: one[1].forward + one[1].backward + one[1].weights)

    def _layer(self, number: int, ep: EpTimes | None) -> PassCost:
        before, behind = self.pieces(number)
        moe = self.model.is_moe(number)
        behind |= self.experts(ep) if moe else {}
        done = sum(self.with_replays({**before, **behind}).values(), PassCost())
        late = self._late(ep) if moe else 0.0
        ahead = late + sum(one.forward for one in (*before.values(), *(behind[name] for name in AHEAD if name in behind))) if moe else 0.0
        last = late + behind.get(COUNTS, PassCost()).forward
        return self._launched(ahead, last, done, *self._launched_ops(number), ep)

    def _dispatcher(self, ep: EpTimes | None) -> Dispatcher:
        """The dispatcher whose operations the host launches; "": kernels of a system that computes its experts itself."""
        return self.training_recipe.dispatcher or (ep.dispatcher if ep and ep.busiest else "")

    def _late(self, ep: EpTimes | None) -> float:
        """Dispatch of a forward pass whose host waits for a count behind it: `SINGLE`'s executor sums counts after the kernel."""
        dispatcher, layer = self._dispatcher(ep), self.model.layer
        if dispatcher != SINGLE or layer is None:
            return 0.0
        return exchange(self.machine, self.layout, layer, self.tokens / self.layout.tp, replace(self.training_recipe, dispatcher=SINGLE)).dispatch

    def _launched_ops(self, number: int) -> tuple[tuple[LayerOperator, ...], tuple[LayerOperator, ...]]:
        """Operators of a layer that the host launches before it waits for counts, and behind."""
        ops = operators(self.model, number, self.layout.cut)
        if not self.model.is_moe(number):
            return (), tuple(ops)
        at = 1 + max(i for i, op in enumerate(ops) if op.piece == ROUTER)
        return tuple(ops[:at]), tuple(ops[at:])

    def launches(self, number: int, ep: EpTimes | None = None) -> tuple[float, float]:
        """Host time of the launches of layer `number`, forward and backward; 0 where launches take none. `ep`: as in `layer`."""
        first, rest, back = self._host(*self._launched_ops(number), ep) if self.training_recipe.host else (0.0, 0.0, 0.0)
        return first + rest, back

    def pieces(self, number: int) -> tuple[dict[str, PassCost], dict[str, PassCost]]:
        """(attention and norms, FFN or router and shared experts) of layer `number`, without routed experts; in the order of a forward pass."""
        found: dict[str, PassCost] = {}
        products: list[PassCost] = []
        for op in operators(self.model, number, self.layout.cut):
            if not is_routed(op) and not isinstance(op, RowExchange) and op.piece:
                one = self._tensor(op, products) if isinstance(op, Sum) else self.operator(op)
                products = [] if isinstance(op, Sum) else [*products, one] if isinstance(op, Weight) else products
                found[op.piece] = found.get(op.piece, PassCost()) + one
                if op.piece == CORE:
                    found[CONTEXT] = _context_exchange(self, found[CORE])
        return {name: one for name, one in found.items() if name not in BEHIND}, {name: one for name, one in found.items() if name in BEHIND}

    def operator(self, op: LayerOperator) -> PassCost:
        """One operator, forward and backward."""
        if isinstance(op, Weight):
            return self.product(op)
        label = LABELS.get(op.piece, op.piece) if isinstance(op, MemoryOp) else CORE
        return self.timed(op, label)

    def experts(self, ep: EpTimes | None) -> dict[str, PassCost]:
        """Routed experts with dispatch and combine, and the exchange of ranks that share an expert."""
        if self.training_recipe.dispatcher:
            return routed(self) | expert_tensor(self)
        return (self._between(ep) if ep and ep.busiest else {EXPERTS: self._row(ep) if ep else PassCost()}) | expert_tensor(self)

    def ends(self, embedding: bool, mtp: int, heads: int, ep: EpTimes | None) -> PassCost:
        """Embedding, MTP layers, and heads with their losses."""
        cost = PassCost()
        rows = ELEMENT * self.model.hidden * self.tokens / self.layout.tp
        if embedding:
            cost += self.memory("embedding", 2 * rows, 2 * rows)
        for _ in range(mtp):
            cost += self.layer(self.model.n_layers, ep)
            cost += sum((self.product(weight) for weight in mtp_weights(self.model, self.layout.cut) if weight.product), PassCost())
        for _ in range(heads):
            logits = self.tokens * self.model.vocab / self.layout.tp
            cost += self.memory("loss", 4 * 3 * logits, 4 * 2 * logits)
            cost += sum((self.product(weight) for weight in head_weights(self.model, self.layout.cut) if weight.product), PassCost())
        return cost

    def with_replays(self, pieces: dict[str, PassCost]) -> dict[str, PassCost]:
        """`pieces`, with the forward passes of recomputed ones before their backward passes."""
        modules = self.training_recipe.recompute
        names = {piece for module in modules for piece in MODULES.get(module, ())}
        again = {name for name in pieces if FULL in modules or name in names or ("moe" in modules and name in (*MOE_PIECES, EXPERTS))}
        return {name: one.recomputed() if name in again else one for name, one in pieces.items()}

    def _launched(
        self, ahead: float, last: float, done: PassCost, first: tuple[LayerOperator, ...], rest: tuple[LayerOperator, ...], ep: EpTimes | None
    ) -> PassCost:  # fmt: skip
        """`done` no faster than its host launches it. `ahead`: microseconds of `done` before the host knows counts, `first` its operators.

        The host runs ahead of the GPU. Where it waits for a count, the GPU is idle until new launches arrive: kernels behind the count take as
        long as their launches, if those take longer. Of `ahead` what brings the counts is launched last and takes `last`, while the host waits.
        """
        if self.training_recipe.overlap_ep:
            done = done.overlapped(self.held)
        if not self.training_recipe.host:
            return done
        h1, h2, hosted = self._host(first, rest, ep)
        d1, d2 = ahead, done.forward - ahead
        waits = bool(first) and self.training_recipe.counts and not (self.training_recipe.whole_graph or self.training_recipe.overlap_ep)
        forward = max(h1 + last + h2, d1 + max(h2, d2)) if waits else max(h1 + h2, d1 + d2)
        replayed = waits and not {FULL, "moe"}.isdisjoint(self.training_recipe.recompute)
        late = max(0.0, hosted + (last if replayed else 0.0) - done.backward - done.weights)
        waited = forward - done.forward
        parts = done.parts | {"host": waited + late}
        return replace(
            done, forward=forward, backward=done.backward + late, forward_host=waited, backward_host=late, forward_launches=h1 + h2,
            backward_launches=hosted, parts=parts,
        )  # fmt: skip

    def _host(self, first: Iterable[LayerOperator], rest: Iterable[LayerOperator], ep: EpTimes | None) -> tuple[float, float, float]:
        """Host time of the launches of operators `first` and `rest` of a forward pass, and of its backward pass with replays.

        The framework's grouped GEMM is one launch for each local expert, that of a system with kernels of its own (`EpTimes.busiest`) one.
        """
        layer, recipe = self.model.layer, replace(self.training_recipe, dispatcher=self._dispatcher(ep))
        local = 0 if layer is None else 1 if ep is not None and not recipe.dispatcher else layer.n_experts // self.layout.ep
        counted, sorted_ = recipe.sorts() if first else ((0.0, 0.0), (0.0, 0.0))
        one, other = recipe.launches(first, local, counted), recipe.launches(rest, local, sorted_)
        saved, again = recipe.replays((*first, *rest), local)
        ways = self.machine.launch(*one[0], "forward"), self.machine.launch(other[0][0] + saved, other[0][1], "forward")
        calls, looped = (a + b for a, b in zip(one[1], other[1], strict=True))
        return *ways, self.machine.launch(calls, looped, "backward") + self.machine.launch(*again, "forward")

    def _between(self, ep: EpTimes) -> dict[str, PassCost]:
        """Experts by the framework's kernels on the busiest rank, between the dispatch and the combine of Rows, which nothing hides."""
        found = routed(replace(self, training_recipe=replace(self.training_recipe, dispatcher=ep.dispatcher)))
        found |= {name: found[name].times(ep.busiest) for name in LOADED}
        one, back = ep.forward_wire + self.machine.wait, ep.backward_wire + 2 * self.machine.wait
        return found | {EXCHANGE: PassCost(one, back, 0.0, one, back, one, back, parts={"dispatch and combine": one + back})}

    def _row(self, ep: EpTimes) -> PassCost:
        """Routed experts from Rows. Their weight gradients leave the Row at the rate of GEMMs: the FLOPs of forward, at most half of backward."""
        layer = self.model.layer
        assert layer is not None
        flops = 2 * self.tokens / self.layout.tp * layer.topk * layer.hidden * layer.expert_hidden * layer.n_matrices
        weights = min(self.machine.flops(flops, layer.gemm_dtype), ep.backward / 2)
        whole = {EXPERTS: ep.forward + ep.backward}
        return PassCost(
            ep.forward, ep.backward - weights, weights, ep.forward_exposed, ep.backward_exposed, ep.forward_wire, ep.backward_wire, parts=whole,
        )  # fmt: skip

    def _tensor(self, op: Sum, products: Sequence[PassCost]) -> PassCost:
        """Tensor parallel collectives around the linears `products`: a gather before, a reduce-scatter behind, gradients mirrored.

        Backward, the gradient of the output and the saved input are gathered, and the gradient of the input is scattered. In pieces, the gather
        runs beside all linears but the last, the scatter beside that, the traffic of the backward pass beside its GEMMs. Exposed are the first
        piece of a gather, the last of a scatter, and what a collective takes beyond its other pieces (2026-11-30-pieces-beside-products-found.md).
        """
        t = self.layout.tp
        if t == 1:
            return PassCost()
        if rows := self.training_recipe.tensor:
            pair = int(op.piece != TENSOR)
            return collectives(TENSOR, rows.forward[pair], rows.backward[pair])
        before, behind = (ELEMENT * width * self.tokens for width in (op.gathered, op.scattered))
        ways = self.machine.collective("all_gather", before, t), self.machine.collective("reduce_scatter", behind, t)
        if self.training_recipe.overlap_tp:
            *first, last = (one.forward for one in products)
            beside = (sum(first), last, sum(one.backward + one.weights for one in products))
            gather, scatter, back = (us - (1 - 1 / t) * own for us, own in zip((*ways, ways[0] + sum(ways)), beside, strict=True))
            return collectives(TENSOR, max(ways[0] / t, gather) + max(ways[1] / t, scatter), max(ways[1] / t, back))
        return collectives(TENSOR, sum(ways), ways[0] + sum(ways))


def _context_exchange(block: Basis, core: PassCost) -> PassCost:
    """Context parallel ranks: heads change places with tokens around the kernel ("a2a"), or keys and values go round beside it ("p2p")."""
    a, layout, tokens = block.model.attention, block.layout, block.tokens
    c = layout.cp
    if c == 1:
        return PassCost()
    kv = a.heads if a.mla else a.kv_heads
    queries, keys = ELEMENT * a.heads * a.qk_dim * tokens / layout.tp, ELEMENT * kv * (a.qk_dim + a.value_dim) * tokens / layout.tp
    stride = layout.stride("cp")
    if block.training_recipe.context == "a2a":
        out = ELEMENT * a.heads * a.value_dim * tokens / layout.tp
        one = block.machine.collective("alltoall", queries + keys, c, stride) + block.machine.collective("alltoall", out, c, stride)
        return collectives("context parallel", one, one)
    ring = block.machine.group(keys * c, c, stride)
    return collectives("context parallel", max(0.0, ring - core.forward), max(0.0, 2 * ring - core.backward))
