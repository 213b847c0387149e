"""One layer of a step as a merged Program: attention and router, then the MoE layer of an EP system with shared experts beside it.

Kernels without messages are ops that take all SMs for the time of their closed form; those of the MoE layer are the system's own ops. All share the
SMs and links of one machine, so shared experts take SMs from experts, and messages wait for the group whose cache is largest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from dysharp.base import ByName, frozen
from dysharp.runs.run import planned, program_us
from dysharp.serving.balance import largest_of
from dysharp.serving.layer import layer_ops
from dysharp.serving.work import ELEMENT
from dysharp.training.merged import MergedKernel, kernels_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dysharp.costs import OpTime
    from dysharp.model import StepBatch
    from dysharp.program import Program
    from dysharp.serving.work import Replica

MOVED = ("dispatch", "experts", "combine")
"""Ops that the MoE layer of an EP system stands for."""


@frozen
class MergedLayer:
    """Microseconds of one layer: its Program, the closed form, and the MoE layer's Program alone."""

    merged: float
    closed: float
    alone: float


def merged_layer(replica: Replica, batch: StepBatch, system: str, asked: ByName) -> MergedLayer:
    """The last layer of a step under an EP system; `asked`: the request of its MoE layer, as for `compare`."""
    from dysharp.program.merge import Cross, Part, merge

    (moe,), n_sms = planned(system, ("fwd",), **asked), replica.machine.gpu.n_sms
    before, shared, behind, closed = _kernels(replica, batch, moe.n_nodes)
    parts = [Part("attention", _stream(moe, before, n_sms)), Part("moe", moe)]
    edges = []
    if shared:
        parts.append(Part("shared", _stream(moe, shared, n_sms)))
        ends = np.arange(moe.n_nodes)
        edges = [Cross("shared", ends, "attention", ends + (len(before) - 1) * moe.n_nodes)]
    if behind:
        parts.append(Part("gathered", _stream(moe, behind, n_sms)))
    streams = [[part.label for part in parts if part.label != "shared"]]
    return MergedLayer(program_us(merge(parts, streams=streams, edges=edges)), closed, program_us(moe))


def tensor_layer(replica: Replica, batch: StepBatch) -> MergedLayer:
    """The last layer of a step of one attention group that sums over its GPUs: kernels between the engine's all-reduces, as Programs."""
    from dysharp.program.merge import Part, merge

    gap = replica.machine.constants["serving.gap_us"]
    ops = [op for op in layer_ops(replica, batch, replica.model.n_layers - 1) if op.us > 0]
    sums = _all_reduce(replica, batch.tokens)
    parts: list[Part] = []
    kernels: list[MergedKernel] = []
    for op in ops:
        if not op.name.endswith("all-reduce"):
            kernels.append(MergedKernel(op.name.replace(" ", "_"), op.us + gap * op.kernels))
            continue
        parts += [Part(f"kernels{len(parts)}", _stream(sums, kernels, replica.machine.gpu.n_sms)), Part(f"sum{len(parts)}", sums)]
        kernels = []
    merged = program_us(merge(parts, streams=[[part.label for part in parts]]))
    return MergedLayer(merged, sum(op.us + gap * op.kernels for op in ops), program_us(sums))


def _all_reduce(replica: Replica, tokens: float) -> Program:
    """The engine's fastest all-reduce of so many rows, as a Program."""
    from dysharp.systems.collectives import get_collective
    from dysharp.workload.collective import even

    n = replica.layout.tp
    rows = ELEMENT * max(1, round(tokens)) * replica.model.hidden
    times = replica.machine.reducing(n, rows, replica.reducers)
    fastest = min(times, key=lambda name: times[name])
    system = get_collective("nccl" if fastest == "nccl" else f"allreduce-{fastest.replace(' ', '-')}")
    work = even("all-reduce", int(rows), n)
    return system.plan(work, replica.machine.cluster.with_gpus(n), system.options())


def _kernels(replica: Replica, batch: StepBatch, gpus: int) -> tuple[list[MergedKernel], list[MergedKernel], list[MergedKernel], float]:
    """Streams before, beside and behind the MoE layer, and the closed form of the whole layer in microseconds."""
    layout = replica.layout
    number, gap = replica.model.n_layers - 1, replica.machine.constants["serving.gap_us"]
    late = layer_ops(replica, batch, number)
    usual = layer_ops(replica, replace(batch, context=batch.usual or batch.context), number)
    place = [NormalDist().inv_cdf((group + 0.5) / layout.dp) / largest_of(max(2, layout.dp)) for group in range(layout.dp)]
    behind_mean = np.repeat(np.array(place), gpus // layout.dp)

    def on_gpus(op: OpTime, most: OpTime) -> MergedKernel:
        return MergedKernel(op.name.replace(" ", "_"), op.us + (most.us - op.us) * behind_mean + gap * op.kernels)

    pairs = [pair for pair in zip(usual, late, strict=True) if pair[0].us > 0]
    first = next(i for i, (op, _) in enumerate(pairs) if op.name == "dispatch")
    last = next(i for i, (op, _) in enumerate(pairs) if op.name == "combine")
    before, shared, behind = (
        [on_gpus(*pair) for pair in part] for part in (pairs[:first], [p for p in pairs if p[0].name == "shared experts"], pairs[last + 1 :])
    )
    return before, shared, behind, sum(op.us + gap * op.kernels for op in late)


def _stream(like: Program, kernels: Sequence[MergedKernel], n_sms: int) -> Program:
    """Kernels one behind the other, each on all SMs of every GPU at once: a kernel of a serving engine is one wave."""
    return kernels_program(kernels, like, math.inf, n_sms)
