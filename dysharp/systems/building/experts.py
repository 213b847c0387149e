"""The grouped GEMMs of a pass, and three schedules of them over the row tiles of the experts.

| pass | first stage | second stage |
|---|---|---|
| forward | GEMM-1 | GEMM-2 |
| backward | data and weight gradients of GEMM-2 | data and weight gradients of GEMM-1 |

Weight gradients take SM slots that no other op wants. No op waits for them, but the pass ends when they have ended
(docs/design/0005-backward.md).
"""

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.costs import GemmTask, gemm_gang, mean_share, tile_share, tile_task, weight_grad_gang, weight_grad_task
from dysharp.program import F64, I32, Kind, Tail, Template, frozen
from dysharp.program.verify import MAX_TASKS
from dysharp.specs import Model, choice_int
from dysharp.systems.building.around import MemoryKernels
from dysharp.systems.building.batch import placed
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import Costs

STORED_BYTES = 2  # bytes of an element between two GEMMs: BF16
FILLER = 2  # prio of weight gradients, after the prios of both data GEMMs


@frozen
class Gemm:
    """A grouped GEMM with weights of `columns` by `depth`, or the gradient of such weights (`of_weights`).

    `epilogue_bytes`: bytes per row that the epilogue moves besides the output of the GEMM.
    """

    fn: str
    operator: str
    src: str
    dst: str
    columns: int
    depth: int
    epilogue_bytes: int = 0
    of_weights: bool = False


Stage = tuple[Gemm, ...]
"""First the GEMM whose output the results need, then weight gradients that no op waits for.

All start on the same condition.
"""


@frozen
class GemmOps:
    """The GEMM ops of a pass.

    `first`, `second`: an array `[tiles]` of ops for each GEMM of the stage, in the order of `Stage`.

    `sms`: `[gpus]` the pool of SMs of each GPU. `issuer`: `[gpus]` the issuer on these SMs.
    """

    first: tuple[I32, ...]
    second: tuple[I32, ...]
    sms: list[int]
    issuer: I32

    @property
    def results(self) -> I32:
        """`[tiles]` the ops that make the results of the layer."""
        return self.second[0]


def stages(model: Model, direction: str) -> tuple[Stage, Stage]:
    """The GEMMs of a pass. GEMM-1 of gated experts has gate and up columns, so `dh` is twice as wide as `a`."""
    hidden, mid = model.hidden, model.expert_hidden
    inner = mid * (model.n_matrices - 1)
    if direction == "fwd":
        return (Gemm("gemm1", "gemm1", "expert.x", "expert.a", inner, hidden),), (Gemm("gemm2", "gemm2", "expert.a", "expert.y", hidden, mid),)
    # The epilogue reads the stored pre-activation h, from which a follows, and writes dh instead of the GEMM's columns.
    epilogue = STORED_BYTES * (inner + inner - mid)
    return (
        Gemm("gemm2_dgrad", "gemm2", "expert.dy", "expert.dh", mid, hidden, epilogue),
        Gemm("gemm2_wgrad", "gemm2", "expert.dy", "w2.grad", hidden, mid, of_weights=True),
    ), (
        Gemm("gemm1_dgrad", "gemm1", "expert.dh", "expert.dx", hidden, inner),
        Gemm("gemm1_wgrad", "gemm1", "expert.dh", "w1.grad", inner, hidden, of_weights=True),
    )


def add_gemms(layer: LayerBuilder, *, second_first: bool = True) -> GemmOps:
    """Add both stages on the SMs of the GPUs, one op per GEMM and tile. No op waits for anything yet.

    `second_first`: True: an SM prefers tiles of the second stage, so results leave early. False: an SM prefers tiles of
    the first stage, which packs the SMs best when no result has to leave.
    """
    sms = layer.pools(layer.cluster.n_sms)
    issuer = layer.ready("sm", sms)
    first, second = stages(layer.model, layer.direction)
    return GemmOps(
        add_stage(layer, first, issuer, layer.tiles, prio=int(second_first)),
        add_stage(layer, second, issuer, layer.tiles, prio=int(not second_first)),
        sms,
        issuer,
    )


