"""Whole eager layers of separate kernels, forward: DeepEP or NCCL around a grouped MLP."""

from collections.abc import Hashable
from dataclasses import replace

from dysharp.base import F64, PS_PER_US, ByName, frozen_keywords
from dysharp.costs import collectives, moe, operators, transfer
from dysharp.engine.burst.run import run_burst
from dysharp.measured.ep_kernels import cluster_of
from dysharp.measured.expert_loads import LayerCase, layer_fields
from dysharp.measured.families.grouped_gemm import _operand_dtypes
from dysharp.measured.family import Constants, family
from dysharp.measured.measurements import SCALED_FP8, Measurement, Unsupported, check_cluster, dtype_of, gpu_of, is_weak, label, number
from dysharp.measured.predictions import hashable_constants
from dysharp.specs import Gpu, load_gpu
from dysharp.systems import get_system
from dysharp.workload import expected_copies, make_routing

KINDS = ("moe_layer", "moe_layer_fwd")
HALVES = ("moe_layer0", "moe_layer1")
DEFAULT_SMS = 20  # Source: DeepEP, deep_ep/buffer.py (Buffer.num_sms)
MOST_ROWS = 8192 * 8  # Numerics: a larger Program takes minutes
TRAINING_CAST_BYTES = 4  # Definition: read in BF16, written in FP8 twice
WEIGHTING_BYTES = 12
"""Bytes per value of un-gated experts that the weighting behind the activation moves: a product with FP32 gate weights
(read BF16, write FP32) and a cast back (read FP32, write BF16), two kernels.

Source: Megatron-Core, transformer/moe/experts.py (TEGroupedMLP.bias_act_func).
"""
WEIGHTING_CALLS = 2
"""Kernels of the weighting. Source: as `WEIGHTING_BYTES`."""


@frozen_keywords
class _LayerCase(LayerCase):
    """One layer. `system`: "deepep", or "megatron-a2a" and "fastermoe" (NCCL's all-to-all).

    | field | meaning |
    |---|---|
    | `gated` | experts have three matrices, else two |
    | `dtype` | data type of the GEMMs |
    | `fp8_rows` | rows leave in FP8, else in BF16 |
    | `n_sm` | SMs of DeepEP's kernels |
    | `copies` | GPUs that a token needs |
    | `library` | of the experts' GEMMs |
    """

    system: str
    gated: bool
    dtype: str
    fp8_rows: bool
    n_sm: int
    copies: float
    library: str = moe.GROUPED

    @property
    def gates(self) -> float:
        """Matrices of the first GEMM."""
        return 2.0 if self.gated else 1.0

    @property
    def training(self) -> bool:
        """True: rows and weights are cast before each GEMM, and so is their transpose for the backward pass."""
        return self.dtype == "fp8" and not self.fp8_rows

    def run_key(self) -> Hashable:
        return self

    def effort(self) -> int:
        """Token rows of the run."""
        return self.gpus * self.tokens * self.topk


def _belongs(m: Measurement) -> bool:
    """Whether a measurement is of a layer of separate kernels; COMET's halves are fused layers."""
    return m.kind in KINDS or (m.kind in HALVES and not m.system.startswith("COMET"))


def _closed_us(case: _LayerCase, gpu: Gpu, constants: Constants) -> F64:
    """The closed forms of the parts, one behind the other."""
    width = SCALED_FP8 if case.fp8_rows else 2.0
    mlp = _mlp_us(case, gpu, constants, case.library)
    copied = case.tokens * (case.copies if case.system == "deepep" else case.topk)
    permute = moe.permute_us(gpu, constants, copied, case.rows, case.hidden, width)
    if not case.gated:
        mlp = mlp + _weighting_us(gpu, constants, case.rows, case.inter)
    if case.training:
        values = case.rows * (case.hidden + case.inter) + case.touched * (case.gates + 1) * case.hidden * case.inter
        casts = operators.hbm_us(gpu, constants, values * TRAINING_CAST_BYTES)
        mlp = mlp + 4 * operators.launch_us(gpu, constants) + casts
    if case.system != "deepep":
        n_bytes = case.tokens * case.topk * case.hidden * 2
        transfers = 2 * collectives.collective_us(gpu, constants, "alltoall", case.gpus, n_bytes)
        return moe.layer_us(gpu, constants, mlp + 2 * permute + transfers)
    shape = (case.tokens, case.copies)
    there = transfer.deepep_dispatch_us(gpu, constants, *shape, case.hidden * width, case.n_sm, case.gpus)
    back = transfer.deepep_combine_us(gpu, constants, *shape, 2 * case.hidden, case.n_sm, case.gpus)
    return moe.layer_us(gpu, constants, mlp + permute + there + back)


def _mlp_us(case: _LayerCase, gpu: Gpu, constants: Constants, library: str) -> F64:
    """The experts by the grouped GEMMs of a library."""
    return moe.expert_mlp_us(gpu, constants, case.rows / case.touched, case.touched, case.hidden, case.inter, case.dtype, case.gates, library)


