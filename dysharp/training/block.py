"""Time of one layer, of the embedding and of the head on one GPU, by part: GEMMs, attention and memory-bound kernels as closed forms.

The routed experts with dispatch and combine are a Row (`EpTimes`), or closed forms by dispatcher (`moe_block`) where a step must be quick.
`NOT_MODELLED`: what a step of Rows does not count.
"""

from dataclasses import dataclass, replace

from dysharp.costs.attention import Attention
from dysharp.costs.linear_attention import DeltaNet
from dysharp.model.operators import Weight
from dysharp.model.weights import head_weights, layer_weights, mtp_weights
from dysharp.training.cost import Cost, EpTimes, passes
from dysharp.training.memory import FULL
from dysharp.training.moe_block import ELEMENT, Basis, contended, context_exchange, expert_tensor, routed
from dysharp.training.practice import KERNELS

NOT_MODELLED = (
    "casts to FP8", "SMs that communication takes from attention", "graphs of launches", "overlap of tensor-parallel communication",
    "variation between layers of one model",
)  # fmt: skip
EXPERTS, CORE, DENSE = "routed experts, dispatch, combine", "core attention", "dense FFN"
TENSOR, CONTEXT = "tensor parallel", "context"
UP = ("q up", "kv up")
REPLAYED = {
    "core_attn": (CORE,), "mla_up_proj": ("up projections",), "layernorm": ("norms",), "mlp": (DENSE,), "moe_act": ("expert activation",),
    "shared_experts": ("shared experts",),
}  # fmt: skip
"""Module that is computed again -> pieces of a layer whose forward pass runs again."""
AHEAD = ("router", "counts")
"""Pieces behind attention that are done before the host knows how many rows come."""
MOE_PIECES = ("router", "shared experts", EXPERTS, "counts", "exchange", "permutations", "experts", "expert activation")
PASSES, MLA_PASSES = 2, 3
"""Times that positions and joins of parts read and write queries and keys (RoPE, concatenation). Norms of heads read and write them once more."""
_ROWS = ("out", "linear out", "FC2", "shared FC2")
"""Weights that tensor parallelism cuts along their inputs."""