def add_stage(layer: LayerBuilder, stage: Stage, issuer: I32, tiles: I32, *, prio: int = 0, filler: int = FILLER, blocks: int = 0) -> tuple[I32, ...]:
    """Add the GEMMs of one stage on `tiles`. Returns an array `[tiles]` of ops for each GEMM of the stage.

    `issuer`: `[gpus]` issuers on the SMs. `prio`: of data GEMMs. `filler`: priority of weight gradients, which come behind all data GEMMs.
    `blocks`: thread blocks that share the columns of a row tile in a data GEMM; 0 = one for each tile of columns.
    """
    gpu, ops = layer.tile_gpu[tiles], []
    for gemm in stage:
        task, tasks = gemm_task(layer, gemm), gang(gemm)
        if blocks and not gemm.of_weights:
            each = -(-tasks // blocks)
            task, tasks = GemmTask(task.ps * each, task.bytes * each), -(-tasks // each)
        duration = layer.b.duration(*task)
        template = Template(gemm.fn, Kind.COMPUTE, gemm.operator, gemm.fn, tasks=tasks, duration=duration, src=gemm.src, dst=gemm.dst)
        urgency = filler if gemm.of_weights else prio
        ops.append(layer.add(template, gpu, issuer=issuer[gpu], prio=urgency, rows=layer.tile_rows[tiles], key=tiles))
    return tuple(ops)


def gang(gemm: Gemm) -> int:
    """Thread-block tasks of one row tile of `gemm`. Raises ConfigError for more than a Program can count."""
    tasks = weight_grad_gang(gemm.columns, gemm.depth) if gemm.of_weights else gemm_gang(gemm.columns)
    if tasks >= MAX_TASKS:
        most = (MAX_TASKS - 1) * choice_int("gemm.tile_cols")
        where = "hidden, expert_hidden of the model"
        raise ConfigError(f"{where}: found a GEMM of {gemm.columns} columns, expected at most {most} (hidden; expert_hidden, twice if gated)")
    return tasks


def gemm_task(layer: LayerBuilder, gemm: Gemm) -> GemmTask:
    """Time and memory traffic of one task of `gemm`, by the rows of the tile."""
    tiling = layer.tiling
    shape = layer.cluster, tiling.dtype or layer.model.gemm_dtype, gemm.columns, gemm.depth, tiling.rows, _weight_share(layer)
    if gemm.of_weights:
        return weight_grad_task(*shape)
    step, weight = tiling.row_step, tiling.weight_bytes
    return tile_task(*shape, gemm.epilogue_bytes, row_step=step, weight_bytes=weight, part=tiling.part, fill_us=tiling.fill_us)


def _weight_share(layer: LayerBuilder) -> F64:
    """The share of an expert's weights that a tile moves, by the number of rows in the tile.

    On an hw cluster the share follows the load of each expert, on a paper cluster the mean load.
    """
    together = layer.routing.placement.parts if layer.tiling.shared else 1
    expert = layer.tile_slot // np.int32(together)  # tiles with equal numbers share weight reads
    tiles = np.bincount(expert)
    if layer.cluster.gpu:
        return tile_share(layer.tiling.rows, layer.tile_rows, tiles[expert].astype(np.int32))
    return mean_share(layer.tiling.rows, len(layer.p.slot) / max(1, int(np.count_nonzero(tiles))))


def one_after_another(layer: LayerBuilder, received: I32 | None = None, costs: Costs | None = None) -> I32:
    """Each GPU waits for all its rows and for the op `received[gpu]`, then runs both stages in sequence.

    `costs`: of a real form, which has the kernels around the GEMMs, too (`around.py`).
    Returns `[gpus]` the op that ends the GEMMs of each GPU, and the kernel behind them.
    """
    if not layer.compute:
        return layer.rows_here(received)
    gemms = add_gemms(layer)
    if costs is None:
        layer.rows_here(received, gemms.first)
        layer.join_tiles(gemms.first[0], heads=gemms.second)
        return layer.join_tiles(gemms.results)
    kernels = MemoryKernels(layer, costs.permutes, gemms.issuer, (len(gemms.first), len(gemms.second)))
    ready = kernels.before(layer.rows_here(received))
    half = kernels.between(layer.join_tiles(gemms.first[0]))
    for begin, stage in ((ready, gemms.first), (half, gemms.second)):
        for head in stage:
            layer.wait_each(head, begin[layer.tile_gpu])
    return kernels.behind(layer.join_tiles(gemms.results))


def in_pairs(layer: LayerBuilder, op_of_useful_row: I32, costs: Costs | None = None) -> GemmOps | None:
    """The schedule of COMET: the first stage tile by tile as rows arrive, a barrier of the GPU, the second stage.

    `op_of_useful_row`: `[useful rows]` the op of each row, in token order, that waits for the row's result. `costs`: as in `at_the_barrier`.
    Returns None without GEMMs.
    """
    if not layer.compute:
        arrived = layer.rows_here()
        layer.wait_rows(op_of_useful_row, arrived[layer.tile_gpu])
        return None
    gemms = add_gemms(layer)
    _start_on_arrival(layer, gemms)
    at_the_barrier(layer, gemms, costs)
    layer.wait_rows(op_of_useful_row, gemms.results)
    return gemms


def at_the_barrier(layer: LayerBuilder, gemms: GemmOps, costs: Costs | None) -> None:
    """The second stage waits for the whole first stage of its GPU. With `costs`, on a cluster with a GPU, casts of tiles, the activation and starts
    of kernels are ops, too."""
    if costs is None or not layer.cluster.gpu:
        layer.join_tiles(gemms.first[0], heads=gemms.second)
        return
    kernels = MemoryKernels(layer, costs.permutes, gemms.issuer, (len(gemms.first), len(stages(layer.model, layer.direction)[1])))
    kernels.by_tiles(gemms.first)
    half = kernels.between(layer.join_tiles(gemms.first[0]))
    for head in gemms.second:
        layer.wait_each(head, half[layer.tile_gpu])


def fused(layer: LayerBuilder, op_of_useful_row: I32) -> GemmOps | None:
    """Both stages tile by tile as rows arrive.

    `op_of_useful_row`: `[useful rows]` the op of each row, in token order, that waits for the row's result. Returns
    None without GEMMs.
    """
    if not layer.compute:
        layer.wait_rows(op_of_useful_row, layer.tiles, Tail.TILE_READY)
        return None
    gemms = as_tiles_fill(layer)
    layer.wait_rows(op_of_useful_row, gemms.results)
    return gemms


def as_tiles_fill(layer: LayerBuilder, *, second_first: bool = True) -> GemmOps:
    """Both stages of a tile as soon as the rows of the tile have arrived; `second_first` as in `add_gemms`."""
    gemms = add_gemms(layer, second_first=second_first)
    _start_on_arrival(layer, gemms)
    for head in gemms.second:
        layer.wait_each(head, gemms.first[0])
    return gemms


def blocks_in_order(layer: LayerBuilder, gemms: GemmOps, order: I32) -> I32:
    """`[tiles]` ops that put the thread blocks of the first stage on SMs, tile by tile in `order`, as soon as an SM has no block.

    A tile keeps the SMs of all its blocks until the last block has ended, so blocks of a tile that is late keep SMs from others.
    """
    tasks, gpu = gang(stages(layer.model, layer.direction)[0][0]), layer.tile_gpu[order]
    started = placed(len(order), order, layer.delays("other.block", [0, 1], gpu, layer.issuers("blocks", slots=1)[gpu]))
    room = layer.semaphores(layer.cluster.n_sms + tasks - 1, "blocks", "blocks")
    layer.b.hold(room[layer.tile_gpu], started, gemms.first[0], amount=tasks)
    return started


def _start_on_arrival(layer: LayerBuilder, gemms: GemmOps) -> None:
    """The first stage of a tile waits for the rows of the tile."""
    for head in gemms.first:
        layer.wait_tiles(head, layer.tiles)
