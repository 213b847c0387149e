"""Which prediction judges a family: the Program of the system, run on the engine, or a form that is named as what it is.

A family of `PROGRAMS` is predicted by Programs only: a row that its Program cannot express has no prediction, though a closed form may have one
(the closed form is the second, independent way, and is compared with the Program). Other families are `FORMS`.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dysharp.analysis.layer_queries import formats_of
from dysharp.analysis.measured import Measurement
from dysharp.analysis.programs import CLUSTERS, FAR, FUSED_TOKENS, RUNS, AllReduceCase, EpCase, FusedCase, LayerCase
from dysharp.analysis.queries import Query, Unsupported, dtype_of, experts_of, number
from dysharp.errors import DysharpError
from dysharp.specs import Model, load_cluster
from dysharp.systems.registry import GATED_MATRICES

Words = tuple[tuple[str, Any], ...]
Frozen = tuple[tuple[str, float], ...]
Told = Callable[[int, int], None]
BALANCED_TOPK = 8  # of TensorRT-LLM's benchmark
MOST_LAYER_TOKENS = 8192
KIB = 1 << 10
TRT_PARTS = {"prepare": 0, "dispatch": 1, "combine": 2}
PAYLOADS = {"bf16": "rows", "fp8": "fp8-plain", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One number of a Program: function `of` of `programs.RUNS` at `case`, with `words` by name; `part` of what it returns."""

    of: str
    case: EpCase | FusedCase | LayerCase | AllReduceCase
    words: Words
    part: int

    @property
    def shape(self) -> tuple[str, Any, Words]:
        """The same for all asks that share runs."""
        return self.of, self.case if isinstance(self.case, LayerCase | AllReduceCase) else replace(self.case, tokens=0), self.words

    def us(self, constants: Mapping[str, float]) -> float:
        """The answer."""
        return RUNS[self.of](self.case, constants=constants, **dict(self.words))[self.part]


def ep_case(row: Measurement, query: Query, n_sm: int = 0, *, fp8: bool = True) -> EpCase:
    """The case of a row of an EP kernel. Raises `Unsupported` for what no cluster or routing can have."""
    n = query.numbers
    gpus = whole(n["gpus"], "GPUs")
    check_cluster(query.gpu, gpus)
    numbers = {"hidden": number(row, "hidden"), "experts": experts_of(row, gpus), "topk": number(row, "topk"), "tokens": n["tokens"]}
    found = {name: whole(value, name) for name, value in numbers.items()}
    if found["experts"] % gpus:
        raise Unsupported("experts that the GPUs do not share evenly")
    return EpCase(gpu=query.gpu, gpus=gpus, n_sm=n_sm, fp8=fp8, **found)


def whole(value: float, name: str) -> int:
    """`value` as a whole number of at least 1, or `Unsupported`."""
    if value != math.floor(value) or value < 1:
        raise Unsupported(f"no whole number of {name}")
    return int(value)


def check_cluster(gpu: str, gpus: int) -> None:
    """`Unsupported` where no packaged machine has so many of this GPU."""
    if gpu not in CLUSTERS or gpus > (load_cluster(CLUSTERS[gpu]).max_gpus or 1):
        raise Unsupported(f"no packaged cluster of {gpus} {gpu}")


def _deepep(row: Measurement, query: Query) -> Ask:
    dispatch = query.formula == "deepep_dispatch"
    n_sm = whole(query.numbers["sms"], "SMs")
    if n_sm % 2:
        raise Unsupported("an odd number of SMs: channels are pairs of them")
    fp8 = query.dtypes != ("dispatch bf16",)
    return Ask("deepep", ep_case(row, query, n_sm, fp8=fp8), (), 0 if dispatch else 1)


def _low_latency(row: Measurement, query: Query) -> Ask:
    return Ask("deepep-ll", ep_case(row, query, fp8=query.dtypes != ("dispatch bf16",)), (), 0 if query.formula == "ll_dispatch" else 1)


def _trtllm(row: Measurement, query: Query) -> Ask:
    _, sides, verb = query.formula.split("_")
    case = ep_case(row, query)
    if case.topk != BALANCED_TOPK:
        raise Unsupported("balanced routing of another top-k than 8")
    lowprec = "lowprec" in query.words
    payload = PAYLOADS[dtype_of(row, "dtype", expected=tuple(PAYLOADS))]
    words = (("back", "nvfp4" if lowprec else "rows"), ("payload", payload), ("sides", sides))
    return Ask("trtllm-a2a", case, words, TRT_PARTS[verb])


