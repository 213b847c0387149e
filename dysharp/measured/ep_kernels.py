"""The shared case of families of expert-parallel kernels, and times of kernels from Programs on the burst engine.

A Program runs with few tokens. The time of more tokens lies on the line through the two largest runs, because further
ops repeat the kinds and resources of earlier ops. `tests/measured/test_ep_kernels.py` compares the line with full runs.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from dysharp.base import PS_PER_US, Amounts, AnyMapping, ByName, Texts, frozen_keywords
from dysharp.engine.burst.run import run_burst
from dysharp.measured.family import Case, Constants
from dysharp.measured.measurements import CLUSTERS, SCALED_FP8, Measurement, Unsupported, check_cluster, dtype_of, experts_of, gpu_of, number, whole
from dysharp.measured.predictions import HashableConstants, hashable_constants
from dysharp.program import Program, Trace
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import get_system
from dysharp.workload import Routing, expected_copies, make_routing

NEAR, FAR = 256, 512
"""Tokens per GPU of the two runs that define the line."""
MANY_GPUS, FEWER = 16, 2
"""With more than `MANY_GPUS` GPUs the two runs have 1 / `FEWER` of the tokens, as a run grows with the GPUs."""
Options = tuple[tuple[str, Any], ...]
ROWS_AS = {2: "bf16", 1: "fp8-plain"}
"""Bytes of a model's element -> the data type of rows that a system sends as `rows`."""


RoutingOf = Callable[[Model, int, int], Routing]
"""A routing from a model, GPUs and tokens per GPU."""
MachineOf = Callable[[str, int, HashableConstants], Cluster]
"""A cluster from the name of a GPU, the number of GPUs and constants."""
Layout = tuple[str, int, int, int, int]
"""GPU, GPUs, width of a token, experts and top-k of a run."""
Read = Callable[[Program, Trace], tuple[float, ...]]
"""Times in us that a run of a Program shows."""


@frozen_keywords
class EpCase(Case):
    """One call of an EP kernel: `tokens` per GPU, `experts` of all GPUs, rows of `hidden` values.

    `verb` is the kernel that was measured: "dispatch", "combine" or "prepare".
    """

    verb: str
    gpus: int
    hidden: int
    experts: int
    topk: int
    tokens: int

    def options(self) -> Options:
        """Options of the system, sorted by name."""
        return ()

    def layout(self) -> Layout:
        """The case without tokens and without the fields of its family."""
        return self.gpu, self.gpus, self.hidden, self.experts, self.topk

    def run_key(self) -> Hashable:
        """The layout: one run has the times of all kernels and serves all numbers of tokens."""
        return self.layout(), self.options()

    def effort(self) -> int:
        """Token rows of the larger run."""
        return self.gpus * min(self.tokens, FAR) * self.topk


def ep_fields(m: Measurement, check: Callable[[str, int], None] = check_cluster, experts: float | None = None) -> ByName:
    """The fields that all families read. Raises `Unsupported` for values that no cluster or routing can have.

    `check` raises for a GPU and a number of GPUs that no cluster has. `experts`: number of experts in place of the measured number.
    """
    gpu, n_gpus = gpu_of(m), number(m, "ep")
    numbers = {name: number(m, key) for name, key in (("tokens", "tokens_per_rank"), ("hidden", "hidden"), ("topk", "topk"))}
    numbers["experts"] = experts_of(m, n_gpus) if experts is None else experts
    gpus = whole(n_gpus, "GPUs")
    check(gpu, gpus)
    counts = {name: whole(value, name) for name, value in numbers.items()}
    if counts["experts"] % gpus:
        raise Unsupported("experts that the GPUs do not share evenly")
    if counts["topk"] > counts["experts"]:
        raise Unsupported("experts, GPUs and top-k do not fit together")
    return {"gpu": gpu, "gpus": gpus, **counts}


def copies_of(read: ByName) -> float:
    """Mean number of GPUs that a token needs under uniform routing."""
    return expected_copies(read["gpus"], read["experts"], read["topk"])


def verb_of(m: Measurement) -> str:
    """ "dispatch" or "combine", from the kind."""
    return "dispatch" if m.kind == "ep_dispatch" else "combine"


