"""`TrainingRecipe`: how a framework runs a step beside its layout (types of GEMMs, dispatcher, overlap, graphs), and what its host launches."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from dysharp.base import Texts, frozen
from dysharp.model import PLAIN, RECIPES, Formats, Recipe
from dysharp.model.operators import ACTIVATION, CORE, COUNTS, DENSE, EXCHANGE, EXPERTS, NORMS, PERMUTATIONS, ROUTER, SHARED, UP, LayerOperator, Weight
from dysharp.specs import WholeModel
from dysharp.training.memory import FULL

DType = Literal["", "bf16", "fp8", "mxfp8", "fp4"]
Launches = tuple[float, float]
Dispatcher = Literal["", "alltoall", "deepep", "uccl", "hybrid-ep"]
GRAPH_PARTS = ("attn", "mlp", "moe_router", "moe_preprocess", "moe", "mamba")
"""Parts of a layer that a graph can replay (Megatron-LM, --cuda-graph-scope)."""
WHOLE = "full_iteration"
"""The graph of a whole iteration: nothing is launched one by one, and nothing waits for a count of rows."""
SORTS = (8.0, 0.0), (4.0, 10.0)
"""Operations of alltoall beside those of `model.operators`, forward and backward: sums, gathers and slices of numbers of tokens before the host waits
for them, the second permutation and copies of counts behind (Megatron-LM, token_dispatcher.py)."""
MODULES = {
    "core_attn": (CORE,), "mla_up_proj": (UP,), "layernorm": (NORMS,), "mlp": (DENSE,), "moe_act": (ACTIVATION,), "shared_experts": (SHARED,),
}  # fmt: skip
"""Module that is computed again -> pieces of a layer whose forward pass runs again."""
MOE_PIECES = (ROUTER, SHARED, COUNTS, EXCHANGE, PERMUTATIONS, EXPERTS, ACTIVATION)
CHECKPOINTS = {"layernorm": 2}
"""Checkpoints of a module in a layer where there is more than one."""
SAVE_STATES, REPLAY_STATES = 1, 3
"""Operations of a checkpoint beside its module: random states of host, device and tracker are saved before the forward pass; saved, set and reset
around the replay (Megatron-LM, tensor_parallel/random.py). That each counts as one operation was chosen with measured steps in sight."""
CAST_KERNELS = {"": 0, "bf16": 0, "fp8": 3, "mxfp8": 2, "fp4": 3}
"""Kernels that quantise one tensor: largest value, cast and transpose; with MX scales the cast and a reordering of the scales."""
UNFUSED = 72 / 31
"""Kernels of a router without and with Megatron-LM's fusion (its guide of DeepSeek-V3 on GB200)."""
SINGLE: Dispatcher = "hybrid-ep"
"""Permutes, exchanges and permutes in one operation each way (Megatron-LM, fused_a2a.py: HybridEPDispatch, HybridEPCombine)."""
STEPS = {"dispatch": ((2.0, 1.0), (5.0, 2.0)), "combine": ((1.0, 1.0), (2.0, 2.0))}
"""Operations of `SINGLE` forward and backward, and kernels inside them: Dispatch has a sum of counts, maps, a scan, counts, rows, a permutation."""
PADS = 3
"""Operations each way that pad rows and probabilities of experts and take the padding off (Megatron-LM, experts.py, TEGroupedMLP.forward)."""
SMS = {"": 0, "alltoall": 0, "deepep": 20, "uccl": 20, "hybrid-ep": 32}
"""SMs that the exchange holds. Megatron-LM's default of DeepEP; Megatron-Bridge's recipes with Hybrid-EP. NCCL's are not published."""


@frozen
class SubLayers:
    """Rows of a tensor-parallel system: microseconds beside GEMMs and norms of (L1, L2) forward and of their gradients (L3, L4)."""

    system: str
    forward: tuple[float, float]
    backward: tuple[float, float]


