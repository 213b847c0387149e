"""CCFuser: thread blocks get remote row tiles while they compute local ones, and put results as tiles are finished."""

import numpy as np

from dysharp.base import ByName, ns_to_ps
from dysharp.costs import Tiling
from dysharp.program import I32, I64, OTHER, Alloc, Bools, Discipline, Kind, frozen, spans
from dysharp.specs import choice_int
from dysharp.systems.building import Batch, LayerBuilder, mediate, placed, stages, stream_order
from dysharp.systems.building.experts import MemoryKernels, add_stage
from dysharp.systems.building.layer import CONTROL
from dysharp.systems.building.software_steps import WORD_BYTES
from dysharp.systems.facts import ANY_TYPE, Costs, Facts, Form, Layer, Moves, Ships, Shown
from dysharp.systems.registry import system
from dysharp.workload import Routing, in_parts

NONE = -1


@frozen
class Options(Form):
    """Options of CCFuser.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `blocks_per_sm` | thread blocks that an SM holds; one computes while another one waits for its get |
    | `tile_rows`, `column_blocks` | rows of a tile; thread blocks that share the columns of a row tile, one as released |
    | `mediation` | rows are sorted, and the host counts them and waits, before Dispatch (building/software_steps.py) |

    Expert re-assignment (locality) is the routing's placement. The real form adds the starts of both kernels and NVSHMEM's
    barriers of all GPUs around them.
    """

    blocks_per_sm: int = choice_int("ccfuser.blocks_per_sm")
    tile_rows: int = choice_int("ccfuser.tile_rows")
    column_blocks: int = choice_int("ccfuser.column_blocks")
    mediation: bool = False


def served(routing: Routing, options: Options) -> Routing:
    """Every expert gets a slot per source GPU, so a tile has rows of one GPU only."""
    if routing.n_gpus == 1 or routing.placement.parts != 1:
        return routing
    source = np.arange(routing.n_tokens) // routing.tokens_per_gpu
    return in_parts(routing, np.broadcast_to(source[:, None], routing.slot.shape), routing.n_gpus)


FACTS = Facts(
    source="CCFuser (PPoPP'25); https://github.com/WongHuLin/CCFuser (mix_moe/csrc/cuda/mix_gemm.cu)",
    options=Options,
    moves=Moves("one_copy_per_expert", serves=served),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="barriers of all GPUs around both kernels, starts of kernels (form real has them); counts and block lists of the host, "
        "a request per 16 B of a get, copies of the most popular experts on all GPUs",
    ),
    shown=Shown("#661100"),
    ships=Ships("CCFuser's kernels: rows in 16 bits by NVSHMEM", ("ampere", "hopper"), ANY_TYPE),
    peels="a row of a tile's put waits for an earlier row of the same put",
)


@frozen
class _Blocks:
    """The thread blocks of all GPUs, in the order of each GPU's list. `gpu`: `[blocks]`.

    `first`, `second`: `[blocks]` the row tiles that the block computes one after the other, -1 = none.
    `gets_first`: `[blocks]` whether the block waits for both tiles before it computes.
    """

    gpu: I32
    first: I32
    second: I32
    gets_first: Bools


def _begins(layer: Layer, options: Options) -> ByName:
    """GPUs list rows before they send. One kernel computes the tiles of all owners."""
    return {"tiling": Tiling(options.tile_rows, shared=True), "alloc": Alloc.PREFIX}


def plan_real(layer: LayerBuilder, options: Options) -> None:
    """The paper form with kernel starts, and barriers of all GPUs around both layer."""
    _plan(layer, options, real=True)


