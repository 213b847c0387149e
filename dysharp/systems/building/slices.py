"""Results in slices of columns: the GEMM that makes them computes one slice of all tiles after the other, and a sum travels slice by slice."""

from dataclasses import dataclass

import numpy as np

from dysharp.arrays import I32, I64
from dysharp.compute import gemm_gang
from dysharp.program import Discipline, Kind, Template
from dysharp.program.constants import REQUESTS
from dysharp.program.tables import ColumnRange
from dysharp.specs import choice_int
from dysharp.systems.building.batch import Sends, ids
from dysharp.systems.building.experts import Stage, add_stage, gemm_task
from dysharp.systems.building.layer import STORE, LayerBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedSums(Sends):
    """Trains of sums, all trains of a (token, GPU) pair one behind the other. `slice`: `[n]` int64, the slice of each train."""

    slice: I64


def column_slices(layer: LayerBuilder, most: int) -> list[ColumnRange]:
    """At most `most` slices of a result row, as equal as whole GEMM tiles and whole packets allow.

    A slice then costs no part of a tile and no packet header more than the whole row does.
    """
    hidden = layer.model.hidden
    step = int(np.lcm(choice_int("gemm.tile_cols"), max(1, STORE.payload_bytes // layer.model.element_bytes)))
    steps = -(-hidden // step)
    n = min(most, steps)
    ends = [min(hidden, -(-steps * (i + 1) // n) * step) for i in range(n)]
    return [(first, end, hidden) for first, end in zip([0, *ends[:-1]], ends, strict=True)]


def add_sliced_stage(layer: LayerBuilder, stage: Stage, issuer: I32, slices: list[ColumnRange], filler: int) -> tuple[I32, ...]:
    """As `experts.add_stage` on all tiles, with one op per (slice, tile) of the GEMM that makes results.

    SMs prefer early slices, then early tiles. Returns an array `[tiles]` of ops for each slice, then for each weight
    gradient (`prio` `filler`). A task costs what a task of the whole GEMM costs: memory reads the activations of a tile once for all slices.
    """
    results, *gradients = stage
    gpu, duration, ops = layer.tile_gpu, layer.b.duration(*gemm_task(layer, results)), []
    for i, columns in enumerate(slices):
        template = Template(
            f"{results.fn}.{i}", Kind.COMPUTE, results.operator, results.fn, tasks=gemm_gang(columns[1] - columns[0]),
            duration=duration, src=results.src, dst=results.dst, columns=columns,
        )  # fmt: skip
        first = layer.b.ops(layer.b.template(template), gpu, issuer=issuer[gpu], prio=i, rows=layer.tile_rows, key=layer.tiles)
        ops.append(ids(first, len(gpu)))
    return (*ops, *add_stage(layer, tuple(gradients), issuer, layer.tiles, filler=filler))


def sliced_sums(layer: LayerBuilder, slices: list[ColumnRange]) -> SlicedSums:
    """As `LayerBuilder.combine_puts`, one train per slice. Nothing waits yet.

    Pairs are in the order in which a GPU returns them: first its own tokens, then the tokens of the next GPU, so that all GPUs send to different
    GPUs. Gate gradients ride the last train.
    """
    token, gpu, home = layer.p.token, layer.p.gpu, layer.p.source
    order = np.lexsort((token, (home - gpu) % layer.n_gpus, gpu))
    first_row, _ = layer.partial_rows((token, gpu, home))
    n, ends = len(slices), np.array([end for _, end, _ in slices]) * layer.back_bytes // layer.model.hidden
    starts = np.append(0, ends[:-1])
    pair, part = np.repeat(order, n), np.tile(np.arange(n), len(order))
    issuer = layer.per_gpu(Discipline.READY_FIFO, "combine")
    op = layer.puts(
        Template("combine.put", Kind.PUT, "combine", "sum", REQUESTS, framing=layer.b.framing(STORE), src=layer.result, dst="partial"),
        gpu[pair],
        home[pair],
        first_row + pair,
        issuer=issuer[gpu[pair]],
        bytes=(ends - starts)[part],
        key=token[pair],
        aux_bytes=np.where(part == n - 1, layer.combine_aux, 0),
        offset=starts[part],
    )
    return SlicedSums(op=op, node=gpu[pair], to=home[pair], slice=part)
