"""`Practice`: how a framework runs a step beside its layout (types of GEMMs, dispatcher, overlap, graphs), and the kernels that its host launches."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["", "bf16", "fp8", "mxfp8", "fp4"]
Dispatcher = Literal["", "alltoall", "deepep", "hybrid-ep"]
Way = Literal["forward", "backward"]
GRAPH_PARTS = ("attn", "mlp", "moe_router", "moe_preprocess", "moe")
"""Parts of a layer that a graph can replay (Megatron-LM, --cuda-graph-scope)."""
WHOLE = "full_iteration"
"""The graph of a whole iteration: nothing is launched one by one, and nothing waits for a count of rows."""
GRAPH_OF = {"attn": "attn", "dense": "mlp", "router": "moe_router", "moe": "moe"}
"""Row of `KERNELS` -> the graph scope that replays it."""
KERNELS: dict[str, tuple[int, int]] = {
    "attn": (10, 20),
    "mla": (8, 15),
    "dense": (5, 9),
    "router": (17, 12),
    "moe": (15, 22),
    "shared": (4, 8),
    "alltoall": (12, 10),
    "tensor": (4, 6),
    "expert": (2, 4),
}
"""Kernels forward and backward. "mla": beside those of "attn"; "alltoall": its second permutation and its exchange of counts; "tensor": collectives;
"expert": one GEMM per local expert and linear (Transformer Engine's grouped linear calls cuBLAS for each).

Counted from the op list of a block. Anchors: 151 kernels per layer and micro-batch, Qwen3-30B with Hybrid-EP and 8 local experts (Megatron-Bridge,
skill of expert-parallel overlap); router and preprocessing 17 with DeepEP, router alone 31 fused, 72 unfused (DeepSeek-V3 on GB200 guide); 240 for a
block of DeepSeek's own stack (profile-data).
"""
CAST_KERNELS = {"": 0, "bf16": 0, "fp8": 3, "mxfp8": 2, "fp4": 3}
"""Kernels that quantise one tensor: largest value, cast and transpose; with MX scales the cast and a reordering of the scales."""
CAST_BYTES = {"": 0, "bf16": 0, "fp8": 6, "mxfp8": 4, "fp4": 5}
"""Bytes of memory per element: BF16 is read (for a scale per tensor once before), copies by row and by column are written."""
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
    | `counts` | the host waits for a count of rows before experts (without capacities) |
    | `host` | launches take time |
    | `recompute` | modules that are computed again, as Megatron names them |
    | `tensor` | Rows of a system of sub-layers, in place of tensor parallel collectives |
    | `context` | how context parallel ranks exchange: "a2a" of heads, "p2p" ring of keys and values |
    """

    dtype: DType = ""
    dispatcher: Dispatcher = ""
    overlap_ep: bool = False
    overlap_tp: bool = False
    overlap_dp: bool = True
    graphs: tuple[str, ...] = ()
    counts: bool = True
    host: bool = False
    recompute: tuple[str, ...] = ()
    context: Literal["a2a", "p2p"] = "p2p"
    tensor: SubLayers | None = None

    @property
    def whole_graph(self) -> bool:
        """Whether one graph replays the iteration."""
        return WHOLE in self.graphs

    def kernels(self, parts: tuple[str, ...], local_experts: int = 0) -> tuple[tuple[float, float], tuple[float, float]]:
        """(operations, kernels inside an operation's loop) that the host launches for `parts` (rows of `KERNELS`) of a layer: forward, backward."""
        calls, looped = [0.0, 0.0], [0.0, 0.0]
        for part in parts if not self.whole_graph else ():
            if GRAPH_OF.get("attn" if part == "mla" else part, "") in self.graphs:
                continue
            casts = CAST_KERNELS[self.dtype] * LINEARS.get(part, 0)
            for way in (0, 1):
                if part == "expert":
                    looped[way] += local_experts * (KERNELS[part][way] + casts)
                else:
                    calls[way] += KERNELS[part][way]
                    looped[way] += casts
        return (calls[0], looped[0]), (calls[1], looped[1])
