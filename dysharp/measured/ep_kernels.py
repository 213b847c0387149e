"""The shared case of families of expert-parallel kernels, and times of kernels from Programs on the burst engine.

A Program runs with few tokens. The time of more tokens lies on the line through the two largest runs, because further
ops repeat the kinds and resources of earlier ops. `tests/measured/test_ep_kernels.py` compares the line with full runs.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypedDict

import numpy as np

from dysharp.base import PS_PER_US, Amounts, AnyMapping, Texts, frozen_keywords
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


class Layout(NamedTuple):
    """The fields that cases with different numbers of tokens share."""

    gpu: str
    gpus: int
    hidden: int
    experts: int
    topk: int


class EpFields(TypedDict):
    """The fields of `EpCase` that all families read in one way."""

    gpu: str
    gpus: int
    hidden: int
    experts: int
    topk: int
    tokens: int


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
        return Layout(self.gpu, self.gpus, self.hidden, self.experts, self.topk)

    def run_key(self) -> Hashable:
        """The layout: one run has the times of all kernels and serves all numbers of tokens."""
        return self.layout(), self.options()

    def effort(self) -> int:
        """Token rows of the larger run."""
        return self.gpus * min(self.tokens, FAR) * self.topk


def ep_fields(m: Measurement, check: Callable[[str, int], None] = check_cluster, experts: float | None = None) -> EpFields:
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
    return EpFields(gpu=gpu, gpus=gpus, hidden=counts["hidden"], experts=counts["experts"], topk=counts["topk"], tokens=counts["tokens"])


def copies_of(read: EpFields) -> float:
    """Mean number of GPUs that a token needs under uniform routing."""
    return expected_copies(read["gpus"], read["experts"], read["topk"])


def verb_of(m: Measurement) -> str:
    """ "dispatch" or "combine", from the kind."""
    return "dispatch" if m.kind == "ep_dispatch" else "combine"


class _SentRows(TypedDict):
    """The fields of a case that the data type of DeepEP's rows decides."""

    fp8: bool
    row_bytes: float
    dtypes: Texts


def sent_rows(m: Measurement, verb: str, hidden: int) -> _SentRows:
    """Rows of `hidden` values that DeepEP's kernels send in `verb`; Combine always sends BF16. Raises `Unsupported` for another data type."""
    dtype = dtype_of(m, "dtype", verb, expected=("fp8", "bf16") if verb == "dispatch" else ("bf16",))
    fp8, value_bytes = (verb, dtype) != ("dispatch", "bf16"), SCALED_FP8 if dtype == "fp8" else 2.0
    return _SentRows(fp8=fp8, row_bytes=hidden * value_bytes, dtypes=(f"{verb} {dtype}",))


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
    marks: Texts,
    ends: tuple[int, int],
    routing_of: RoutingOf = uniform,
    machine_of: MachineOf = cluster_of,
) -> tuple[float, ...]:
    """When the last ops of the templates `marks` are done, and the end of the Program, in us.

    Up to the larger of `ends` tokens per GPU the times come from one run, beyond it from the line through two runs.
    """
    return on_line(
        case.tokens, ends, partial(_run, system, case.options(), routing_of, machine_of, case.layout(), hashable_constants(constants), marks)
    )


def on_line(tokens: int, ends: tuple[int, int], run: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """The times of `run(tokens)`; beyond the larger of `ends`, which are tokens of two runs, the times on the line through them."""
    near, far = ends
    if tokens <= far:
        return run(tokens)
    more = (tokens - far) / (far - near)
    return tuple(b + more * (b - a) for a, b in zip(run(near), run(far), strict=True))


@lru_cache(maxsize=4096)
def _run(
    system: str,
    options: Options,
    routing_of: RoutingOf,
    machine_of: MachineOf,
    layout: Layout,
    constants: HashableConstants,
    marks: Texts,
    tokens: int,
) -> tuple[float, ...]:
    program = program_of(system, options, routing_of, machine_of, layout, constants, tokens)
    trace, _ = run_burst(program)
    return (*(done_ps(program, trace, mark) / PS_PER_US for mark in marks), trace.time_ps / PS_PER_US)


def program_of(
    system: str, options: Options, routing_of: RoutingOf, machine_of: MachineOf, layout: Layout, constants: HashableConstants, tokens: int
) -> Program:
    """The real form of `system` without GEMMs, with `tokens` per GPU."""
    model = Model("measured", layout.hidden, 128, layout.experts, layout.topk, tokens, n_matrices=2, element_bytes=2, gemm_dtype="bf16")
    routing = routing_of(model, layout.gpus, tokens)
    chosen, cluster = get_system(system), machine_of(layout.gpu, layout.gpus, constants)
    return chosen.plan(model, cluster, routing, "fwd", chosen.options(form="real", compute=False, **dict(options)))


def done_ps(program: Program, trace: Trace, name: str) -> int:
    """Time at which the last op of the templates called `name` is done; 0 without such an op."""
    templates = [i for i, template in enumerate(program.templates) if template.name == name]
    return int(trace.done[np.isin(program.ops.template, templates)].max(initial=0))