@system("ccfuser", FACTS, real=plan_real, begins=_begins)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Two layer. In the first a block gets and computes its tiles, in the second it computes them and puts results."""
    _plan(layer, options, real=False)


def _plan(layer: LayerBuilder, options: Options, *, real: bool) -> None:
    sms = layer.ready("sm", layer.pools(layer.cluster.n_sms))
    first, second = stages(layer.model, layer.direction)
    owner = layer.tile_slot % layer.n_gpus
    blocks = _blocks(layer, owner)
    start = _starts(layer, blocks)
    around = MemoryKernels(layer, 0, sms, (0, 0)) if real else None
    if around is not None:
        begun = layer.delay("first.start", len(first) * layer.costs.kernel_ps)
        layer.wait_each(begun, around.at_source("scatter", None))
        opened = layer.barrier("first", "first.opened", begun)
        layer.wait_each(start, opened[blocks.gpu])
    by_tile = _by_tile(layer)
    _gets(layer, blocks, owner, start, by_tile)
    added = [add_stage(layer, first, sms, t[t >= 0], blocks=options.column_blocks) for t in (blocks.first, blocks.second)]
    ends = _first_kernel(layer, blocks, start, added)
    layer.b.hold(_slots(layer, options)[blocks.gpu], start, ends)
    if around is not None:
        around.by_tiles(
            tuple(_of_tiles(layer, blocks, *ops) for ops in zip(*added, strict=True)),
            opened,
            _of_tiles(layer, blocks, start, start[blocks.second >= 0]),
        )
    finished = layer.join("first kernel", Batch(op=ends, node=blocks.gpu))
    if around is not None:
        launched = layer.delay("second.start", len(second) * layer.costs.kernel_ps)
        layer.wait_each(launched, layer.barrier("second", "second.opened", around.between(finished)))
        finished = launched
    # A block puts its remote tile before it computes its local one.
    order = np.stack((blocks.second, blocks.first), axis=1).ravel()
    order = order[order >= 0]
    ended = add_stage(layer, second, sms, order, blocks=options.column_blocks)
    layer.wait_each(ended, finished[layer.tile_gpu[order]])
    results = placed(len(layer.tiles), order, ended[0])
    puts = stream_order(layer, layer.p.row_gpu, layer.p.row_source)  # puts that become ready together progress together
    returned = layer.combine_rows(Discipline.READY_FIFO, puts)
    layer.wait_rows(returned.of_useful_row, results)
    _in_pieces(layer, returned.of_useful_row, by_tile)
    if around is not None:
        around.at_source("gather", layer.barrier_after("end", "end.closed", finished, returned))
    if options.mediation and not real:
        mediate(layer, counts=True, permutes=True, first=[Batch(op=start, node=blocks.gpu)])


def _blocks(layer: LayerBuilder, owner: I32) -> _Blocks:
    """Pairs of a whole local tile and another tile; then pairs of the tiles that are left.

    A GPU lists whole local tiles by expert, and all other tiles by expert and owner. The rest of a local region is no
    whole tile and stands in the second list.
    """
    local = (owner == layer.tile_gpu) & (layer.tile_rows == layer.tiling.rows)
    gpus, firsts, seconds, waits = [], [], [], []
    for gpu in range(layer.n_gpus):
        here = layer.tile_gpu == gpu
        own, other = (np.flatnonzero(here & kind).astype(np.int32) for kind in (local, ~local))
        n = min(len(own), len(other))
        rest = own[n:] if len(own) > n else other[n:]
        padded = np.append(rest, NONE) if len(rest) % 2 else rest
        firsts += [own[:n], padded[::2]]
        seconds += [other[:n], padded[1::2]]
        waits += [np.zeros(n, bool), np.full(len(padded) // 2, len(other) > n)]
        gpus.append(np.full(n + len(padded) // 2, gpu))
    holder, first, second = (np.concatenate(part).astype(np.int32) for part in (gpus, firsts, seconds))
    return _Blocks(holder, first, second, np.concatenate(waits))


def _of_tiles(layer: LayerBuilder, blocks: _Blocks, first: I32, second: I32) -> I32:
    """`[tiles]` the op of each tile, from every block's first tile and the second tiles that exist."""
    return placed(len(layer.tiles), np.append(blocks.first, blocks.second[blocks.second >= 0]), np.append(first, second))


