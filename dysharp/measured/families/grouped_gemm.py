"""Grouped GEMM kernels, and the grouped MLP of one rank (SGLang's DeepEPMoE), by rate forms."""


from dysharp.base import F64, AnyMapping, Texts, frozen_keywords
from dysharp.costs import moe, narrow_bytes, operators
from dysharp.measured.families import Case, Constants, Measurement, dtype_of, family, gpu_of, label, number
from dysharp.measured.families.operator import is_training_gemm
from dysharp.specs import Gpu, Model, load_gpu

BLOCK_ROWS = 128
"""Rows that the benchmark of the grouped MLP deals to an expert at once."""
MLP_EXPERTS, MLP_TOPK = 256.0, 8
"""Number of GPUs in the group that the benchmark of the grouped MLP simulates on one GPU."""


@frozen_keywords
class _GroupedCase(Case):
    """`groups` GEMMs `[rows, k] x [k, n]` of one kernel. `masked`: each has a buffer of its own."""

    dtype: str
    masked: bool
    rows: float
    groups: float
    n: float
    k: float


@frozen_keywords
class _MlpCase(Case):
    """Permutation, both GEMMs, activation and gather of `groups` experts, run eagerly in FP8.

    `tokens`: length of the receive buffer that the permutation walks over.
    """

    rows: float
    groups: float
    tokens: float
    hidden: float
    inter: float


def _closed_us(case: _GroupedCase | _MlpCase, gpu: Gpu, constants: Constants) -> F64:
    """The rate forms of `costs.operators` and `costs.moe`."""
    if isinstance(case, _GroupedCase):
        return operators.grouped_gemm_us(gpu, constants, case.rows, case.groups, case.n, case.k, case.dtype, masked=case.masked)
    return moe.eager_mlp_us(gpu, constants, case.rows, case.groups, case.tokens, case.hidden, case.inter)


def _operand_dtypes(model: Model, _: AnyMapping) -> Texts:
    """Type of the products of a layer, and of its weights where memory holds narrower ones."""
    return (f"weights {model.checkpoint}",) if narrow_bytes(model) else (model.gemm_dtype,)


@family(
    "grouped-gemm",
    belongs=lambda m: m.kind.startswith("grouped_gemm") and not is_training_gemm(m),
    closed_us=_closed_us,
    dtypes_of=_operand_dtypes,
)
def _case(m: Measurement) -> _GroupedCase | _MlpCase:
    """A kernel (a latency, TFLOPS or GB/s), or a whole MLP (a latency)."""
    return _mlp(m) if m.kind == "grouped_gemm_mlp" else _kernel(m)


def _kernel(m: Measurement) -> _GroupedCase:
    gpu = gpu_of(m)
    rows, groups, n, k = (number(m, key) for key in ("m_per_group", "groups", "n", "k"))
    dtype = dtype_of(m, "dtype", expected=("fp8", "bf16"))
    element = operators.ELEMENT_BYTES[dtype]
    work = {"TFLOPS": 2 * rows * groups * n * k / 1e6, "GB/s": groups * (element * (rows * k + n * k) + 2 * rows * n) / 1e3}
    return _GroupedCase(
        gpu=gpu,
        dtype=dtype,
        masked=m.kind.endswith("masked"),
        rows=rows,
        groups=groups,
        n=n,
        k=k,
        work=work.get(m.unit, 0.0),
        dtypes=(dtype,),
        shape=f"n={n:g} k={k:g} g={groups:g}",
    )


def _mlp(m: Measurement) -> _MlpCase:
    gpu = gpu_of(m)
    dtype_of(m, "dtype", expected=("fp8",))
    per_expert, experts = number(m, "rows_per_expert"), number(m, "local_experts")
    total = per_expert * experts
    groups = min(experts, max(1.0, total / BLOCK_ROWS))
    return _MlpCase(
        gpu=gpu,
        rows=total / groups,
        groups=groups,
        tokens=per_expert * MLP_EXPERTS / MLP_TOPK,
        hidden=number(m, "hidden"),
        inter=number(m, "inter"),
        dtypes=("fp8",),
        launches=moe.mlp_calls(load_gpu(gpu)),
        shape=label(m, "local_experts"),
    )