def _weighting_us(gpu: Gpu, constants: Constants, rows: float, inter: float) -> F64:
    """Time of the weighting of `[rows, inter]` values behind the activation of un-gated experts."""
    moved = operators.hbm_us(gpu, constants, rows * inter * WEIGHTING_BYTES)
    return WEIGHTING_CALLS * operators.launch_us(gpu, constants) + moved


def program_us(case: _LayerCase, constants: Constants) -> float:
    """The layer under uniform routing: its Program, kernels that only training or un-gated experts have, and the host."""
    cluster = cluster_of(case.gpu, case.gpus, hashable_constants(constants))
    model = case.model(case.tokens, 3 if case.gated else 2, case.dtype)
    own: ByName = {"n_sm": case.n_sm, "dispatch": "fp8" if case.fp8_rows else "rows"}
    options = own if case.system == "deepep" else {}
    system, routing = get_system(case.system), make_routing("uniform", model, case.gpus, case.tokens)
    chosen = system.options(form="real", **options)
    program = system.plan(model, cluster, system.served(routing, chosen), "fwd", chosen)
    trace, _ = run_burst(program)
    weights = case.touched * model.expert_weights
    cast_bytes = TRAINING_CAST_BYTES * (weights + case.rows * case.inter) + case.rows * case.hidden
    casts = float(operators.hbm_us(cluster.own_gpu, constants, cast_bytes)) if case.training else 0.0
    weighting = 0.0 if case.gated else float(_weighting_us(cluster.own_gpu, constants, case.rows, case.inter))
    mlp, planned = (float(_mlp_us(case, cluster.own_gpu, constants, library)) for library in (case.library, moe.GROUPED))  # as a Program has it
    return trace.time_ps / PS_PER_US + weighting + casts + (mlp - planned) + float(moe.layer_us(cluster.own_gpu, constants, 0.0))


@family("layer", belongs=_belongs, closed_us=_closed_us, program_us=program_us, dtypes_of=_operand_dtypes)
def _case(m: Measurement) -> _LayerCase:
    """A latency. Gated experts have the key `inter` and rows in FP8, experts of training the key `ffn` and BF16."""
    gpu = gpu_of(m)
    m = _completed(m) if is_weak(m) else m
    if m.kind in HALVES:
        raise Unsupported("a tensor-parallel layer: no closed form yet")
    gated = "ffn" not in m.config
    read = layer_fields(m, "random", "inter") if gated else layer_fields(m, "balanced", "ffn")
    dtype = dtype_of(m, "dtype", "acts", expected=("fp8", "bf16"))
    dtype_of(m, "weights", expected=(dtype,), default=dtype)
    check_cluster(gpu, read["gpus"])
    if read["tokens"] * read["topk"] > MOST_ROWS:
        raise Unsupported(f"a layer of more than {MOST_ROWS} rows per GPU")
    return _LayerCase(
        **read,
        gpu=gpu,
        system=_system(m),
        gated=gated,
        dtype=dtype,
        fp8_rows=gated,
        n_sm=int(number(m, "moe_comm_sms")) if m.config.get("moe_comm_sms") else DEFAULT_SMS,
        copies=_copies(m, read["gpus"], read["experts"], read["topk"]),
        library="trtllm-gen-blocks" if "trtllm_fp8_blockscale" in m.system else moe.GROUPED,
        dtypes=(dtype,),
        launches=moe.layer_calls(load_gpu(gpu)),
        shape=label(m, "hidden", "inter", "ffn", "experts"),
    )


def _completed(m: Measurement) -> Measurement:
    """A weak measurement with the keys of the others: experts of two matrices, a 16-bit type.

    Source: osayamenja/FlashMoE, plots of baselines.
    """
    if "Megatron" not in m.system and "FasterMoE" not in m.system:
        raise Unsupported("a system that is not simulated")
    keys = {"ep": m.config.get("gpus"), "ffn": m.config.get("inter"), "dtype": "bf16"}
    return replace(m, system=f"{m.system} (NCCL)", config={**m.config, **keys})


def _system(m: Measurement) -> str:
    """The simulated system of a measurement."""
    if "FasterMoE" in m.system:
        return "fastermoe"
    return "megatron-a2a" if "NCCL" in m.system else "deepep"


def _copies(m: Measurement, gpus: int, experts: int, topk: int) -> float:
    """GPUs that a token needs under uniform routing, which may be limited to `topk_groups` GPUs."""
    groups = number(m, "topk_groups") if "topk_groups" in m.config else gpus
    if groups < gpus:
        gpus, experts = round(groups), round(experts * groups / gpus)
    if experts < gpus or topk > experts:
        raise Unsupported("experts, GPUs and top-k do not fit together")
    return expected_copies(gpus, experts, topk)
