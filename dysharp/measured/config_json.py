"""From a measured row to a query a closed form can answer, or to the reason why not.

One function per family, in the family map of `families.py`. A query names a formula, a GPU, words and numbers; all queries of one formula, GPU and
words are answered by one array call (`predict`).
"""

from __future__ import annotations

import math
import re
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
DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "float8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp4": "fp4"}
"""First word of a dtype in `config_json` -> what it is."""
LIMITS: Mapping[str, tuple[int, int]] = {
    "tokens_per_rank": (1, 1 << 20),
    "hidden": (128, 1 << 16),
    "inter": (128, 1 << 16),
    "ffn": (128, 1 << 18),
    "ep": (2, 1024),
    "gpus": (2, 1024),
    "experts": (1, 1 << 16),
    "local_experts": (1, 1 << 12),
    "topk": (1, 128),
    "topk_groups": (1, 1024),
    "sms": (1, 256),
    "moe_comm_sms": (1, 256),
    "m": (1, 1 << 24),
    "n": (1, 1 << 20),
    "k": (1, 1 << 20),
    "m_per_group": (1, 1 << 20),
    "rows_per_expert": (1, 1 << 20),
    "groups": (1, 1 << 12),
    "bytes": (1, 1 << 40),
    "ctas": (1, 1024),
}
"""Number in `config_json` -> least and most that is predicted."""


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
    dtypes: tuple[str, ...] = ()
    """Data types of what is moved or multiplied, such as "dispatch fp8"; what `trust` compares a prediction's with."""
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
    """A number of the configuration; `Unsupported` when it is missing or outside `LIMITS`."""
    value = row.config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unsupported(f"no number {key!r} in config_json")
    low, high = LIMITS[key]
    if not low <= value <= high:
        raise Unsupported(f"{key} {value:g}, expected {low} to {high}")
    return float(value)


def experts_of(row: Measurement, gpus: float) -> float:
    """Experts of all GPUs."""
    return number(row, "local_experts") * gpus if "local_experts" in row.config else number(row, "experts")


def dtype_of(row: Measurement, *keys: str, expected: tuple[str, ...], default: str | None = None) -> str:
    """The data type that the first of `keys` names, such as "fp8" of "fp8_e4m3+fp32 scale/128"; `Unsupported` for one not `expected`."""
    text = next((row.config[key] for key in keys if row.config.get(key) is not None), default)
    if text is None:
        raise Unsupported(f"no {' or '.join(map(repr, keys))} in config_json, expected {' or '.join(expected)}")
    word = re.match(r"[a-z]+[0-9]+(?![a-z0-9])", str(text).lower())
    found = DTYPES.get(word[0], "") if word else ""
    if found not in expected:
        raise Unsupported(f"{keys[0]} {str(text)[:40]!r}, expected {' or '.join(expected)}")
    return found


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
    verb = "dispatch" if dispatch else "combine"
    dtype = dtype_of(row, "dtype", verb, expected=("fp8", "bf16") if dispatch else ("bf16",))
    hidden, tokens, gpus, topk = (number(row, key) for key in ("hidden", "tokens_per_rank", "ep", "topk"))
    row_bytes = hidden * SCALED_FP8 if dtype == "fp8" else 2 * hidden
    copies = copies_of(gpus, experts_of(row, gpus), topk)
    numbers = {"tokens": tokens, "copies": copies, "row_bytes": row_bytes, "sms": number(row, "sms"), "gpus": gpus}
    received = tokens * copies * row_bytes
    work = received / 1e3 if row.unit == "GB/s" else 0.0
    return Query(f"deepep_{verb}", gpu, (), numbers, work, us_per_unit(row), (f"{verb} {dtype}",),
                 shape_of(row, "hidden", "topk", "experts", "ep"))


def copies_of(gpus: float, experts: float, topk: float) -> float:
    """GPUs that a token needs under uniform routing; `Unsupported` for what no layer can be."""
    if gpus < 1 or experts < gpus or topk > experts:
        raise Unsupported("experts, GPUs and top-k do not fit together")
    return expected_copies(round(gpus), round(experts), round(topk))


def deepep_ll(row: Measurement) -> Query:
    """DeepEP low-latency kernels over NVLink."""
    gpu = gpu_of(row)
    if "pure RDMA" in row.system or number(row, "ep") > 8:
        raise Unsupported("more than one NVLink domain")
    dispatch = row.kind == "ep_dispatch"
    verb = "dispatch" if dispatch else "combine"
    dtype = dtype_of(row, "dtype", verb, expected=("fp8", "bf16") if dispatch else ("bf16",))
    hidden = number(row, "hidden")
    row_bytes = hidden * SCALED_FP8 if dtype == "fp8" else 2 * hidden
    numbers = {"tokens": number(row, "tokens_per_rank"), "topk": number(row, "topk"), "row_bytes": row_bytes,
               "experts": experts_of(row, number(row, "ep")), "gpus": number(row, "ep")}
    header = 16.0 if dispatch else 0.0
    work = numbers["tokens"] * numbers["topk"] * (row_bytes + header) / 1e3 if row.unit == "GB/s" else 0.0
    return Query(f"ll_{verb}", gpu, (), numbers, work, us_per_unit(row), (f"{verb} {dtype}",), shape_of(row, "hidden", "topk", "experts"))


