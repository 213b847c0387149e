"""Closed forms of one rank: the grouped MLP, fused MoE layers, MoE layers of parts.

Functions are pure, take numbers or arrays and return microseconds. A gated expert has the weights `[2 I, H]` and
`[H, I]`, an ungated expert `[I, H]` and `[H, I]`.
"""

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, f64
from dysharp.costs import operators as ops
from dysharp.costs.collectives import link_us, sync_us
from dysharp.costs.operators import Constants
from dysharp.specs import Gpu

MLP_CALLS = {"hopper": 10.0, "blackwell": 9.0}
"""Host calls of an eager grouped MLP: copy of the counts, two kernels of the scatter, GEMM, activation, quantise, GEMM,
gather. Hopper aligns the scales before each GEMM. Blackwell clears the packed scales once.

Source: SGLang, srt/layers/moe/moe_runner/deep_gemm.py (pre_permute_deepep_normal_to_deep_gemm, _run_contiguous_gemm)
and srt/layers/moe/ep_moe/kernels.py (ep_scatter).
"""
FIRST_CALLS = 5.0
"""Host calls of `MLP_CALLS` up to the first GEMM. Source: as `MLP_CALLS`."""
TILE_ROWS = 128
"""Rows to which the closed form of a fused layer pads an expert; also columns of its tiles."""
LAYER_CALLS = 8.0
"""Host calls of an eager MoE layer besides its grouped MLP: router GEMM, top-k, layout, notify, dispatch, notify of
combine, combine, weighting. Counted: no source gives a launch list of a whole layer."""
LINEAR_CALLS = 2.0
"""Host calls of an eager block-scaled linear layer: quantise, GEMM.

Source: vLLM, model_executor/layers/quantization/utils/fp8_utils.py (block-scaled FP8 linear).
"""


GROUPED = "deepgemm-contiguous"
"""Library of grouped GEMMs (`gemm_tiles`) where a caller names none."""


def host_us(gpu: Gpu, constants: Constants, calls: float) -> float:
    """Host time of `calls` eager launches. It is on the critical path if the GPU is faster."""
    return calls * constants[host_constant(gpu, constants)]


def host_constant(gpu: Gpu, constants: Constants) -> str:
    """Name of the constant for one host launch on the machine of `gpu`. A GPU without measurements takes the H100's."""
    own = f"{gpu.name.removesuffix('-sxm')}.host_call_us"
    return own if own in constants else "h100.host_call_us"


def mlp_calls(gpu: Gpu) -> float:
    """Host calls of the eager grouped MLP on `gpu`."""
    return MLP_CALLS[ops.arch_of(gpu)]


def layer_calls(gpu: Gpu) -> float:
    """Host calls of an eager layer on `gpu`."""
    return mlp_calls(gpu) + LAYER_CALLS


def _with_launches_us(gpu: Gpu, constants: Constants, device: ArrayLike) -> F64:
    """Time of a grouped MLP of `device` us that the host launches call by call on a drained GPU.

    Kernels before the first GEMM are shorter than a launch, so the GPU waits for the host until the first GEMM. Later
    launches run while GEMMs keep the GPU busy. A GPU that is faster waits for all launches.
    """
    late = host_us(gpu, constants, FIRST_CALLS)
    return np.maximum(f64(device) + late, host_us(gpu, constants, mlp_calls(gpu)))


def linear_us(gpu: Gpu, constants: Constants, gemm: ArrayLike, m: ArrayLike, k: ArrayLike) -> F64:
    """Eager block-scaled FP8 linear layer: quantise `[m, k]` from BF16, a GEMM of `gemm` us; or the host's time.

    Blackwell's scales are packed exponents. Their kernel casts as fast as memory allows (vLLM vllm/utils/deep_gemm.py,
    DeepGemmQuantScaleFMT; csrc per_token_group_quant_8bit_packed).
    """
    values = f64(m) * f64(k)
    cast = ops.memory_kernel_us(gpu, constants, values * ops.CAST_BYTES) if gpu.arch == "blackwell" else ops.quantise_us(gpu, constants, values)
    return np.maximum(np.asarray(gemm) + cast, host_us(gpu, constants, LINEAR_CALLS))