def _slots(layer: LayerBuilder, options: Options) -> I32:
    """`[gpus]` semaphores: the row tiles whose thread blocks a GPU holds at once."""
    return layer.semaphores(max(1, layer.cluster.n_sms * options.blocks_per_sm // options.column_blocks), "blocks", "blocks")


def _starts(layer: LayerBuilder, blocks: _Blocks) -> I32:
    """`[blocks]` ops that start the blocks of a GPU in the order of its list."""
    return layer.delays("block", [0, 1], blocks.gpu, layer.issuers("blocks", slots=layer.cluster.n_sms)[blocks.gpu])


def _gets(layer: LayerBuilder, blocks: _Blocks, owner: I32, start: I32, by_tile: tuple[I64, I32, I64]) -> None:
    """Dispatch: a block gets a tile piece by piece. The owner of the rows reads its memory and sends the piece."""
    first_get = _of_tiles(layer, blocks, start, start[blocks.second >= 0])
    rows, tile, place = by_tile
    far = owner[tile] != layer.tile_gpu[tile]
    layer.dispatch_rows(order=rows[~far])
    step = _piece_rows(layer.sent_bytes)
    before, behind = first_get, layer.tiles[owner != layer.tile_gpu]
    for piece in range(-(-layer.tiling.rows // step)):
        tiles = behind[layer.tile_rows[behind] > piece * step]
        now = far & (place // step == piece)
        reads = _answers(layer, piece, layer.tile_gpu[tiles], owner[tiles], before[tiles])
        sends = layer.dispatch_rows(Discipline.READY_FIFO, rows[now])
        of_tile = placed(len(layer.tiles), tiles, reads)
        layer.wait_each(sends.op, of_tile[tile[now]])
        before = placed(len(layer.tiles), tile[now], sends.op)  # the last row of the piece
        behind = tiles


def _by_tile(layer: LayerBuilder) -> tuple[I64, I32, I64]:
    """`[useful rows]` the useful rows by tile, the tile of each, and its place in the tile."""
    rows = np.argsort(layer.row_of)
    return rows, np.repeat(layer.tiles, layer.tile_rows), spans(0, layer.tile_rows)


def _piece_rows(row_bytes: int) -> int:
    """Rows of a tile that a block has under way at once."""
    return max(1, choice_int("ccfuser.get_bytes") // row_bytes)


def _in_pieces(layer: LayerBuilder, op_of_useful_row: I32, by_tile: tuple[I64, I32, I64]) -> None:
    """Combine: a block puts a tile piece by piece, so the puts of all blocks of a GPU share its link."""
    rows, _, place = by_tile
    step, ops = _piece_rows(layer.back_bytes), op_of_useful_row[rows]
    behind = np.flatnonzero(place >= step)
    layer.wait_each(ops[behind], ops[behind - step])


def _answers(layer: LayerBuilder, piece: int, asker: I32, owner: I32, after: I32) -> I32:
    """`[gets]` ops at the owners that read the rows of a get, once a word of the asker has come, sent after `after`."""
    b, n, gpus = layer.b, len(asker), np.arange(layer.n_gpus)
    _, row, tile = b.regions(gpus, layer.counted(owner), WORD_BYTES, 1, alloc=Alloc.PREFIX, name=f"gets.{piece}")
    place = placed(n, np.argsort(owner, kind="stable"), np.arange(n))
    word = layer.transfer("get", Kind.PUT, "other", cls=OTHER, framing=CONTROL)
    issuer = layer.ready("get")
    asks = layer.put(word, asker, owner, row + place, issuer=issuer[asker], bytes=WORD_BYTES)
    layer.wait_each(asks, after)
    memory = layer.issuers("get.read", Discipline.READY_FIFO, slots=max(1, n))
    reads = layer.delays("get.read", [0, ns_to_ps(choice_int("machine.responder_ns"))], owner, memory[owner], "dispatch")
    layer.wait_tiles(reads, (tile + place).astype(np.int32))
    return reads


def _first_kernel(layer: LayerBuilder, blocks: _Blocks, start: I32, added: list[tuple[I32, ...]]) -> I32:
    """Waits of the first stage. `added`: its ops on the first and on the second tiles. Returns `[blocks]` the last op of each block."""
    has = blocks.second >= 0
    for ops in added[0]:
        layer.wait_each(ops, start)
        layer.wait_tiles(ops, blocks.first)
        both = blocks.gets_first & has
        layer.wait_tiles(ops[both], blocks.second[both])
    for ops in added[1]:
        layer.wait_each(ops, added[0][0][has])
        layer.wait_tiles(ops, blocks.second[has])
    ends = added[0][0].copy()
    ends[has] = added[1][0]
    return ends
