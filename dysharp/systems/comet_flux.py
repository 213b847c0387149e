"""COMET as released (flux): an all-gather before GEMM-1, tiles in list order; GEMM-2 in slices of columns, SMs that only return results.

Results in slices of columns: the GEMM that makes them computes one slice of all tiles after the other, and a sum travels slice by slice.
"""

import dataclasses

import numpy as np

from dysharp.base import PS_PER_US, ByName, ConfigError, frozen_keywords
from dysharp.costs import gemm_gang
from dysharp.program import I32, I64, Alloc, Discipline, Kind, Template, frozen
from dysharp.program.tables import ColumnRange
from dysharp.specs import choice_int
from dysharp.systems import Costs, Facts, Layer, Moves, Shown, system
from dysharp.systems.building import STORE, Batch, LayerBuilder, Sends, blocks_in_order, collective, in_pairs, mediate, stages
from dysharp.systems.building.experts import FILLER, GemmOps, Stage, add_stage, at_the_barrier, gemm_task


@frozen
class _PaperOptions:
    """`mediation`: the host counts rows and waits for the counts before Dispatch (building/software_steps.py)."""

    mediation: bool = False


PAPER = Facts(
    source="COMET (MLSys'25); https://github.com/bytedance/flux",
    options=_PaperOptions,
    moves=Moves("one_copy_per_gpu"),
    costs=Costs(
        permutes=0,
        fused=False,
        drops="the all-gather of layer 0, column slices, SMs reserved for communication, sorting, count copies and barriers of the host",
    ),
    shown=Shown("#CC79A7"),
    today=True,
)


@system("comet", PAPER)
def plan_paper(layer: LayerBuilder, options: _PaperOptions) -> None:
    """COMET, paper form: tiles start as their rows arrive, results leave as tiles finish; a barrier splits the GEMMs.

    GEMM-1 overlaps Dispatch, GEMM-2 overlaps Combine, row by row. Combine starts after the GPU's own GEMM-1.
    """
    layer.dispatch_puts(by_rows=True)
    in_pairs(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row, PAPER.costs)
    if options.mediation:
        mediate(layer, counts=True, permutes=False)


@frozen
class Options:
    """Options of COMET as released.

    | option | meaning |
    |---|---|
    | `n_comm` | SMs that return results while GEMM-2 runs on the others; users tune it per shape |
    | `slices` | slices of GEMM-2's columns; sums of a slice leave while the next one is computed. 1: a sum leaves when its own tiles have ended |
    | `mediation` | the host counts rows and waits for the counts before GEMM-1 (building/software_steps.py); the all-gather needs no routing |
    """

    n_comm: int = choice_int("comet_flux.n_comm")
    slices: int = choice_int("comet_flux.slices")
    mediation: bool = False


FACTS = Facts(
    source="COMET (MLSys'25); https://github.com/bytedance/flux",
    options=Options,
    moves=Moves("ring", back="one_copy_per_gpu"),
    costs=Costs(permutes=0, fused=False, drops="sorting, count copies and barriers of the host"),
    shown=Shown("#337777"),
    today=True,
)


def _begins(layer: Layer, options: Options) -> ByName:
    """GPUs list rows before they send."""
    most = layer.cluster.n_sms
    if not 0 < options.n_comm < most:
        raise ConfigError(f"comet-flux.n_comm: found {options.n_comm}, expected 1 to {most - 1} of the {most} SMs of a GPU")
    if options.slices < 1:
        raise ConfigError(f"comet-flux.slices: found {options.slices}, expected 1 or more")
    return {"alloc": Alloc.PREFIX}


