"""Memory kernels around the GEMMs of a layer of separate kernels: permutation, casts, activation, and starts of kernels."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dysharp.costs.operators import CAST_BYTES, ELEMENT_BYTES, SCALE_BYTES
from dysharp.program import F64, I32, LAYER, Kind, Nature, Operator, Template
from dysharp.program.schema import BESIDE
from dysharp.specs import Model
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import Software

AROUND = Operator("around", Nature.MEMORY)
"""Operator of the kernels; only Programs that have them declare it."""
CAST_ROWS = 8
"""Rows of a tile that one task casts."""


def permuted_bytes(model: Model, copies: ArrayLike, rows: ArrayLike, *, fp8_rows: bool) -> tuple[F64, F64]:
    """Bytes (reads plus writes) of the scatter of `copies` rows to `rows` rows in expert order, and of the weighted BF16 gather back."""
    values = (np.asarray(copies, np.float64) + np.asarray(rows, np.float64)) * model.hidden
    return values * (1 + SCALE_BYTES if fp8_rows else 2.0), values * 2.0


def cast_bytes(model: Model, rows: ArrayLike, *, fp8_rows: bool) -> F64:
    """Bytes of the cast of `rows` rows to FP8; 0 where rows or GEMMs need none."""
    needed = model.gemm_dtype == "fp8" and not fp8_rows
    return np.asarray(rows, np.float64) * (model.hidden * CAST_BYTES if needed else 0.0)


def activation_bytes(model: Model, rows: ArrayLike) -> F64:
    """Bytes of the activation between two forward GEMMs."""
    return np.asarray(rows, np.float64) * model.expert_hidden * (2.0 * (2 if model.gated else 1) + ELEMENT_BYTES[model.gemm_dtype])


class MemoryKernels:
    """Adds the kernels of each GPU for its own rows. They run on its SMs, before tasks of weight gradients, and take bytes of its memory."""

    def __init__(self, layer: LayerBuilder, permutes: int, issuer: I32, starts: tuple[int, int], tiles: I32 | None = None) -> None:
        """`permutes`: permutations of the pass. `issuer`: `[gpus]` of the GEMMs. `starts`: GEMM kernels of each stage. `tiles`: those of the GEMMs;
        None = all."""
        self.layer, self.permutes, self.issuer, self.starts = layer, permutes, issuer, starts
        self.costs = Software(layer.cluster, layer.n_gpus)
        self.rows = np.bincount(layer.tile_gpu[tiles], layer.tile_rows[tiles], layer.n_gpus) if tiles is not None else layer.counted(layer.p.row_gpu)
        self.fp8_rows = layer.sent_bytes < layer.model.row_bytes
        self.there, self.back = permuted_bytes(layer.model, layer.counted(layer.p.gpu), self.rows, fp8_rows=self.fp8_rows)
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
        _, moved = permuted_bytes(self.layer.model, self.layer.tokens, sent, fp8_rows=False)
        return self._kernel(name, after, 1, self._moved_ps(moved), moved)

    def by_tiles(self, first: tuple[I32, ...], begun: I32 | None = None, after: I32 | None = None) -> None:
        """Tile `i` of the GEMMs `first` starts behind `begun[gpu]` (None: their starts from time 0) and, where rows need one, the cast of its own
        rows: tasks of eight rows in the same kernel, behind the rows and the op `after[i]`."""
        layer, costs = self.layer, self.costs
        if begun is None:
            begun = self._kernel("begin", None, self.starts[0], np.zeros(1), np.zeros(1))
        moved = cast_bytes(layer.model, np.arange(layer.tiling.rows + 1), fp8_rows=self.fp8_rows)
        if not moved.any():
            for head in first:
                layer.wait_each(head, begun[layer.tile_gpu])
            return
        tasks = -(-layer.tiling.rows // CAST_ROWS)
        each = np.ceil(moved / tasks)
        took = [costs.stream_ps(n * layer.cluster.n_sms) for n in each.tolist()]
        cast = self._delay("cast", tasks, took, each, self.issuer, layer.tile_rows, layer.tile_gpu)
        layer.wait_each(cast, begun[layer.tile_gpu])
        layer.wait_tiles(cast, layer.tiles)
        if after is not None:
            layer.wait_each(cast, after)
        for head in first:
            layer.wait_each(head, cast)

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
        for tail in (after, *also):
            layer.wait_each(run, tail)
        return run

    def _delay(self, name: str, tasks: int, took_ps: ArrayLike, n_bytes: ArrayLike, issuer: I32, rows: I32, node: I32) -> I32:
        duration = self.layer.b.duration(took_ps, n_bytes)
        template = Template(f"around.{name}", Kind.DELAY, AROUND.name, BESIDE, tasks=tasks, duration=duration)
        return self.layer.add(template, node, issuer=issuer[node], rows=rows)