FUSED_ROWS = {"fp8": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
KERNEL_ALONE = "DeepGEMM MegaMoE"
"""The library's own measurements, of the kernel without the quantisation of its input."""


def _fused(row: Measurement, query: Query) -> Ask:
    c, gpus = row.config, whole(query.numbers["gpus"], "GPUs")
    check_cluster(query.gpu, gpus)
    names = {"hidden": "hidden", "inter": "inter", "experts": "experts", "topk": "topk", "tokens": "tokens_per_rank"}
    numbers = {name: whole(c[key], name) for name, key in names.items()}
    if numbers["experts"] % gpus:
        raise Unsupported("experts that the GPUs do not share evenly")
    acts, weights = formats_of(row)
    case = FusedCase(
        gpu=query.gpu,
        gpus=gpus,
        distribution=str(c.get("distribution", "random")),
        rows=FUSED_ROWS[acts],
        weights=weights,
        back="mxfp8" if "combine_mxfp8" in row.system else "nvfp4" if "combine_nvfp4" in row.system else "rows",
        cast=row.system != KERNEL_ALONE,
        **numbers,
    )
    return Ask("megamoe", case, (), 0)


def _layer(row: Measurement, query: Query) -> Ask:
    n, (moves, wire, dtype) = query.numbers, query.words
    gpus, gated = whole(n["gpus"], "GPUs"), n["gates"] > 1
    check_cluster(query.gpu, gpus)
    if n["tokens"] > MOST_LAYER_TOKENS:
        raise Unsupported(f"a layer of more than {MOST_LAYER_TOKENS} tokens per GPU")
    model = Model(
        name="measured",
        hidden=whole(n["hidden"], "hidden"),
        expert_hidden=whole(n["inter"], "inter"),
        n_experts=whole(n["experts"], "experts"),
        topk=whole(n["topk"], "topk"),
        tokens_per_gpu=whole(n["tokens"], "tokens"),
        n_matrices=GATED_MATRICES if gated else 2,
        element_bytes=2,
        gemm_dtype=dtype,
    )
    training = wire == "bf16" and dtype == "fp8"
    copies = n["tokens"] * n["copies"]
    system = {"deepep": "deepep", "nccl": "megatron-a2a"}[moves]
    return Ask("layer", LayerCase(system, query.gpu, gpus, model, int(n["sms"]), wire == "fp8", n["rows"], copies, training, n["touched"]), (), 0)


PROGRAMS: Mapping[str, Callable[[Measurement, Query], Ask]] = {
    "deepep-dispatch": _deepep,
    "deepep-combine": _deepep,
    "deepep-ll": _low_latency,
    "trtllm-a2a": _trtllm,
    "fused-layer": _fused,
    "layer": _layer,
}
"""Families that are judged by Programs on the engine."""
FORMS: Mapping[str, str] = {"nccl": "rate form", "dense-gemm": "rate form", "grouped-gemm": "rate form"}
"""What predicts the other families."""
PREDICTORS: Mapping[str, str] = {**dict.fromkeys(PROGRAMS, "program"), "layer": "program and surroundings", **FORMS}
"""Family -> what predicts its rows, in words."""


def ask_of(family: str, row: Measurement, query: Query) -> Ask | None:
    """What a row asks of a Program; None in a family that rates predict. Raises `Unsupported` with the reason."""
    return PROGRAMS[family](row, query) if family in PROGRAMS else None


@dataclass(frozen=True, slots=True)
class _Group:
    """Asks that share runs, with their constants."""

    asks: tuple[Ask, ...]
    constants: Frozen


def answers(wanted: Sequence[tuple[Ask, Mapping[str, float]]], jobs: int = 1, tell: Told | None = None) -> list[float | str]:
    """Times in us, one for each (ask, constants), or why its Program cannot be made or run; equal ones are run once. `jobs` processes, the same
    numbers whatever their count."""
    groups: dict[Any, list[Ask]] = {}
    keys = []
    for ask, constants in wanted:
        frozen = tuple(sorted(constants.items()))
        groups.setdefault((ask.shape, frozen), []).append(ask)
        keys.append((ask, frozen))
    work = [_Group(tuple(dict.fromkeys(asks)), frozen) for (_, frozen), asks in groups.items()]
    work.sort(key=lambda group: -max(_effort(ask) for ask in group.asks))
    found: dict[tuple[Ask, Frozen], float | str] = {}
    done, total = 0, sum(len(group.asks) for group in work)
    for group, times in zip(work, _mapped(work, jobs), strict=True):
        found |= {(ask, group.constants): us for ask, us in zip(group.asks, times, strict=True)}
        done += len(group.asks)
        if tell is not None:
            tell(done, total)
    return [found[key] for key in keys]


def _mapped(work: Sequence[_Group], jobs: int) -> Any:
    if jobs == 1 or len(work) < 2 * jobs:
        yield from map(_answered, work)
        return
    _answered(work[-1])  # compiles the engine once; the processes load it from the cache
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent) as pool:
        yield from pool.map(_answered, work)


def _end_with_parent() -> None:
    """A process whose parent has been killed ends, too."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _answered(group: _Group) -> list[float | str]:
    return [_answer(ask, dict(group.constants)) for ask in group.asks]


def _answer(ask: Ask, constants: Mapping[str, float]) -> float | str:
    """A row that a specification or a Program refuses must not end the others."""
    try:
        return ask.us(constants)
    except DysharpError as error:
        return str(error)


def _effort(ask: Ask) -> int:
    """About how long: the longest first, so that no process is left with a long one at the end."""
    if isinstance(ask.case, AllReduceCase):
        return ask.case.gpus * ask.case.n_bytes // KIB
    if isinstance(ask.case, LayerCase):
        return ask.case.gpus * ask.case.model.tokens_per_gpu * ask.case.model.topk
    if isinstance(ask.case, FusedCase):
        return 2 * min(ask.case.gpus * ask.case.tokens, FUSED_TOKENS) * ask.case.topk
    return ask.case.gpus * min(ask.case.tokens, FAR) * ask.case.topk