@frozen
class TrainingRecipe:
    """What a training recipe says beside the layout.

    | field | meaning |
    |---|---|
    | `dtype` | of GEMMs; "": the model's experts say it |
    | `dispatcher` | of routed experts as a closed form; "": a Row has their time |
    | `overlap_ep` | EP communication of one micro-batch beside computing of another |
    | `overlap_tp` | tensor parallel collectives in pieces beside their GEMM |
    | `overlap_dp`, `overlap_gather` | buckets of gradients beside the passes; those of parameters, too |
    | `graphs` | parts that graphs replay (`GRAPH_PARTS`), or `WHOLE` |
    | `plain_ddp` | gradients are scaled and looked through for NaN before they are reduced (Megatron-LM's defaults) |
    | `counts` | the host waits for a count of rows before experts (without capacities) |
    | `host` | launches take time |
    | `frozen` | weights have no gradients (LoRA); adapters themselves are not counted |
    | `recompute` | modules that are computed again, as Megatron names them |
    | `tensor` | Rows of a system of sub-layers, in place of tensor parallel collectives |
    | `context` | how context parallel ranks exchange: "a2a" of heads, "p2p" ring of keys and values |
    | `router_fusion` | one kernel for scores and choice of a router (Megatron's default is not to) |
    | `formats` | of copies of weights and their products by part; None: all as `dtype` |
    """

    dtype: DType = ""
    dispatcher: Dispatcher = ""
    overlap_ep: bool = False
    overlap_tp: bool = False
    overlap_dp: bool = True
    overlap_gather: bool = True
    plain_ddp: bool = False
    graphs: Texts = ()
    counts: bool = True
    host: bool = False
    frozen: bool = False
    recompute: Texts = ()
    context: Literal["a2a", "p2p"] = "p2p"
    tensor: SubLayers | None = None
    router_fusion: bool = True
    formats: Formats | None = None

    @property
    def state(self) -> Recipe:
        """What ranks hold of weights, gradients and optimizer, and so what they reduce and update; without `formats`, Megatron's defaults."""
        return RECIPES[self.formats.state] if self.formats else PLAIN

    @property
    def whole_graph(self) -> bool:
        """Whether one graph replays the iteration."""
        return WHOLE in self.graphs

    @property
    def fused_experts(self) -> bool:
        """Whether grouped GEMMs of experts end with activation and casts: recipes in MXFP8 that replay whole iterations set
        NVTE_CUTEDSL_FUSED_GROUPED_MLP (Megatron-Bridge 03573ca6, perf_recipes).
        """
        return self.whole_graph and self.dtype == "mxfp8"

    @property
    def pads(self) -> bool:
        """Whether rows of each expert are padded for products narrower than BF16: a whole graph cannot wait for counts on the host."""
        return self.dtype not in ("", "bf16") and not self.whole_graph

    def sorts(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Operations of the dispatcher beside those of `model.operators`, before the host waits for counts and behind."""
        none = 0.0, 0.0
        if self.dispatcher != "alltoall":
            return none, none
        return none if self._in_graph("moe_preprocess") else SORTS[0], none if self.whole_graph else SORTS[1]

    def launches(self, ops: Iterable[LayerOperator], local_experts: int = 0, others: Launches = (0.0, 0.0)) -> tuple[Launches, Launches]:
        """(operations, kernels inside an operation's loop) that the host launches for `ops`: forward, backward.

        Anchors of the op list: 151 kernels per layer and micro-batch, Qwen3-30B with Hybrid-EP and 8 local experts (Megatron-Bridge, skill of
        expert-parallel overlap); router and preprocessing 17 with DeepEP, router alone 31 fused, 72 unfused (DeepSeek-V3 on GB200 guide); 240 for a
        block of DeepSeek's own stack (profile-data). Transformer Engine's grouped linear calls cuBLAS for each local expert.
        """
        calls, looped = list(others), [0.0, 0.0]
        for op in ops:
            if self._in_graph(op.scope):
                continue
            product = isinstance(op, Weight) and op.product
            counts, inside = STEPS[op.name] if self.dispatcher == SINGLE and op.name in STEPS else (op.launches, (0.0, 0.0))
            casts = CAST_KERNELS[self._type(op)] if isinstance(op, Weight) and op.product and op.piece != ROUTER else 0
            for way in (0, 1):
                if product and op.piece == EXPERTS:
                    looped[way] += local_experts * (counts[way] + casts)
                    calls[way] += PADS / 2 * self.pads
                else:
                    calls[way] += counts[way] * (1.0 if self.router_fusion or product or op.piece != ROUTER else UNFUSED)
                    looped[way] += casts + inside[way]
        return (calls[0], looped[0]), (calls[1], looped[1])

    def products(self, model: WholeModel) -> str:
        """Type of the GEMMs of most work (`Formats.main`), whose peak MFU refers to."""
        return self.dtype or (model.layer.gemm_dtype if model.layer else "bf16")

    def _type(self, op: Weight) -> str:
        return self.formats.of(op.part).compute if self.formats else self.dtype

    def choices(self, moe: bool, shared: bool) -> Iterator["TrainingRecipe"]:
        """This recipe, and those that keep linears of a part in BF16, where FP8 costs more in casts and launches than its products gain.

        Megatron-LM says the precision of every linear and grouped linear by name (--te-precision-config-file). That FP8 can lose is measured: 16 H100
        train Qwen3-30B at 8,900 tokens/s each in FP8 (Megatron-Bridge's preset), at 12,400 in BF16. `products` of `formats` forbids the choice.
        """
        yield self
        if self.formats is None or self.formats.products:
            return
        parts = ("attention", *(("experts",) if moe else ()), *(("dense",) if shared or not moe else ()))
        narrow = [part for part in parts if getattr(self.formats, part) != "bf16"]
        for kept in itertools.chain.from_iterable(itertools.combinations(narrow, n) for n in range(1, len(narrow) + 1)):
            formats = replace(self.formats, **dict.fromkeys(kept, "bf16"))
            yield replace(self, formats=formats, dtype="bf16" if ("experts" if moe else "dense") in kept else self.dtype)

    def _in_graph(self, scope: str) -> bool:
        return self.whole_graph or scope in self.graphs

    def replays(self, ops: Sequence[LayerOperator], local_experts: int = 0) -> tuple[float, Launches]:
        """Launches of modules that a layer of `ops` computes again: operations before its forward pass, and (operations, kernels inside loops) that
        the backward pass launches as a forward pass does.
        """
        saved, calls, looped = 0.0, 0.0, 0.0
        for module in (FULL,) if FULL in self.recompute else self.recompute:
            pieces = MODULES.get(module, MOE_PIECES)
            chosen = [op for op in ops if module == FULL or op.piece in pieces]
            own = self.launches(chosen, local_experts)[0]
            if any(own):
                checkpoints = CHECKPOINTS.get(module, 1)
                saved += SAVE_STATES * checkpoints
                calls += own[0] + REPLAY_STATES * checkpoints
                looped += own[1]
        return saved, (calls, looped)