@system("comet-flux", FACTS, begins=_begins)
def plan(layer: LayerBuilder, options: Options) -> None:
    """GEMM-1 waits for whole GPUs' tokens, tile by tile in list order. GEMM-2 shares the SMs with blocks that return sums.

    - Layer 0: copy engines bring all tokens of every GPU, the nearest GPU first. A flag says that a GPU's tokens are there.
      Rows of an expert are sorted by GPU. Thread blocks take tiles in the order in which flags come, and wait on their SM.
    - Layer 1: `n_comm` SMs add the rows of a token in a slice of columns and store the sum at the token's GPU, one token at a
      time each. A counter says that all tiles of the GPU have this slice. The SMs of GEMM-2 return the last slice.
    """
    turns = layer.per_gpu(Discipline.SMALLEST_KEY, "dispatch")
    gathered = collective(layer, "dispatch", layer.dispatch_puts(turns=turns, by_rows=True), turns, by_sender=True)
    slices = _column_slices(layer, options.slices)
    gemms, second = _gemms(layer, options, slices)
    blocks = _wait_for_flags(layer, gemms, gathered.tile)
    at_the_barrier(layer, gemms, FACTS.costs)
    if len(slices) == 1:
        _return_rows(layer, options, gemms.results)
    else:
        _return_slices(layer, options, slices, gemms.second, second)
    if options.mediation:
        mediate(layer, counts=True, permutes=False, first=[Batch(op=blocks, node=layer.tile_gpu)], rows=False)


def _gemms(layer: LayerBuilder, options: Options, slices: list[ColumnRange]) -> tuple[GemmOps, I32]:
    """The first stage runs on all SMs, the second stage on the SMs that return nothing. The stages of a forward pass do not overlap.

    The second stage has one array of ops for each of several `slices`. Returns also `[gpus]` the issuers of its SMs.
    """
    most = layer.cluster.n_sms
    # Weight gradients run through both stages, so in a backward pass the SMs that return results do nothing else.
    slots = (most if layer.direction == "fwd" else most - options.n_comm, most - options.n_comm)
    sms = [layer.pools(n) for n in dict.fromkeys(slots)]
    first, second = stages(layer.model, layer.direction)
    filler = FILLER if len(slices) == 1 else _last_copies(slices) + 1
    all_sms = layer.ready("sm", sms[0])
    ops = add_stage(layer, first, all_sms, layer.tiles, filler=filler)
    issuer = layer.ready("sm", sms[-1])
    more = add_stage(layer, second, issuer, layer.tiles) if len(slices) == 1 else _add_sliced_stage(layer, second, issuer, slices, filler)
    return GemmOps(ops, more, sms[0], all_sms), issuer


def _last_copies(slices: list[ColumnRange]) -> int:
    """`prio` of the last slice's copies on the SMs of GEMM-2: after all its tiles, before weight gradients."""
    return max(FILLER, len(slices))


