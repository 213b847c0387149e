"""Memory kernels around the GEMMs of a layer of separate kernels: permutation, casts, activation, and starts of kernels."""

import numpy as np
from numpy.typing import ArrayLike

from dysharp.arrays import F64, I32
from dysharp.compute.operators import CAST_BYTES, ELEMENT_BYTES, SCALE_BYTES
from dysharp.program import Discipline, Kind, Template
from dysharp.program.operators import LAYER, Nature, Operator
from dysharp.program.schema import BESIDE
from dysharp.specs import Model
from dysharp.systems.building.batch import ids
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import Software

AROUND = Operator("around", Nature.MEMORY)
"""Operator of the kernels; only Programs that have them declare it."""


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

    def __init__(self, layer: LayerBuilder, permutes: int, issuer: I32, starts: tuple[int, int]) -> None:
        """`permutes`: permutations of the pass. `issuer`: `[gpus]` of the GEMMs. `starts`: GEMM kernels of each stage."""
        self.layer, self.permutes, self.issuer, self.starts = layer, permutes, issuer, starts
        self.costs = Software(layer.cluster, layer.n_gpus)
        self.rows, copies = (np.bincount(gpus, minlength=layer.n_gpus) for gpus in (layer.p.row_gpu, layer.p.gpu))
        self.fp8_rows = layer.sent_bytes < layer.model.row_bytes
        self.there, self.back = permuted_bytes(layer.model, copies, self.rows, fp8_rows=self.fp8_rows)
        layer.b.operators = (*LAYER, AROUND)

    def before(self, after: I32) -> I32:
        """Scatter and cast, after the op `after[gpu]`. Returns `[gpus]` ops behind which the first GEMMs start."""
        cast = cast_bytes(self.layer.model, self.rows, fp8_rows=self.fp8_rows)
        took = self.permutes * self._moved_ps(self.there) + self._streamed_ps(cast)
        return self._kernel("scatter", after, self.starts[0] + self.permutes + int(cast.any()), took, self.permutes * self.there + cast)

    def between(self, after: I32) -> I32:
        """The activation, forward: a backward pass has it in the epilogue of a GEMM."""
        forward = self.layer.direction == "fwd"
        moved = activation_bytes(self.layer.model, self.rows) * float(forward)
        return self._kernel("activation", after, self.starts[1] + forward, self._streamed_ps(moved), moved)

    def behind(self, after: I32) -> I32:
        """The gather of results."""
        return self._kernel("gather", after, self.permutes, self.permutes * self._moved_ps(self.back), self.permutes * self.back)

    def _moved_ps(self, n_bytes: F64) -> F64:
        return np.array([self.costs.moved_ps(n) for n in n_bytes.tolist()], np.float64)

    def _streamed_ps(self, n_bytes: F64) -> F64:
        return np.array([self.costs.stream_ps(n) for n in n_bytes.tolist()], np.float64)

    def _kernel(self, name: str, after: I32, starts: int, took_ps: F64, n_bytes: F64) -> I32:
        """`starts` starts of kernels, and kernels on all SMs that take `took_ps[gpu]` if alone and move `n_bytes[gpu]`."""
        layer, gpus = self.layer, np.arange(self.layer.n_gpus, dtype=np.int32)
        if starts:
            idle = layer.per_gpu(Discipline.PROGRAM_ORDER, name, layer.pools(1, "starts"))
            start = self._delay(f"{name}.start", 1, [0, starts * self.costs.kernel_ps], [0, 0], idle, np.ones_like(gpus))
            layer.wait_each(start, after)
            after = start
        if not n_bytes.any():
            return after
        tasks = layer.cluster.n_sms
        each = np.ceil(n_bytes / tasks)
        run = self._delay(name, tasks, np.append(0, np.maximum(took_ps, 1)), np.append(0, each), self.issuer, gpus + 1)
        layer.wait_each(run, after)
        return run

    def _delay(self, name: str, tasks: int, took_ps: ArrayLike, n_bytes: ArrayLike, issuer: I32, rows: I32) -> I32:
        layer = self.layer
        duration = layer.b.duration(took_ps, n_bytes)
        template = layer.b.template(Template(f"around.{name}", Kind.DELAY, AROUND.name, BESIDE, tasks=tasks, duration=duration))
        return ids(layer.b.ops(template, np.arange(layer.n_gpus), issuer=issuer, rows=rows), layer.n_gpus)