TRT_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ep_prepare": ("prepare", ("bf16", "fp8", "nvfp4")),
    "ep_dispatch": ("dispatch", ("bf16", "fp8", "nvfp4")),
    "ep_combine": ("combine", ("bf16",)),
    "ep_combine_lowprec": ("combine", ("nvfp4",)),
}
"""Kind -> the kernel and the payloads it is known with."""
TRT_BYTES = {"bf16": 2.0, "fp8": 1.0, "nvfp4": SCALED_FP4}


def trtllm(row: Measurement) -> Query:
    """TensorRT-LLM NVLink all-to-all with deterministic balanced routing (protocol P4)."""
    if row.kind not in TRT_KINDS:
        raise Unsupported(f"kind {row.kind!r} of TensorRT-LLM, expected {' or '.join(TRT_KINDS)}")
    verb, known = TRT_KINDS[row.kind]
    gpu, gpus, hidden = gpu_of(row), number(row, "ep"), number(row, "hidden")
    sided, payload = "one" if "OneSided" in row.system else "two", dtype_of(row, "dtype", expected=known)
    if sided == "one" and verb == "prepare":
        raise Unsupported("one-sided kernels prepare nothing")
    fields = "lowprec" if row.kind.endswith("lowprec") else "scaled" if payload == "nvfp4" else "plain"
    numbers = {"tokens": number(row, "tokens_per_rank"), "copies": min(8.0, gpus), "row_bytes": TRT_BYTES[payload] * hidden, "gpus": gpus}
    dtypes = () if verb == "prepare" else (f"{verb} {'fp8-plain' if payload == 'fp8' else payload}",)
    return Query(f"trt_{sided}_{verb}", gpu, (fields,), numbers, 0.0, us_per_unit(row), dtypes, f"{verb} {shape_of(row, 'ep', 'dtype')}")


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
    return Query("collective", gpu, (kind, nvls, place), {"gpus": n, "bytes": size}, work, us_per_unit(row), (), f"{kind} n={n:g}")


def gemm(row: Measurement) -> Query:
    """Dense GEMM of a library, from a CUDA graph or eager."""
    gpu, c = gpu_of(row), row.config
    if row.kind == "gemm_max":
        raise Unsupported("a maximum over shapes, without its shape")
    m, n, k = (number(row, key) for key in "mnk")
    dtype = dtype_of(row, "dtype", expected=("fp8", "bf16"))
    eager = "eager" in str(c.get("timing", ""))
    if eager and (row.value or 0) * us_per_unit(row) < 100:
        raise Unsupported("rule 14.4: eager and below 0.1 ms, launch-bound")
    element = 2.0 if dtype == "bf16" else 1.0
    work = {"TFLOPS": 2 * m * n * k / 1e6, "GB/s": (element * (m * k + n * k) + 2 * m * n) / 1e3}.get(row.unit, 0.0)
    timing = "eager" if eager else "profiler" if row.system == "DeepGEMM" else "graph"
    words = (dtype, timing, "rowwise" if "Cutlass" in str(c.get("kernel", "")) else "library")
    return Query("gemm", gpu, words, {"m": m, "n": n, "k": k}, work, us_per_unit(row), (dtype,), f"n={n:g} k={k:g}")


def grouped(row: Measurement) -> Query:
    """Grouped GEMM kernels, and the grouped MLP of one rank (protocol P7)."""
    gpu = gpu_of(row)
    if row.kind == "grouped_gemm_mlp":
        if (row.value or 0) * us_per_unit(row) < 500:
            raise Unsupported("rule 14.4: eager and below 0.5 ms, launch-bound")
        dtype_of(row, "dtype", expected=("fp8",))
        rows, groups, experts = number(row, "rows_per_expert"), number(row, "local_experts"), 256.0
        # The collector deals rows to experts in whole blocks of 128.
        total = rows * groups
        groups = min(groups, max(1.0, total / 128))
        tokens, rows = rows * experts / 8, total / groups  # the buffer holds the tokens of the whole simulated group (256 experts, top 8)
        numbers = {"rows": rows, "groups": groups, "tokens": tokens, "hidden": number(row, "hidden"), "inter": number(row, "inter")}
        return Query("eager_mlp", gpu, (), numbers, 0.0, us_per_unit(row), ("fp8",), shape_of(row, "local_experts"))
    m, g, n, k = (number(row, key) for key in ("m_per_group", "groups", "n", "k"))
    dtype = dtype_of(row, "dtype", expected=("fp8", "bf16"))
    element = 2.0 if dtype == "bf16" else 1.0
    work = {"TFLOPS": 2 * m * g * n * k / 1e6, "GB/s": g * (element * (m * k + n * k) + 2 * m * n) / 1e3}.get(row.unit, 0.0)
    numbers = {"rows": m, "groups": g, "n": n, "k": k}
    return Query("grouped_gemm", gpu, (dtype,), numbers, work, us_per_unit(row), (dtype,), f"n={n:g} k={k:g} g={g:g}")


def check_quality(config: Mapping[str, Any]) -> None:
    """Rows their own collector marks as weak are not judged on."""
    if str(config.get("quality", "")).startswith("WEAK"):
        raise Unsupported("rule 14.7: marked WEAK by its source (baselines run by competitors or under blocking launches)")
