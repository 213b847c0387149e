"""DeepEP low-latency kernels: one message per (token, expert) into fixed slots, count words behind them, BF16 rows back, no barrier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Discipline, Head, Program, Tail
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import one_after_another, rows_phase_by_phase
from dysharp.systems.building.formats import row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.deepep import ROWS
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
HEADER_BYTES = 16  # of a message: the token's index at its source


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): SMs that cast and send tokens, the pace of their stores, fences, count words and polls.

    `dispatch`: "rows" sends the model's rows, "fp8" a byte per element and an FP32 scale per 128 of them. `compute` = False leaves the
    GEMMs out: pure communication.
    """

    form: str = "auto"
    dispatch: str = "rows"
    compute: bool = True


@system(
    "deepep-ll",
    source="https://github.com/deepseek-ai/DeepEP (V1, low latency); spec/baselines.md section 2",
    options=Options,
    traffic="one_copy_per_expert",
    permutes=0,
    fused=False,
    row_formats=ROWS,
    colour="#785EF0",
    ships=Ships(
        "DeepEP csrc/kernels/launch.cuh: SWITCH_HIDDEN",
        ("hopper", "blackwell"),
        {"fp8": {"dispatch": "fp8"}, "bf16": {"dispatch": "rows"}},
        hidden=(2048, 2560, 4096, 5120, 6144, 7168, 8192),
    ),
    drops="SMs that cast and send tokens, the pace of their stores, fences, count words and polls (form real has them); launches",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Messages, GEMMs, messages back; a GPU goes on when its own rows are there and waits for nobody else."""
    sent = row_bytes("deepep-ll.dispatch", options.dispatch, ROWS, model)
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent)
    if is_real(options.form, cluster):
        kernels = _LowLatency(layer)
        kernels.combine(one_after_another(layer, kernels.dispatch()))
        return layer.build("one_copy_per_expert")
    return rows_phase_by_phase(layer)


class _LowLatency(SoftwareSteps):
    """Both kernels, send and receive parts. Times are device times: launches are hidden in a CUDA graph or by the profiler."""

    def dispatch(self) -> I32:
        """Returns the DELAY of each GPU behind which all its rows are packed.

        The grid has ceil(experts / warp groups per SM) SMs. An SM casts a token, then its warps send the messages, all warps of a GPU at the
        pace of `ll.dispatch_link`.
        """
        layer, costs = self.layer, self.costs
        experts, n_sms = layer.routing.placement.n_slots, layer.cluster.n_sms
        grid = -(-experts // -(-experts // n_sms))
        token = costs.ps("ll.token_us")
        tokens = self.tokens_on_sms(grid, token)
        pace = costs.stores_ps(layer.sent_bytes + HEADER_BYTES, "ll.dispatch_link")
        puts = layer.dispatch_rows(Discipline.READY_FIFO) + np.arange(len(layer.row_of))
        sends = self.paced("dispatch", puts, layer.row_source, layer.row_gpu, pace)
        layer.b.edges(Tail.OP_DONE, tokens[layer.pull_of_useful_row], Head.OP_ISSUE, sends)
        return self._counts("dispatch", "received", puts, layer.row_source, None, token)

    def combine(self, finished: I32) -> None:
        """A GPU's rows go back when its own experts have finished; the source weights and adds them, at the pace of the stores."""
        layer = self.layer
        pace = self.costs.stores_ps(layer.model.row_bytes, "ARCH.ll_combine_link")
        order = layer.row_push_order
        node = layer.row_gpu[order]
        puts = layer.combine_rows(Discipline.READY_FIFO) + np.arange(len(node))
        self.release(finished, self.paced("combine", puts, node, layer.row_source[order], pace), node)
        self._counts("combine", "combined", puts, node, finished, 0)

    def _counts(self, name: str, ends: str, puts: I64, node: I32, after: I32 | None, started_ps: int) -> I32:
        """A fence when a GPU's messages are visible, a word per (expert, source) behind it, and at the receiver the poll for its words.

        Of a flag exchange's time the first message's start and flight have been simulated. Sending, polling and clearing the words takes
        `ll.expert_part` of an exchange per expert.
        """
        costs, slots = self.costs, self.layer.routing.placement
        fence = self.delay(f"{name}.fence", max(0, costs.sync_ps - self.visible_ps - started_ps))
        if after is not None:
            self.each_waits(after, fence)
        self.sent(puts, node, fence)
        words = round(costs.sync_ps * slots.n_slots * costs.value("ll.expert_part"))
        poll = self.delay(ends, max(0, costs.sync_ps - self.flight_ps) + words)
        self.flags(f"{name}.counts", slots.slots_per_gpu, fence, poll)
        return poll
