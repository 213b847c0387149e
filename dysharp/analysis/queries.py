"""From a measured row to a query a closed form can answer, or to the reason why not.

One function per family, in the family map of `families.py`. A query names a formula, a GPU, words and numbers; all queries of one formula, GPU and
words are answered by one array call (`predict`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dysharp.analysis.measured import Measurement
from dysharp.compute.transfer import expected_copies
from dysharp.specs.gpu import list_gpus

GPUS = (("GB200", "gb200"), ("B200", "b200"), ("SM100", "b200"), ("H100", "h100-sxm"), ("H200", "h200-sxm"), ("H800", "h800"))
"""Text in the hardware column -> packaged GPU, first match; GH200, H20, A100-class and others have no entry."""
MS, SCALED_FP8, SCALED_FP4 = 1e3, 1 + 4 / 128, 0.5 * (1 + 1 / 8)
"""us per ms; bytes per value of FP8 with an FP32 scale per 128, and of NVFP4 with an FP8 scale per 16 (0.5 + 1/16)."""


class Unsupported(Exception):
    """A row without a prediction; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a closed form is asked for one row."""

    formula: str
    gpu: str
    words: tuple[str, ...]
    numbers: Mapping[str, float]
    work: float = 0.0
    """For a rate metric: units of work per prediction, so that the rate is work / us. 0 for a time."""
    scale: float = 1.0
    """For a time metric: us per unit of the row."""
    shape: str = ""
    """What is held out together: the model and layout, without the number of tokens, rows or bytes."""


def gpu_of(row: Measurement) -> str:
    """The packaged GPU of a row; `Unsupported` when there is none."""
    if row.hardware in list_gpus():  # the owner of a machine said which
        return row.hardware
    if "GH200" in row.hardware or "L20" in row.hardware:
        raise Unsupported("no packaged GPU of this kind")
    for text, name in GPUS:
        if text in row.hardware:
            return name
    raise Unsupported("no packaged GPU of this kind")


def number(row: Measurement, key: str) -> float:
    """A number of the configuration; `Unsupported` when it is missing."""
    value = row.config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unsupported(f"no number {key!r} in config_json")
    return float(value)


def us_per_unit(row: Measurement) -> float:
    """Scale of a time metric."""
    return MS if row.unit == "ms" else 1.0


def shape_of(row: Measurement, *keys: str) -> str:
    """A label of the values of `keys` that are there."""
    return " ".join(f"{key}={row.config[key]}" for key in keys if key in row.config)


def deepep_normal(row: Measurement) -> Query:
    """DeepEP normal kernels inside one NVLink domain."""
    c, gpu = row.config, gpu_of(row)
    if str(c.get("version", "")).startswith("V1, user report"):
        raise Unsupported("rule 14.6: this report disagrees with the newer measurement of the same case")
    if row.config.get("link", "NVLink") != "NVLink" or c.get("nodes", 1) != 1 or c.get("bottleneck", "NVLink") != "NVLink":
        raise Unsupported("more than one NVLink domain")
    dispatch = row.kind == "ep_dispatch"
    dtype = str(c.get("dtype") or c.get("dispatch" if dispatch else "combine") or "")
    hidden, tokens, gpus, topk = (number(row, key) for key in ("hidden", "tokens_per_rank", "ep", "topk"))
    experts = number(row, "local_experts") * gpus if "local_experts" in c else number(row, "experts")
    row_bytes = hidden * SCALED_FP8 if dispatch and dtype.startswith("fp8") else 2 * hidden
    copies = _copies(gpus, experts, topk)
    numbers = {"tokens": tokens, "copies": copies, "row_bytes": row_bytes, "sms": number(row, "sms"), "gpus": gpus}
    received = tokens * copies * row_bytes
    work = received / 1e3 if row.unit == "GB/s" else 0.0
    return Query("deepep_dispatch" if dispatch else "deepep_combine", gpu, (), numbers, work, us_per_unit(row),
                 shape_of(row, "hidden", "topk", "experts", "ep"))


def _copies(gpus: float, experts: float, topk: float) -> float:
    if gpus < 1 or experts < gpus or topk > experts:
        raise Unsupported("experts, GPUs and top-k do not fit together")
    return expected_copies(round(gpus), round(experts), round(topk))


def deepep_ll(row: Measurement) -> Query:
    """DeepEP low-latency kernels over NVLink."""
    gpu = gpu_of(row)
    if "pure RDMA" in row.system or number(row, "ep") > 8:
        raise Unsupported("more than one NVLink domain")
    dispatch = row.kind == "ep_dispatch"
    hidden = number(row, "hidden")
    row_bytes = hidden * SCALED_FP8 if dispatch else 2 * hidden
    numbers = {"tokens": number(row, "tokens_per_rank"), "topk": number(row, "topk"), "row_bytes": row_bytes,
               "experts": number(row, "experts"), "gpus": number(row, "ep")}
    header = 16.0 if dispatch else 0.0
    work = numbers["tokens"] * numbers["topk"] * (row_bytes + header) / 1e3 if row.unit == "GB/s" else 0.0
    return Query("ll_dispatch" if dispatch else "ll_combine", gpu, (), numbers, work, us_per_unit(row), shape_of(row, "hidden", "topk", "experts"))


def trtllm(row: Measurement) -> Query:
    """TensorRT-LLM NVLink all-to-all with deterministic balanced routing (protocol P4)."""
    gpu, gpus, hidden = gpu_of(row), number(row, "ep"), number(row, "hidden")
    dtype, sided = str(row.config.get("dtype", "")), "one" if "OneSided" in row.system else "two"
    payload = dtype.split(" ", maxsplit=1)[0]
    each = {"bf16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "nvfp4": SCALED_FP4}.get(payload)
    if each is None:
        raise Unsupported(f"no payload size for dtype {dtype!r}")
    fields = "lowprec" if row.kind.endswith("lowprec") else "scaled" if payload == "nvfp4" else "plain"
    numbers = {"tokens": number(row, "tokens_per_rank"), "copies": min(8.0, gpus), "row_bytes": each * hidden, "gpus": gpus}
    verb = {"ep_dispatch": "dispatch", "ep_combine": "combine", "ep_combine_lowprec": "combine", "ep_prepare": "prepare"}[row.kind]
    return Query(f"trt_{sided}_{verb}", gpu, (fields,), numbers, 0.0, us_per_unit(row), f"{verb} {shape_of(row, 'ep', 'dtype')}")


SIZES = {"K": 10, "M": 20, "G": 30, "KiB": 10, "MiB": 20, "GiB": 30}


def message_bytes(row: Measurement) -> float:
    """Bytes of a collective: a number, or a label such as "16MiB" or "33M" (nccl-tests prints powers of two so)."""
    if "bytes" in row.config:
        return number(row, "bytes")
    label = str(row.config.get("size") or row.config.get("bytes_label") or "")
    digits = label.rstrip("KMGiB")
    shift = SIZES.get(label[len(digits) :])
    if not digits.isdigit() or shift is None:
        raise Unsupported("no message size in config_json")
    if "bytes_label" in row.config:  # decimal label of a power of two: 33M is 2^25
        return float(2 ** round(math.log2(int(digits) * 10 ** (3 * shift // 10))))
    return float(int(digits) << shift)


def nccl(row: Measurement) -> Query:
    """NCCL collectives above 1 MiB."""
    gpu, kind, n = gpu_of(row), row.kind.removeprefix("nccl_"), number(row, "gpus")
    size = message_bytes(row)
    if size <= 1 << 20:
        raise Unsupported("message of at most 1 MiB")
    nvls = "off" if "NVLS off" in row.system else "on" if "NVLS" in row.system and "auto" not in row.system else "auto"
    factor = (2 if kind == "all_reduce" else 1) * (n - 1) / n
    work = size * factor / 1e3 if row.unit == "GB/s" else 0.0
    place = "in" if row.config.get("inplace") else "out"
    return Query("collective", gpu, (kind, nvls, place), {"gpus": n, "bytes": size}, work, us_per_unit(row), f"{kind} n={n:g}")


def gemm(row: Measurement) -> Query:
    """Dense GEMM of a library, from a CUDA graph or eager."""
    gpu, c = gpu_of(row), row.config
    if row.kind == "gemm_max":
        raise Unsupported("a maximum over shapes, without its shape")
    m, n, k = (number(row, key) for key in "mnk")
    dtype = {"bfloat16": "bf16", "bf16": "bf16"}.get(str(c.get("dtype")), "fp8")
    eager = "eager" in str(c.get("timing", ""))
    if eager and (row.value or 0) * us_per_unit(row) < 100:
        raise Unsupported("rule 14.4: eager and below 0.1 ms, launch-bound")
    element = 2.0 if dtype == "bf16" else 1.0
    work = {"TFLOPS": 2 * m * n * k / 1e6, "GB/s": (element * (m * k + n * k) + 2 * m * n) / 1e3}.get(row.unit, 0.0)
    timing = "eager" if eager else "profiler" if row.system == "DeepGEMM" else "graph"
    words = (dtype, timing, "rowwise" if "Cutlass" in str(c.get("kernel", "")) else "library")
    return Query("gemm", gpu, words, {"m": m, "n": n, "k": k}, work, us_per_unit(row), f"n={n:g} k={k:g}")


def grouped(row: Measurement) -> Query:
    """Grouped GEMM kernels, and the grouped MLP of one rank (protocol P7)."""
    gpu = gpu_of(row)
    if row.kind == "grouped_gemm_mlp":
        if (row.value or 0) * us_per_unit(row) < 500:
            raise Unsupported("rule 14.4: eager and below 0.5 ms, launch-bound")
        rows, groups, experts = number(row, "rows_per_expert"), number(row, "local_experts"), 256.0
        # The collector deals rows to experts in whole blocks of 128.
        total = rows * groups
        groups = min(groups, max(1.0, total / 128))
        tokens, rows = rows * experts / 8, total / groups  # the buffer holds the tokens of the whole simulated group (256 experts, top 8)
        numbers = {"rows": rows, "groups": groups, "tokens": tokens, "hidden": number(row, "hidden"), "inter": number(row, "inter")}
        return Query("eager_mlp", gpu, (), numbers, 0.0, us_per_unit(row), shape_of(row, "local_experts"))
    m, g, n, k = (number(row, key) for key in ("m_per_group", "groups", "n", "k"))
    work = {"TFLOPS": 2 * m * g * n * k / 1e6, "GB/s": g * (m * k + n * k + 2 * m * n) / 1e3}.get(row.unit, 0.0)
    dtype = "bf16" if str(row.config.get("dtype", "fp8")).startswith(("bf16", "bfloat16")) else "fp8"
    return Query("grouped_gemm", gpu, (dtype,), {"rows": m, "groups": g, "n": n, "k": k}, work, us_per_unit(row), f"n={n:g} k={k:g} g={g:g}")


def check_quality(config: Mapping[str, Any]) -> None:
    """Rows their own collector marks as weak are not judged on."""
    if str(config.get("quality", "")).startswith("WEAK"):
        raise Unsupported("rule 14.7: marked WEAK by its source (baselines run by competitors or under blocking launches)")