def _wait_for_flags(layer: LayerBuilder, gemms: GemmOps, rest: I32) -> I32:
    """A tile waits for its rows, and for all tokens of every GPU that sent one of these rows.

    Returns `[tiles]` the ops that put the blocks of a tile on SMs.

    `rest`: `[gpus, senders]` region tiles of the tokens that no expert of the GPU reads, -1 = none. Blocks take tiles by
    the turn of the tile's last sender, then by expert.
    """
    n = layer.n_gpus
    tile = np.repeat(layer.tiles, layer.tile_rows)[layer.row_of]
    pairs = np.unique(tile.astype(np.int64) * n + layer.p.row_source)
    of, sender = (pairs // n).astype(np.int32), (pairs % n).astype(np.int32)
    flag = rest[layer.tile_gpu[of], sender]
    turn = (layer.tile_gpu[of] - sender) % n
    last = np.zeros(len(layer.tiles), np.int64)
    np.maximum.at(last, of, turn)
    started = blocks_in_order(layer, gemms, np.lexsort((layer.tile_slot, last, layer.tile_gpu)).astype(np.int32))
    for head in gemms.first:
        layer.wait_tiles(head, layer.tiles)
        layer.wait_each(head, started)
        layer.wait_tiles(head[of], flag)
    return started


def _return_rows(layer: LayerBuilder, options: Options, results: I32) -> None:
    """Combine without slices: one sum per (token, GPU), which waits for the ops `results[tile]` of the tiles of its rows."""
    combine = layer.combine_puts(Discipline.READY_FIFO)
    copies = _copies(layer, combine.node, _comm_sms(layer, options)[combine.node], [layer.back_bytes])
    layer.wait_each(combine.op, copies.op)
    layer.wait_rows(dataclasses.replace(combine, op=copies.op).of_useful_row, results)


def _return_slices(layer: LayerBuilder, options: Options, slices: list[ColumnRange], results: tuple[I32, ...], gemm_sms: I32) -> None:
    """Combine in `slices`: the sums of slice i wait until all tiles of the GPU have computed slice i, that is for all ops of `results[i]`.

    The SMs that have computed GEMM-2 (issuers `gemm_sms[gpu]`) return the last slice.
    """
    combine = _sliced_sums(layer, slices)
    train_bytes = [(end - first) * layer.back_bytes // layer.model.hidden for first, end, _ in slices]
    order = np.argsort(combine.slice, kind="stable")
    node, part = combine.node[order], combine.slice[order]
    is_last = part == len(slices) - 1
    issuer = np.where(is_last, gemm_sms[node], _comm_sms(layer, options)[node])
    copies = _copies(layer, node, issuer, train_bytes, part, np.where(is_last, _last_copies(slices), 0))
    layer.wait_each(combine.op[order], copies.op)
    for i, ops in enumerate(results[: len(slices)]):
        counter, mine = layer.join(f"slice.{i}", Batch(op=ops, node=layer.tile_gpu)), part == i
        layer.wait_each(copies.op[mine], counter[copies.node[mine]])


def _comm_sms(layer: LayerBuilder, options: Options) -> I32:
    """`[gpus]` issuers on the SMs that only return results."""
    return layer.ready("comm", layer.pools(options.n_comm, "comm"))


def _copies(layer: LayerBuilder, node: I32, issuer: I32, n_bytes: list[int], size: I64 | int = 0, prio: I64 | int = 0) -> Batch:
    """Copies of `n_bytes[size]` bytes, each on an SM of `issuer` for its time."""
    durations = [0, *(each * PS_PER_US // choice_int("comet_flux.comm_mbps") for each in n_bytes)]
    return layer.copies("combine", durations, node, issuer, np.asarray(size) + 1, prio=prio, name="comm")


@frozen_keywords
class _SlicedSums(Sends):
    """Trains of sums, all trains of a (token, GPU) pair one behind the other. `slice`: `[n]` int64, the slice of each train."""

    slice: I64


def _column_slices(layer: LayerBuilder, most: int) -> list[ColumnRange]:
    """At most `most` slices of a result row, as equal as whole GEMM tiles and whole packets allow.

    A slice then costs no part of a tile and no packet header more than the whole row does.
    """
    hidden = layer.model.hidden
    step = int(np.lcm(choice_int("gemm.tile_cols"), max(1, STORE.payload_bytes // layer.model.element_bytes)))
    steps = -(-hidden // step)
    n = min(most, steps)
    ends = [min(hidden, -(-steps * (i + 1) // n) * step) for i in range(n)]
    return [(first, end, hidden) for first, end in zip([0, *ends[:-1]], ends, strict=True)]


def _add_sliced_stage(layer: LayerBuilder, stage: Stage, issuer: I32, slices: list[ColumnRange], filler: int) -> tuple[I32, ...]:
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
        ops.append(layer.add(template, gpu, issuer=issuer[gpu], prio=i, rows=layer.tile_rows, key=layer.tiles))
    return (*ops, *add_stage(layer, tuple(gradients), issuer, layer.tiles, filler=filler))


def _sliced_sums(layer: LayerBuilder, slices: list[ColumnRange]) -> _SlicedSums:
    """As `LayerBuilder.combine_puts`, one train per slice. Nothing waits yet.

    Pairs are in the order in which a GPU returns them: first its own tokens, then the tokens of the next GPU, so that all GPUs send to different
    GPUs. Gate gradients ride the last train.
    """
    token, gpu, home = layer.p.token, layer.p.gpu, layer.p.source
    order = np.lexsort((token, (home - gpu) % layer.n_gpus, gpu))
    rows, _ = layer.partial_rows(home, token)
    n, ends = len(slices), np.array([end for _, end, _ in slices]) * layer.back_bytes // layer.model.hidden
    starts = np.append(0, ends[:-1])
    pair, part = np.repeat(order, n), np.tile(np.arange(n), len(order))
    issuer = layer.ready("combine")
    template = layer.transfer("combine.put", Kind.PUT, "combine", "sum", layer.result, "partial")
    columns = {"issuer": issuer[gpu[pair]], "bytes": (ends - starts)[part], "key": token[pair], "offset": starts[part]}
    op = layer.puts(template, gpu[pair], home[pair], rows[pair], aux_bytes=np.where(part == n - 1, layer.combine_aux, 0), **columns)
    return _SlicedSums(op=op, node=gpu[pair], to=home[pair], slice=part)