def permute_us(gpu: Gpu, constants: Constants, tokens: ArrayLike, rows: ArrayLike, hidden: ArrayLike, row_bytes: float = 1 + ops.SCALE_BYTES) -> F64:
    """Scatter of `tokens` to `rows` rows in expert order (`row_bytes` per value), and the weighted BF16 gather back.

    The limit is the loads and stores of an SM per clock, or HBM.
    """
    t, r, h = map(f64, (tokens, rows, hidden))
    moved = (t + r) * h * row_bytes + (t + r) * 2 * h
    issued = moved / (gpu.n_sms * gpu.boost_MHz * constants["sm.permute_bytes"])
    return 2 * ops.launch_us(gpu, constants) + np.maximum(issued, ops.hbm_us(gpu, constants, moved))


def expert_mlp_us(
    gpu: Gpu, constants: Constants, rows: ArrayLike, groups: ArrayLike, hidden: ArrayLike, inter: ArrayLike, dtype: str, gates: float = 2.0,
    library: str = GROUPED,
) -> F64:  # fmt: skip
    """GEMM, activation (and quantise), GEMM of `groups` experts with `rows` rows each. `gates`: 2 = gated, 1 = not. `library`: of `gemm_tiles`."""
    m, g, h, i = map(f64, (rows, groups, hidden, inter))
    activation = ops.hbm_us(gpu, constants, m * g * i * (2 * gates + ops.ELEMENT_BYTES[dtype]))
    first = ops.gemm_us(gpu, constants, m, gates * i, h, dtype, library=library, groups=g)
    return first + ops.launch_us(gpu, constants) + activation + ops.gemm_us(gpu, constants, m, h, i, dtype, library=library, groups=g)


def eager_mlp_us(gpu: Gpu, constants: Constants, rows: ArrayLike, groups: ArrayLike, tokens: ArrayLike, hidden: ArrayLike, inter: ArrayLike) -> F64:
    """The grouped MLP of one rank in eager mode of a serving framework: permute, MLP, gather (`_with_launches_us`).

    `tokens`: length of the receive buffer that the permutation reads.
    """
    m, g = f64(rows), f64(groups)
    device = permute_us(gpu, constants, tokens, m * g, hidden) + expert_mlp_us(gpu, constants, m, g, hidden, inter, "fp8")
    return _with_launches_us(gpu, constants, device)


def fused_layer_us(
    gpu: Gpu, constants: Constants, *, rows: ArrayLike, touched: ArrayLike, hidden: ArrayLike, inter: ArrayLike, gpus: ArrayLike,
    dispatch_bytes: ArrayLike, combine_bytes: ArrayLike, weight_bytes: float, rate_dtype: str, cast: ArrayLike = 0.0,
) -> F64:  # fmt: skip
    """One persistent kernel for a layer (Mega MoE): pull rows, GEMM, activation, GEMM, push every expert row back.

    | argument | meaning |
    |---|---|
    | `rows` | rows that the busiest rank computes |
    | `touched` | experts of that rank with at least one row |
    | `dispatch_bytes`, `combine_bytes` | bytes per row |
    | `weight_bytes` | bytes per weight with its scales |
    | `cast` | values of the input that a kernel of its own quantises first |

    The slower of tensor cores and weight stream overlaps with the link, as well as `sm.overlap` says. Tiles run at
    `fused.rate` of the rate of a GEMM library.
    """
    n, e, h, i, g = map(f64, (rows, touched, hidden, inter, gpus))
    padded = np.where(e > 0, np.ceil(n / np.maximum(e, 1) / TILE_ROWS) * TILE_ROWS * e, n)
    flops = 2 * padded * 3 * h * i
    tiles = padded / TILE_ROWS * (2 * i + h) / TILE_ROWS
    filled = constants["fused.tile_us"] * tiles / gpu.n_sms
    compute = filled + flops / (ops.sustained_flops_per_us(gpu, constants, rate_dtype) * constants["fused.rate"])
    stream = ops.hbm_us(gpu, constants, e * 3 * h * i * weight_bytes)
    remote = n * (g - 1) / g
    link = link_us(gpu, constants, remote * (f64(dispatch_bytes) + f64(combine_bytes)))
    barriers = sync_us(gpu, constants, g) * constants["fused.barriers"]
    casts = f64(cast)
    first = np.where(casts > 0, ops.memory_kernel_us(gpu, constants, casts * ops.CAST_BYTES), 0.0)
    return first + ops.launch_us(gpu, constants) + barriers + ops.overlap(np.maximum(compute, stream), link, constants["sm.overlap"])


def layer_us(gpu: Gpu, constants: Constants, parts: ArrayLike) -> F64:
    """A layer of eager parts. The host waits for an exchange of counts, so its launches are not hidden.

    `parts`: device time of the parts.
    """
    return f64(parts) + host_us(gpu, constants, layer_calls(gpu))
