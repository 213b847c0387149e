"""`Practice`: how a framework runs a step beside its layout (types of GEMMs, dispatcher, overlap, graphs), and the kernels that its host launches."""

from dataclasses import dataclass
from typing import Literal

from dysharp.training.memory import FULL

DType = Literal["", "bf16", "fp8", "mxfp8", "fp4"]
Dispatcher = Literal["", "alltoall", "deepep", "hybrid-ep"]
GRAPH_PARTS = ("attn", "mlp", "moe_router", "moe_preprocess", "moe")
"""Parts of a layer that a graph can replay (Megatron-LM, --cuda-graph-scope)."""
WHOLE = "full_iteration"
"""The graph of a whole iteration: nothing is launched one by one, and nothing waits for a count of rows."""
GRAPH_OF = {"attn": "attn", "dense": "mlp", "router": "moe_router", "moe": "moe", "counts": "moe_preprocess"}
"""Row of `KERNELS` -> the graph scope that replays it."""
KERNELS: dict[str, tuple[int, int]] = {
    "attn": (10, 20),
    "mla": (8, 15),
    "dense": (5, 9),
    "router": (17, 12),
    "moe": (15, 22),
    "shared": (4, 8),
    "counts": (8, 0),
    "alltoall": (4, 10),
    "tensor": (4, 6),
    "expert": (2, 4),
}
"""Kernels forward and backward. "mla": beside those of "attn"; "counts": of alltoall, which sums, gathers and slices numbers of tokens (Megatron-LM,
token_dispatcher.py, preprocess); "alltoall": its second permutation and copies of counts; "tensor": collectives; "expert": one GEMM per local expert
and linear (Transformer Engine's grouped linear calls cuBLAS for each).

Counted from the op list of a block. Anchors: 151 kernels per layer and micro-batch, Qwen3-30B with Hybrid-EP and 8 local experts (Megatron-Bridge,
skill of expert-parallel overlap); router and preprocessing 17 with DeepEP, router alone 31 fused, 72 unfused (DeepSeek-V3 on GB200 guide); 240 for a
block of DeepSeek's own stack (profile-data).
"""
REPLAYED = {
    "core_attn": ("attn", 1, 1), "mla_up_proj": ("mla", 6, 1), "layernorm": ("attn", 2, 2), "mlp": ("dense", 4, 1), "moe_act": ("moe", 1, 1),
    "shared_experts": ("shared", 4, 1),
}  # fmt: skip
"""Module that is computed again -> row of `KERNELS` that holds it, forward operations that its replay launches, checkpoints."""
SAVE_STATES, REPLAY_STATES = 1, 3
"""Operations of a checkpoint beside its module: random states of host, device and tracker are saved before the forward pass; saved, set and reset
around the replay (Megatron-LM, tensor_parallel/random.py). That each counts as one operation was chosen with measured steps in sight."""
MOE_PARTS = ("router", "counts", "moe", "shared", "alltoall", "expert")
CAST_KERNELS = {"": 0, "bf16": 0, "fp8": 3, "mxfp8": 2, "fp4": 3}
"""Kernels that quantise one tensor: largest value, cast and transpose; with MX scales the cast and a reordering of the scales."""
CAST_BYTES = {"": 0.0, "bf16": 0.0, "fp8": 6.0, "mxfp8": 4 + 2 / 32, "fp4": 5.0}
"""Bytes of memory per element: BF16 is read (for a scale per tensor once before), copies by row and by column are written, with MX scales."""
ANY_LAYOUT = ("blackwell",)
"""Architectures whose GEMMs take FP8 with one scale per tensor in any layout, so that no copy by column is written (Transformer Engine,
nvte_is_non_tn_fp8_gemm_supported)."""
LINEARS = {"attn": 2, "mla": 3, "dense": 2, "shared": 2, "expert": 2}
"""Linears whose input (forward) and output gradient (backward) are cast."""
SMS = {"": 0, "alltoall": 0, "deepep": 20, "hybrid-ep": 32}
"""SMs that the exchange holds. Megatron-LM's default of DeepEP; Megatron-Bridge's recipes with Hybrid-EP. NCCL's are not published."""


