"""The grouped GEMMs of a pass, three schedules of them over the row tiles of the experts, and the memory kernels around them.

| pass | first stage | second stage |
|---|---|---|
| forward | GEMM-1 | GEMM-2 |
| backward | data and weight gradients of GEMM-2 | data and weight gradients of GEMM-1 |

Weight gradients take SM slots that no other op wants. No op waits for them, but the pass ends when they have ended
(docs/design/0005-backward.md).

A layer of separate kernels has more around its GEMMs: permutation, casts, activation, and starts of kernels (`MemoryKernels`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import ConfigError, f64
from dysharp.costs import GemmTask, gemm_gang, mean_share, tile_share, tile_task, weight_grad_gang, weight_grad_task
from dysharp.costs.operators import CAST_BYTES, ELEMENT_BYTES, SCALE_BYTES
from dysharp.program import BESIDE, F64, I32, LAYER, Kind, Nature, Operator, Tail, Template, frozen
from dysharp.program.verify import MAX_TASKS
from dysharp.specs import Model, choice_int
from dysharp.systems.building.batch import placed
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import Costs

AROUND = Operator("around", Nature.MEMORY)
"""Operator of the kernels; only Programs that have them declare it."""
CAST_ROWS = 8
"""Rows of a tile that one task casts."""


def _permuted_bytes(model: Model, copies: ArrayLike, rows: ArrayLike, *, fp8_rows: bool) -> tuple[F64, F64]:
    """Bytes (reads plus writes) of the scatter of `copies` rows to `rows` rows in expert order, and of the weighted BF16 gather back."""
    values = (f64(copies) + f64(rows)) * model.hidden
    return values * (1 + SCALE_BYTES if fp8_rows else 2.0), values * 2.0


def cast_bytes(model: Model, rows: ArrayLike, *, fp8_rows: bool) -> F64:
    """Bytes of the cast of `rows` rows to FP8; 0 where rows or GEMMs need none."""
    needed = model.gemm_dtype == "fp8" and not fp8_rows
    return f64(rows) * (model.hidden * CAST_BYTES if needed else 0.0)


def activation_bytes(model: Model, rows: ArrayLike) -> F64:
    """Bytes of the activation between two forward GEMMs."""
    return f64(rows) * model.expert_hidden * (2.0 * (2 if model.gated else 1) + ELEMENT_BYTES[model.gemm_dtype])


class MemoryKernels:
    """Adds the kernels of each GPU for its own rows. They run on its SMs, before tasks of weight gradients, and take bytes of its memory."""

    def __init__(self, layer: LayerBuilder, permutes: int, issuer: I32, starts: tuple[int, int], tiles: I32 | None = None) -> None:
        """`permutes`: permutations of the pass. `issuer`: `[gpus]` of the GEMMs. `starts`: GEMM kernels of each stage. `tiles`: those of the GEMMs;
        None = all."""
        self.layer, self.costs, self.permutes, self.issuer, self.starts = layer, layer.costs, permutes, issuer, starts
        self.rows = np.bincount(layer.tile_gpu[tiles], layer.tile_rows[tiles], layer.n_gpus) if tiles is not None else layer.counted(layer.p.row_gpu)
        self.fp8_rows = layer.sent_bytes < layer.model.row_bytes
        self.there, self.back = _permuted_bytes(layer.model, layer.counted(layer.p.gpu), self.rows, fp8_rows=self.fp8_rows)
        layer.b.operators = (*LAYER, AROUND)

    def before(self, after: I32, *also: I32) -> I32:
        """Scatter and cast, after the op `after[gpu]`; kernels also wait for `also`. Returns `[gpus]` ops behind which the first GEMMs start."""
        cast = cast_bytes(self.layer.model, self.rows, fp8_rows=self.fp8_rows)
        took = self.permutes * self._moved_ps(self.there) + self._streamed_ps(cast)
        return self._kernel("scatter", after, self.starts[0] + self.permutes + int(cast.any()), took, self.permutes * self.there + cast, also)

    def between(self, after: I32) -> I32:
        """The activation, forward: a backward pass has it in the epilogue of a GEMM."""
        forward = self.layer.direction == "fwd"
        moved = activation_bytes(self.layer.model, self.rows) * float(forward)
        return self._kernel("activation", after, self.starts[1] + forward, self._streamed_ps(moved), moved)

    def behind(self, after: I32) -> I32:
        """The gather of results."""
        return self._kernel("gather", after, self.permutes, self.permutes * self._moved_ps(self.back), self.permutes * self.back)

    def at_source(self, name: str, after: I32 | None) -> I32:
        """The "scatter" of the own tokens to the rows that leave, or the "gather" of their results: software that sorts before it sends BF16."""
        sent = self.layer.counted(self.layer.p.row_source)
        _, moved = _permuted_bytes(self.layer.model, self.layer.tokens, sent, fp8_rows=False)
        return self._kernel(name, after, 1, self._moved_ps(moved), moved)

    def by_tiles(self, first: tuple[I32, ...], begun: I32 | None = None, after: I32 | None = None) -> None:
        """Tile `i` of the GEMMs `first` starts behind `begun[gpu]` (None: their starts from time 0) and, where rows need one, the cast of its own
        rows: tasks of eight rows in the same kernel, behind the rows and the op `after[i]`."""
        layer, costs = self.layer, self.costs
        if begun is None:
            begun = self._kernel("begin", None, self.starts[0], np.zeros(1), np.zeros(1))
        moved = cast_bytes(layer.model, np.arange(layer.tiling.rows + 1), fp8_rows=self.fp8_rows)
        if not moved.any():
            layer.wait_each(first, begun[layer.tile_gpu])
            return
        tasks = -(-layer.tiling.rows // CAST_ROWS)
        each = np.ceil(moved / tasks)
        took = [costs.stream_ps(n * layer.cluster.own_gpu.datasheet.n_sms) for n in each.tolist()]
        cast = self._delay("cast", tasks, took, each, self.issuer, layer.tile_rows, layer.tile_gpu)
        layer.wait_each(cast, begun[layer.tile_gpu])
        layer.wait_tiles(cast, layer.tiles)
        if after is not None:
            layer.wait_each(cast, after)
        layer.wait_each(first, cast)

    def _moved_ps(self, n_bytes: F64) -> F64:
        return np.array([self.costs.moved_ps(n) for n in n_bytes.tolist()], np.float64)

    def _streamed_ps(self, n_bytes: F64) -> F64:
        return np.array([self.costs.stream_ps(n) for n in n_bytes.tolist()], np.float64)

    def _kernel(self, name: str, after: I32 | None, starts: int, took_ps: F64, n_bytes: F64, also: Sequence[I32] = ()) -> I32:
        """`starts` starts of kernels, and kernels on all SMs that take `took_ps[gpu]` if alone and move `n_bytes[gpu]`, behind `also`, too."""
        layer, gpus = self.layer, np.arange(self.layer.n_gpus, dtype=np.int32)
        if starts:
            idle = layer.issuers(name, pools=layer.pools(1, "starts"))
            start = self._delay(f"{name}.start", 1, [0, starts * self.costs.kernel_ps], [0, 0], idle, np.ones_like(gpus), gpus)
            layer.wait_each(start, after)
            after = start
        assert after is not None
        if not n_bytes.any():
            return after
        tasks = layer.cluster.n_sms
        each = np.ceil(n_bytes / tasks)
        run = self._delay(name, tasks, np.append(0, np.maximum(took_ps, 1)), np.append(0, each), self.issuer, gpus + 1, gpus)
        layer.wait_each(run, after, *also)
        return run

    def _delay(self, name: str, tasks: int, took_ps: ArrayLike, n_bytes: ArrayLike, issuer: I32, rows: I32, node: I32) -> I32:
        duration = self.layer.b.duration(took_ps, n_bytes)
        template = Template(f"around.{name}", Kind.DELAY, AROUND.name, BESIDE, tasks=tasks, duration=duration)
        return self.layer.add(template, node, issuer=issuer[node], rows=rows)


STORED_BYTES = 2  # bytes of an element between two GEMMs: BF16
FILLER = 2  # prio of weight gradients, after the prios of both data GEMMs


@frozen
class _Gemm:
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


Stage = tuple[_Gemm, ...]
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
        return (_Gemm("gemm1", "gemm1", "expert.x", "expert.a", inner, hidden),), (_Gemm("gemm2", "gemm2", "expert.a", "expert.y", hidden, mid),)
    # The epilogue reads the stored pre-activation h, from which a follows, and writes dh instead of the GEMM's columns.
    epilogue = STORED_BYTES * (inner + inner - mid)
    return (
        _Gemm("gemm2_dgrad", "gemm2", "expert.dy", "expert.dh", mid, hidden, epilogue),
        _Gemm("gemm2_wgrad", "gemm2", "expert.dy", "w2.grad", hidden, mid, of_weights=True),
    ), (
        _Gemm("gemm1_dgrad", "gemm1", "expert.dh", "expert.dx", hidden, inner),
        _Gemm("gemm1_wgrad", "gemm1", "expert.dh", "w1.grad", inner, hidden, of_weights=True),
    )


def _add_gemms(layer: LayerBuilder, *, second_first: bool = True) -> GemmOps:
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
        layer.gemms.append((gemm, tiles, ops[-1]))
    return tuple(ops)


def gang(gemm: _Gemm) -> int:
    """Thread-block tasks of one row tile of `gemm`. Raises ConfigError for more than a Program can count."""
    tasks = weight_grad_gang(gemm.columns, gemm.depth) if gemm.of_weights else gemm_gang(gemm.columns)
    if tasks >= MAX_TASKS:
        most = (MAX_TASKS - 1) * choice_int("gemm.tile_cols")
        where = "hidden, expert_hidden of the model"
        raise ConfigError(f"{where}: found a GEMM of {gemm.columns} columns, expected at most {most} (hidden; expert_hidden, twice if gated)")
    return tasks


def gemm_task(layer: LayerBuilder, gemm: _Gemm) -> GemmTask:
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
    gemms = _add_gemms(layer)
    if costs is None:
        layer.rows_here(received, gemms.first)
        layer.join_tiles(gemms.first[0], heads=gemms.second)
        return layer.join_tiles(gemms.results)
    kernels = MemoryKernels(layer, costs.permutes, gemms.issuer, (len(gemms.first), len(gemms.second)))
    ready = kernels.before(layer.rows_here(received))
    half = kernels.between(layer.join_tiles(gemms.first[0]))
    for begin, stage in ((ready, gemms.first), (half, gemms.second)):
        layer.wait_each(stage, begin[layer.tile_gpu])
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
    gemms = _add_gemms(layer)
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
    layer.wait_each(gemms.second, half[layer.tile_gpu])


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
    """Both stages of a tile as soon as the rows of the tile have arrived; `second_first` as in `_add_gemms`."""
    gemms = _add_gemms(layer, second_first=second_first)
    _start_on_arrival(layer, gemms)
    layer.wait_each(gemms.second, gemms.first[0])
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