@dataclass(frozen=True, slots=True)
class Block(Basis):
    """Closed forms of the layers and ends of a model."""

    def layer(self, number: int, ep: EpTimes | None) -> Cost:
        """Layer `number`; `ep`: the Row of its routed experts, for a MoE layer. With a dispatcher in `practice`, a closed form takes its place."""
        before, behind = self.pieces(number)
        moe = self.model.is_moe(number)
        behind |= self.experts(ep) if moe else {}
        done = sum(self.with_replays({**before, **behind}).values(), Cost())
        ahead = (*before.values(), *(behind[name] for name in AHEAD if name in behind)) if moe else ()
        last = behind.get("counts", Cost()).forward
        return self._launched(sum(ahead, Cost()), last, done, *self._groups(moe))

    def _groups(self, moe: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Rows of `KERNELS` that a layer launches before the host waits for counts, and behind."""
        kinds = ("attn", *(["mla"] if self.model.attention.mla else []), *(["tensor"] if self.layout.tp > 1 else []))
        if not moe:
            return (), (*kinds, "dense")
        sorts = self.practice.dispatcher == "alltoall"
        behind = ("moe", *(["shared"] if self.model.shared_hidden else []), *(["alltoall"] if sorts else []))
        return (*kinds, "router", *(["counts"] if sorts else [])), (*behind, *(("expert",) if self.practice.dispatcher else ()))

    def launches(self, number: int) -> tuple[float, float]:
        """Host time of the launches of layer `number`, forward and backward; 0 where launches take none."""
        first, rest, back = self._host(*self._groups(self.model.is_moe(number))) if self.practice.host else (0.0, 0.0, 0.0)
        return first + rest, back

    def pieces(self, number: int) -> tuple[dict[str, Cost], dict[str, Cost]]:
        """(attention, FFN or router and shared experts) of layer `number`, without routed experts; in the order of a forward pass."""
        attention = self._linear_attention(number) if self.model.is_linear(number) else self._attention(number)
        return attention, self._shared() if self.model.is_moe(number) else self._dense()

    def experts(self, ep: EpTimes | None) -> dict[str, Cost]:
        """Routed experts with dispatch and combine, and the exchange of ranks that share an expert."""
        return (routed(self) if self.practice.dispatcher else {EXPERTS: self._row(ep) if ep else Cost()}) | expert_tensor(self)

    def ends(self, embedding: bool, mtp: int, heads: int, ep: EpTimes | None) -> Cost:
        """Embedding, MTP layers, and heads with their losses."""
        cost = Cost()
        rows = ELEMENT * self.model.hidden * self.tokens / self.layout.tp
        if embedding:
            cost += self.memory("embedding", 2 * rows, 2 * rows)
        for _ in range(mtp):
            joining = [weight for weight in mtp_weights(self.model) if weight.product]
            cost += self.layer(self.model.n_layers, ep)
            for weight in joining:
                cost += self._linear(weight)
        for _ in range(heads):
            cost += self._head()
        return cost

    def with_replays(self, pieces: dict[str, Cost]) -> dict[str, Cost]:
        """`pieces`, with the forward passes of recomputed ones before their backward passes."""
        modules = self.practice.recompute
        names = {piece for module in modules for piece in REPLAYED.get(module, ())}
        again = {name for name in pieces if FULL in modules or name in names or ("moe" in modules and name in MOE_PIECES)}
        return {name: one.recomputed() if name in again else one for name, one in pieces.items()}

    def _launched(self, ahead: Cost, last: float, done: Cost, first: tuple[str, ...], rest: tuple[str, ...]) -> Cost:
        """`done` no faster than its host launches it. `ahead`: the part of `done` before the host waits for counts, `first` its kernels.

        The host runs ahead of the GPU. Where it waits for a count, the GPU is idle until new launches arrive: kernels behind the count take as
        long as their launches, if those take longer. Of `ahead` the exchange of counts is launched last and takes `last`, while the host waits.
        """
        if self.practice.overlap_ep:
            done = done.overlapped(contended(self))
        if not self.practice.host:
            return done
        h1, h2, hosted = self._host(first, rest)
        d1, d2 = ahead.forward, done.forward - ahead.forward
        waits = bool(first) and self.practice.counts and not (self.practice.whole_graph or self.practice.overlap_ep)
        forward = max(h1 + last + h2, d1 + max(h2, d2)) if waits else max(h1 + h2, d1 + d2)
        replayed = waits and not {FULL, "moe"}.isdisjoint(self.practice.recompute)
        late = max(0.0, hosted + (last if replayed else 0.0) - done.backward - done.weights)
        waited = forward - done.forward
        parts = done.parts | {"host": waited + late}
        return replace(done, forward=forward, backward=done.backward + late, forward_host=waited, backward_host=late, parts=parts)

    def _host(self, first: tuple[str, ...], rest: tuple[str, ...]) -> tuple[float, float, float]:
        """Host time of the launches of kernels `first` and `rest` of a forward pass, and of its backward pass with replays."""
        layer = self.model.layer
        local = layer.n_experts // self.layout.ep if layer else 0
        one, other = self.practice.kernels(first, local), self.practice.kernels(rest, local)
        saved, again = self.practice.replays((*first, *rest), local)
        ways = self.machine.launch(*one[0], "forward"), self.machine.launch(other[0][0] + saved, other[0][1], "forward")
        calls, looped = (a + b for a, b in zip(one[1], other[1], strict=True))
        return *ways, self.machine.launch(calls, looped, "backward") + self.machine.launch(*again, "forward")

    def _head(self) -> Cost:
        logits = self.tokens * self.model.vocab / self.layout.tp
        cost = self.memory("loss", 4 * 3 * logits, 4 * 2 * logits)
        for weight in head_weights(self.model):
            if weight.product:
                cost += self._linear(weight, "bf16")
        return cost

    def _linear(self, weight: Weight, dtype: str | None = None) -> Cost:
        """A product with a weight matrix: forward, gradient of its input, gradient of the weight; casts of its input and output gradient."""
        t = self.layout.tp
        kind = dtype or ("bf16" if weight.part == "router" else self.dtype)
        rows, outputs, inputs = float(self.tokens), float(weight.outputs), float(weight.inputs)
        if weight.split == "none":
            rows /= t
        elif weight.name in _ROWS:
            inputs /= t
        else:
            outputs /= t
        gemm = self.machine.gemm
        weights = 0.0 if self.practice.frozen else gemm(outputs, inputs, rows, kind, accumulate=True)
        products = gemm(rows, outputs, inputs, kind), gemm(rows, inputs, outputs, kind), weights
        return passes(weight.part, *products) + self.casts(kind, rows * inputs, rows * outputs)

    def _weights(self, moe: bool, parts: tuple[str, ...], names: tuple[str, ...] = ()) -> Cost:
        """Linears of `parts`, or only `names` of them."""
        chosen = (weight for weight in layer_weights(self.model, moe) if weight.product and weight.part in parts)
        return sum((self._linear(weight) for weight in chosen if not names or weight.name in names), Cost())

    def _attention(self, number: int) -> dict[str, Cost]:
        """Projections, positions, core attention, context and tensor parallel exchanges, norms."""
        a, t, moe = self.model.attention, self.layout.tp, self.model.is_moe(number)
        window = a.window if self.model.windowed(number) else 0
        kv, over = a.heads if a.mla else a.kv_heads, t * self.layout.cp  # context ranks have equal parts of the causal pairs
        call = Attention(
            batch=self.layout.micro_batch, queries=self.sequence, heads=a.heads / over, kv_heads=kv / over, qk_dim=a.qk_dim, v_dim=a.value_dim,
            window=window,
        )  # fmt: skip
        core = passes(CORE, self.machine.attention(call, "forward"), self.machine.attention(call, "backward"))
        turns = (MLA_PASSES if a.mla else PASSES) + a.qk_norm
        moved = 2 * ELEMENT * turns * self.tokens * (a.heads + kv) * a.qk_dim / t
        names = tuple(weight.name for weight in layer_weights(self.model, moe) if weight.part == "attention" and weight.name not in UP)
        gathered = a.q_rank + a.kv_rank + a.rope_dim if a.mla else self.model.hidden
        return {
            "projections": self._weights(moe, ("attention",), names),
            TENSOR: self._tensor(0, gathered, self.model.hidden),
            "up projections": self._weights(moe, ("attention",), UP) + self.memory("positions", moved, moved) if a.mla else Cost(),
            "positions": Cost() if a.mla else self.memory("positions", moved, moved),
            CORE: core,
            CONTEXT: context_exchange(self, core),
            "norms": self._norms(),
        }

    def _linear_attention(self, number: int) -> dict[str, Cost]:
        """Projections, the convolution with the gated norm, the gated delta net, norms."""
        a, t = self.model.linear, self.layout.tp
        assert a is not None
        call = DeltaNet(self.layout.micro_batch, self.sequence, max(1.0, a.key_heads / t), a.value_heads / t, a.key_dim, a.value_dim)
        moved = ELEMENT * self.tokens * (2 * a.mixed + 3 * a.value_heads * a.value_dim) / t
        chosen = (weight for weight in layer_weights(self.model, self.model.is_moe(number), linear=True) if weight.product)
        return {
            "projections": sum((self._linear(weight) for weight in chosen if weight.part == "attention"), Cost()),
            TENSOR: self._tensor(0, self.model.hidden, self.model.hidden),
            "convolution": self.memory("convolution and gate", moved, 5 / 3 * moved),
            CORE: passes(CORE, self.machine.delta_net(call, "forward"), self.machine.delta_net(call, "backward")),
            "norms": self._norms(),
        }

    def kind(self, number: int) -> tuple[bool, bool, bool]:
        """What tells a layer from others: experts, a window, linear attention."""
        return self.model.is_moe(number), self.model.windowed(number), self.model.is_linear(number)

    def _dense(self) -> dict[str, Cost]:
        inner = self.model.dense_hidden
        moved = self.model.dense_matrices * ELEMENT * self.tokens * inner / self.layout.tp
        active = self.memory("activation", moved, 5 / 3 * moved)
        return {DENSE: self._weights(False, ("dense FFN",)) + active + self._tensor(1, self.model.hidden, self.model.hidden)}

    def _shared(self) -> dict[str, Cost]:
        """Router, with its small kernels, and shared experts."""
        small = passes("router", *map(self.machine.small, KERNELS["router"])) if self.practice.dispatcher else Cost()
        pieces = {"router": self._weights(True, ("router",)) + small}
        if inner := self.model.shared_hidden:
            moved = 3 * ELEMENT * self.tokens * inner / self.layout.tp
            active = self.memory("activation", moved, 5 / 3 * moved)
            pieces["shared experts"] = self._weights(True, ("shared experts",)) + active + self._tensor(1, self.model.hidden, self.model.hidden)
        return pieces

    def _norms(self) -> Cost:
        """Norms (read and write), and two additions to the residual stream (two reads and a write)."""
        rows = ELEMENT * self.model.hidden * self.tokens / self.layout.tp
        norms = self.model.norms_per_layer
        return self.memory("norms and residual", (2 * norms + 6) * rows, (3 * norms + 4) * rows)

    def _row(self, ep: EpTimes) -> Cost:
        """Routed experts from Rows. Their weight gradients leave the Row at the rate of GEMMs: the FLOPs of forward, at most half of backward."""
        layer = self.model.layer
        assert layer is not None
        flops = 2 * self.tokens / self.layout.tp * layer.topk * layer.hidden * layer.expert_hidden * layer.n_matrices
        weights = min(self.machine.flops(flops, layer.gemm_dtype), ep.backward / 2)
        whole = {EXPERTS: ep.forward + ep.backward}
        return Cost(
            ep.forward, ep.backward - weights, weights, ep.forward_exposed, ep.backward_exposed, ep.forward_wire, ep.backward_wire,
            parts=whole,
        )  # fmt: skip

    def _tensor(self, pair: int, gathered: int, scattered: int) -> Cost:
        """Tensor parallel collectives around a pair of linears (0: attention, 1: FFN): a gather before, a reduce-scatter behind, gradients mirrored.

        Backward, the gradient of the output and the saved input are gathered, and the gradient of the input is scattered. In pieces, only the
        first piece of a gather and the last of a scatter are exposed, and the traffic of the backward pass hides behind both its GEMMs.
        """
        t = self.layout.tp
        if t == 1:
            return Cost()
        if rows := self.practice.tensor:
            return passes(TENSOR, rows.forward[pair], rows.backward[pair])
        before, behind = (ELEMENT * width * self.tokens for width in (gathered, scattered))
        ways = self.machine.collective("all_gather", before, t, 1), self.machine.collective("reduce_scatter", behind, t, 1)
        if self.practice.overlap_tp:
            return passes(TENSOR, sum(ways) / t, ways[1] / t)
        return passes(TENSOR, sum(ways), ways[0] + sum(ways))