@dataclass(frozen=True, slots=True)
class SubLayers:
    """Rows of a tensor-parallel system: microseconds beside GEMMs and norms of (L1, L2) forward and of their gradients (L3, L4)."""

    system: str
    forward: tuple[float, float]
    backward: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Practice:
    """What a recipe says beside the layout.

    | field | meaning |
    |---|---|
    | `dtype` | of GEMMs; "": the model's experts say it |
    | `dispatcher` | of routed experts as a closed form; "": a Row has their time |
    | `overlap_ep` | EP communication of one micro-batch beside computing of another |
    | `overlap_tp` | tensor parallel collectives in pieces beside their GEMM |
    | `overlap_dp` | buckets of gradients and parameters beside the passes |
    | `graphs` | parts that graphs replay (`GRAPH_PARTS`), or `WHOLE` |
    | `plain_ddp` | gradients are scaled and looked through for NaN before they are reduced (Megatron-LM's defaults) |
    | `counts` | the host waits for a count of rows before experts (without capacities) |
    | `host` | launches take time |
    | `frozen` | weights have no gradients (LoRA); adapters themselves are not counted |
    | `recompute` | modules that are computed again, as Megatron names them |
    | `tensor` | Rows of a system of sub-layers, in place of tensor parallel collectives |
    | `context` | how context parallel ranks exchange: "a2a" of heads, "p2p" ring of keys and values |
    """

    dtype: DType = ""
    dispatcher: Dispatcher = ""
    overlap_ep: bool = False
    overlap_tp: bool = False
    overlap_dp: bool = True
    plain_ddp: bool = False
    graphs: tuple[str, ...] = ()
    counts: bool = True
    host: bool = False
    frozen: bool = False
    recompute: tuple[str, ...] = ()
    context: Literal["a2a", "p2p"] = "p2p"
    tensor: SubLayers | None = None

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

    def kernels(self, parts: tuple[str, ...], local_experts: int = 0) -> tuple[tuple[float, float], tuple[float, float]]:
        """(operations, kernels inside an operation's loop) that the host launches for `parts` (rows of `KERNELS`) of a layer: forward, backward."""
        calls, looped = [0.0, 0.0], [0.0, 0.0]
        for part in parts:
            if self._in_graph(part):
                continue
            casts = CAST_KERNELS[self.dtype] * LINEARS.get(part, 0)
            for way in (0, 1):
                if part == "expert":
                    looped[way] += local_experts * (KERNELS[part][way] + casts)
                else:
                    calls[way] += KERNELS[part][way]
                    looped[way] += casts
        return (calls[0], looped[0]), (calls[1], looped[1])

    def _in_graph(self, part: str) -> bool:
        return self.whole_graph or GRAPH_OF.get("attn" if part == "mla" else part, "") in self.graphs

    def replays(self, parts: tuple[str, ...], local_experts: int = 0) -> tuple[float, tuple[float, float]]:
        """Launches of modules that a layer of `parts` computes again: operations before its forward pass, and (operations, kernels inside loops)
        that the backward pass launches as a forward pass does.
        """
        saved, calls, looped = 0.0, 0.0, 0.0
        for module in self.recompute:
            if module in REPLAYED:
                part, again, checkpoints = REPLAYED[module]
                own = (float(again), 0.0) if part in parts and not self._in_graph(part) else (0.0, 0.0)
            else:
                checkpoints = 1
                own = self.kernels(parts if module == FULL else tuple(part for part in parts if part in MOE_PARTS), local_experts)[0]
            if any(own):
                saved += SAVE_STATES * checkpoints
                calls += own[0] + REPLAY_STATES * checkpoints
                looped += own[1]
        return saved, (calls, looped)
