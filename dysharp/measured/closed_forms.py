"""Answers to queries: one array call per closed form, GPU and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.queries import SCALED_FP8, Query
from dysharp.compute import allreduce, collectives, moe, operators, transfer
from dysharp.specs.gpu import Gpu, load_gpu

F64 = NDArray[np.float64]
Columns = Mapping[str, F64]
Constants = Mapping[str, float]
Formula = Callable[[Gpu, Constants, tuple[str, ...], Columns], F64]


def _collective(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns) -> F64:
    kind, nvls, place = words
    forced = {"on": True, "off": False, "auto": None}[nvls]
    return collectives.collective_us(gpu, c, kind, x["gpus"], x["bytes"], nvls=forced, in_place=place == "in")


def _gemm(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns) -> F64:
    dtype, timing, library = words
    time = operators.gemm_us(gpu, c, x["m"], x["n"], x["k"], dtype, rowwise=library == "rowwise")
    if timing == "profiler":  # kernel durations only: no gap between kernels
        return time - operators.launch_us(gpu, c)
    return moe.linear_us(gpu, c, time, x["m"], x["k"]) if timing == "eager" else time


def _fused(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns) -> F64:
    names = ("rows", "touched", "hidden", "inter", "gpus", "dispatch_bytes", "combine_bytes")
    return moe.fused_layer_us(gpu, c, weight_bytes=float(words[1]), rate_dtype=words[0], **{name: x[name] for name in names})


def _layer(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns) -> F64:
    moves, wire, dtype = words
    rows = x["rows"] / x["touched"]
    mlp = moe.expert_mlp_us(gpu, c, rows, x["touched"], x["hidden"], x["inter"], dtype, float(x["gates"][0]))
    copied = x["tokens"] * x["copies"] if moves == "deepep" else x["tokens"] * x["topk"]
    permute = moe.permute_us(gpu, c, copied, x["rows"], x["hidden"], SCALED_FP8 if wire == "fp8" else 2.0)
    if wire == "bf16" and dtype == "fp8":  # rows and weights are quantised before each GEMM, with their transpose for the backward pass
        values = x["rows"] * (x["hidden"] + x["inter"]) + x["touched"] * (x["gates"] + 1) * x["hidden"] * x["inter"]
        mlp = mlp + 4 * operators.launch_us(gpu, c) + operators.hbm_us(gpu, c, values * (2.0 + 2.0))
    if moves == "nccl":
        size = x["tokens"] * x["topk"] * x["hidden"] * 2
        return moe.layer_us(gpu, c, mlp + 2 * permute + 2 * collectives.collective_us(gpu, c, "alltoall", x["gpus"], size))
    row = x["hidden"] * (SCALED_FP8 if wire == "fp8" else 2.0)
    there = transfer.deepep_dispatch_us(gpu, c, x["tokens"], x["copies"], row, x["sms"], x["gpus"])
    back = transfer.deepep_combine_us(gpu, c, x["tokens"], x["copies"], 2 * x["hidden"], x["sms"], x["gpus"])
    return moe.layer_us(gpu, c, mlp + permute + there + back)


def _two_sided(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns, verb: str) -> F64:
    fields = {
        ("plain", "dispatch"): c["trt.token_us"],
        ("scaled", "dispatch"): c["trt.scaled_us"],
        ("plain", "combine"): c["trt.combine_us"],
        ("lowprec", "combine"): c["trt.lowprec_us"],
    }[words[0], verb]
    return transfer.alltoall_two_sided_us(gpu, c, x["tokens"], x["copies"], x["row_bytes"], x["gpus"], fields)


def _kernel_allreduce(gpu: Gpu, c: Constants, words: tuple[str, ...], x: Columns) -> F64:
    return allreduce.kernel_allreduce_us(gpu, c, words[0], x["gpus"], x["bytes"], x["in_flight"])


def _columns(names: tuple[str, ...], call: Callable[..., F64]) -> Formula:
    return lambda gpu, c, words, x: call(gpu, c, *(x[name] for name in names))


_EP = ("tokens", "copies", "row_bytes", "sms", "gpus")
_LL = ("tokens", "topk", "row_bytes", "experts", "gpus")
_ONE = ("tokens", "copies", "row_bytes", "gpus")
NO_FORM = "no_form"
"""Formula of what only a Program predicts."""
FORMULAS: Mapping[str, Formula] = {
    "deepep_dispatch": _columns(_EP, transfer.deepep_dispatch_us),
    "deepep_combine": _columns(_EP, transfer.deepep_combine_us),
    "ll_dispatch": _columns(_LL, transfer.ll_dispatch_us),
    "ll_combine": _columns(_LL, transfer.ll_combine_us),
    "trt_one_dispatch": _columns(_ONE, transfer.alltoall_one_sided_us),
    "trt_one_combine": _columns(_ONE, transfer.alltoall_one_sided_us),
    "trt_two_dispatch": lambda gpu, c, words, x: _two_sided(gpu, c, words, x, "dispatch"),
    "trt_two_combine": lambda gpu, c, words, x: _two_sided(gpu, c, words, x, "combine"),
    "trt_two_prepare": _columns(("tokens", "gpus"), transfer.alltoall_prepare_us),
    "collective": _collective,
    "gemm": _gemm,
    "grouped_gemm": lambda gpu, c, words, x: operators.grouped_gemm_us(gpu, c, x["rows"], x["groups"], x["n"], x["k"], words[0]),
    "eager_mlp": _columns(("rows", "groups", "tokens", "hidden", "inter"), moe.eager_mlp_us),
    "fused_layer": _fused,
    "layer": _layer,
    "memory_copy": _columns(("bytes",), operators.hbm_us),
    "host_call": lambda gpu, c, words, x: np.full(len(x["calls"]), moe.host_us(gpu, c, 1.0)),
    "launch": lambda gpu, c, words, x: np.full(len(x["calls"]), operators.launch_us(gpu, c)),
    "kernel_allreduce": _kernel_allreduce,
    NO_FORM: lambda gpu, c, words, x: np.full(len(x["tokens"]), np.nan),
}


class Batch:
    """Queries put into arrays once, so that a fit can ask them many times."""

    def __init__(self, queries: Sequence[Query]) -> None:
        groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for at, query in enumerate(queries):
            groups.setdefault((query.formula, query.gpu, query.words), []).append(at)
        self.size = len(queries)
        self.work = np.array([q.work for q in queries], np.float64)
        self.scale = np.array([q.scale for q in queries], np.float64)
        self.parts = [
            (FORMULAS[formula], load_gpu(gpu), words, np.array(places), _stack([queries[at].numbers for at in places]))
            for (formula, gpu, words), places in groups.items()
        ]

    def us(self, constants: Constants) -> F64:
        """Predicted times, `[n]` us."""
        out = np.zeros(self.size)
        for formula, gpu, words, places, columns in self.parts:
            out[places] = formula(gpu, constants, words, columns)
        return out

    def values(self, constants: Constants) -> F64:
        """Predictions in the unit of each row: a time, or work over time."""
        time = self.us(constants)
        return np.where(self.work > 0, self.work / time, time / self.scale)


def _stack(rows: Sequence[Mapping[str, float]]) -> dict[str, F64]:
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}