def sent_rows(m: Measurement, verb: str, hidden: int) -> ByName:
    """Fields of a case: rows of `hidden` values that DeepEP's kernels send in `verb`; Combine sends BF16. Raises `Unsupported` for another one."""
    dtype = dtype_of(m, "dtype", verb, expected=("fp8", "bf16") if verb == "dispatch" else ("bf16",))
    fp8, value_bytes = (verb, dtype) != ("dispatch", "bf16"), SCALED_FP8 if dtype == "fp8" else 2.0
    return {"fp8": fp8, "row_bytes": hidden * value_bytes, "dtypes": (f"{verb} {dtype}",)}


def sent_dtype(verb: str, model: Model, options: AnyMapping) -> str:
    """The data type in which a system sends rows in `verb`, named as in `Case.dtypes`."""
    word = str(options.get(verb, "rows"))
    return f"{verb} {ROWS_AS.get(model.element_bytes, 'fp32') if word == 'rows' else word}"


def sent_dtypes(model: Model, options: AnyMapping) -> Texts:
    """Data types of the rows that Dispatch and Combine of a system send."""
    return sent_dtype("dispatch", model, options), sent_dtype("combine", model, options)


def cluster_of(gpu: str, gpus: int, constants: HashableConstants) -> Cluster:
    """The packaged cluster of a GPU with `constants`."""
    return replace(load_cluster(CLUSTERS[gpu]).with_gpus(gpus), constants=constants)


def uniform(model: Model, gpus: int, tokens: int) -> Routing:
    """Uniform random routing."""
    return make_routing("uniform", model, gpus, tokens)


def kernel_times(system: str, case: EpCase, constants: Constants, routing_of: RoutingOf = uniform) -> Amounts:
    """Times in us of the kernels "prepare", "dispatch" and "combine", from a run or from the line through two runs."""
    ends = (NEAR, FAR) if case.gpus <= MANY_GPUS else (NEAR // FEWER, FAR // FEWER)
    prepared, received, end = marks_us(system, case, constants, ("prepared", "received"), ends, routing_of)
    return {"prepare": prepared, "dispatch": received - prepared, "combine": end - received}


def marks_us(
    system: str,
    case: EpCase,
    constants: Constants,
    marks: Texts | Read,
    ends: tuple[int, int],
    routing_of: RoutingOf = uniform,
    machine_of: MachineOf = cluster_of,
) -> tuple[float, ...]:
    """When the last ops of the templates `marks` are done, and the end of the Program, in us; or what a function `marks` reads of a run.

    Up to the larger of `ends` tokens per GPU the times come from one run, beyond it from the line through two runs. Runs are kept by their arguments.
    """
    read = _last_of(marks) if isinstance(marks, tuple) else marks
    return on_line(
        case.tokens, ends, partial(_run, system, case.options(), routing_of, machine_of, case.layout(), hashable_constants(constants), read)
    )


@cache
def _last_of(names: Texts) -> Read:
    return lambda program, trace: (*(done_ps(program, trace, name) / PS_PER_US for name in names), trace.time_ps / PS_PER_US)


def on_line(tokens: int, ends: tuple[int, int], run: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """The times of `run(tokens)`; beyond the larger of `ends`, which are tokens of two runs, the times on the line through them."""
    near, far = ends
    if tokens <= far:
        return run(tokens)
    more = (tokens - far) / (far - near)
    return tuple(b + more * (b - a) for a, b in zip(run(near), run(far), strict=True))


@lru_cache(maxsize=4096)
def _run(
    system: str, given: Options, routing_of: RoutingOf, machine_of: MachineOf, layout: Layout, constants: HashableConstants, read: Read, tokens: int
) -> tuple[float, ...]:
    gpu, gpus, hidden, experts, topk = layout
    model = Model("measured", hidden, 128, experts, topk, tokens, n_matrices=2, element_bytes=2, gemm_dtype="bf16")
    chosen = get_system(system)
    options = chosen.options(form="real", compute=False, **dict(given))
    program = chosen.plan(model, machine_of(gpu, gpus, constants), routing_of(model, gpus, tokens), "fwd", options)
    return read(program, run_burst(program)[0])


def done_ps(program: Program, trace: Trace, name: str) -> int:
    """Time at which the last op of the templates called `name` is done; 0 without such an op."""
    templates = [i for i, template in enumerate(program.templates) if template.name == name]
    return int(trace.done[np.isin(program.ops.template, templates)].max(initial=0))
