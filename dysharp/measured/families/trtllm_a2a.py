"""TensorRT-LLM's all-to-all over NVLink, under the balanced routing of its benchmark."""

from collections.abc import Mapping

import numpy as np

from dysharp.base import F64, Texts, frozen_keywords
from dysharp.costs import transfer
from dysharp.measured.ep_kernels import EpCase, Options, ep_fields, kernel_times, sent_dtypes
from dysharp.measured.family import Constants, family
from dysharp.measured.measurements import SCALED_FP4, Measurement, Unsupported, dtype_of, label
from dysharp.specs import Gpu, Model
from dysharp.workload import Routing, routing_from

KINDS: Mapping[str, tuple[str, Texts]] = {
    "ep_prepare": ("prepare", ("bf16", "fp8", "nvfp4")),
    "ep_dispatch": ("dispatch", ("bf16", "fp8", "nvfp4")),
    "ep_combine": ("combine", ("bf16",)),
    "ep_combine_lowprec": ("combine", ("nvfp4",)),
}
"""Kind of measurement -> the kernel and its data types."""
BYTES = {"bf16": 2.0, "fp8": 1.0, "nvfp4": SCALED_FP4}
PAYLOADS = {"bf16": "rows", "fp8": "fp8-plain", "nvfp4": "nvfp4"}
"""Data type of rows -> the system's option `dispatch`."""
TOPK = 8  # experts per token in the benchmark


@frozen_keywords
class TrtllmCase(EpCase):
    """One kernel of the "one"- or "two"-sided all-to-all.

    `payload`, `back`: the system's options `dispatch` and `combine`. `copies`: GPUs per token.
    """

    sides: str
    payload: str
    back: str
    copies: float
    row_bytes: float

    def options(self) -> Options:
        return ("combine", self.back), ("dispatch", self.payload), ("sides", self.sides)


def _closed_us(case: TrtllmCase, gpu: Gpu, constants: Constants) -> F64:
    """Costs per copy and bytes on the links (`costs.transfer`)."""
    if case.verb == "prepare":
        return transfer.alltoall_prepare_us(gpu, constants, case.tokens, case.gpus)
    numbers = (case.tokens, case.copies, case.row_bytes, case.gpus)
    if case.sides == "one":
        return transfer.alltoall_one_sided_us(gpu, constants, *numbers, reads=case.verb == "combine")
    back = case.verb == "combine"
    how = {"low_precision": case.back == "nvfp4"} if back else {"fields": 1 + (case.payload == "nvfp4")}
    copy = transfer.fifo_copy_us(gpu, constants, case.row_bytes, case.gpus, **how)
    summed = transfer.summed_bytes(BYTES["bf16"] * np.asarray(case.hidden), case.topk) if back else 0.0
    return transfer.alltoall_two_sided_us(gpu, constants, *numbers, copy, summed)


def _program_us(case: TrtllmCase, constants: Constants) -> float:
    """The kernel under balanced routing."""
    return kernel_times("trtllm-a2a", case, constants, balanced)[case.verb]


def balanced(model: Model, gpus: int, tokens: int) -> Routing:
    """The routing of the benchmark, with equally many rows on every GPU.

    Token i of a GPU goes to the 8 consecutive GPUs of group i mod (GPUs / 8), one expert each; below 8 GPUs to every
    GPU, 8 / GPUs experts each.
    """
    experts, topk = model.n_experts, model.topk
    width = min(topk, gpus)
    each, local = topk // width, experts // gpus
    place = np.arange(gpus * tokens) % tokens
    groups = max(1, gpus // width)
    gpu = (place % groups)[:, None] * width + np.arange(topk)[None, :] // each
    expert = gpu * local + (place[:, None] + np.arange(topk)[None, :] % each) % local
    return routing_from(expert.astype(np.int32), experts, gpus)


@family("trtllm-a2a", belongs=lambda m: m.system.startswith("TRTLLM-NVLink"), closed_us=_closed_us, program_us=_program_us, dtypes_of=sent_dtypes)
def _case(m: Measurement) -> TrtllmCase:
    """The case of one kernel's latency."""
    if m.kind not in KINDS:
        raise Unsupported(f"kind {m.kind!r} of TensorRT-LLM, expected {' or '.join(KINDS)}")
    verb, known = KINDS[m.kind]
    read, sides = ep_fields(m), "one" if "OneSided" in m.system else "two"
    dtype = dtype_of(m, "dtype", expected=known)
    if (sides, verb) == ("one", "prepare"):
        raise Unsupported("one-sided kernels prepare nothing")
    if read["topk"] != TOPK:
        raise Unsupported(f"balanced routing with another top-k than {TOPK}")
    return TrtllmCase(
        **read,
        verb=verb,
        sides=sides,
        payload=PAYLOADS[dtype],
        back="nvfp4" if m.kind.endswith("lowprec") else "rows",
        copies=float(min(TOPK, read["gpus"])),
        row_bytes=BYTES[dtype] * read["hidden"],
        dtypes=() if verb == "prepare" else (f"{verb} {'fp8-plain' if dtype == 'fp8' else dtype}",),
        shape=f"{verb} {label(m, 'ep', 'dtype')}",
    )
