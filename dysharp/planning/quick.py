"""Quick answers: a MoE layer under an EP system without a simulation, by closed forms of its kernels, or by a lower bound.

Real forms of libraries have closed forms (`costs.transfer`, `costs.collectives`): dispatch, experts, combine, and what surrounds them. Other
systems overlap these, or have hardware that nobody sells: their answer is a lower bound, the longest of their rows on the links, of their GEMMs at
the peak, and of the bound of every system.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dysharp.analysis.bound import workload_bound_us
from dysharp.analysis.row import LEFT_OUT, Row
from dysharp.analysis.surroundings import Surroundings, surroundings
from dysharp.base import PS_PER_US, AnyMapping, ByName, Column, Columns, frozen
from dysharp.costs import NORMAL_SMS, ExchangeWay, kernel_us, machine_of, mean_share, narrow_bytes, permute_us, tile_task, transfer, weight_grad_task
from dysharp.costs.collectives import alltoall_start_us, collective_us
from dysharp.costs.operators import ELEMENT_BYTES, Constants, launch_us
from dysharp.measured.trust import PredictionScope, trust_of
from dysharp.runs import Request, Workload
from dysharp.runs.run import prepare
from dysharp.specs import Gpu, Model, choice_int
from dysharp.systems import System
from dysharp.systems.building.experts import gang, stages
from dysharp.systems.building.formats import ROW_BYTES, WEIGHT_BYTES, check
from dysharp.systems.megatron_a2a import COUNT_BYTES
from dysharp.systems.megatron_ag import MAP_BYTES, PROB_BYTES
from dysharp.workload import Routing, Rows, needed_gpus, rows_per_slot, scheme_rows

CLOSED, BOUND = "closed form", "bound"
APART = 0.25
"""Nine of ten closed forms are within this part of the simulated layer, either way (`python bench/quick.py`)."""
FLIT_BYTES = 16


class _LayerSizes(NamedTuple):
    """What a closed form of an exchange reads. `copies`: rows of the busiest GPU per token, its own included. `hot`: (token, expert) rows that it
    computes. Bytes: of a row forth and back."""

    gpu: Gpu
    constants: Constants
    model: Model
    gpus: int
    tokens: int
    copies: float
    hot: int
    sent: float
    back: float
    backward: bool
    options: Any

    def sorts(self, tokens: int, rows: int) -> float:
        """A kernel that scatters rows of `tokens` to `rows` rows, or gathers them."""
        return float(permute_us(self.gpu, self.constants, tokens, rows, self.model.hidden, self.back / self.model.hidden)) / 2

    def collective(self, kind: str, n_bytes: float) -> float:
        """NCCL's."""
        return float(collective_us(self.gpu, self.constants, kind, self.gpus, n_bytes))


Form = Callable[[_LayerSizes], tuple[float, ...]]
"""Microseconds of Dispatch and Combine, and of the kernels of a dispatcher beside them."""


def _kernels(system: str, s: _LayerSizes) -> tuple[float, float]:
    """Kernels that serving and plans have, too (`costs.exchange`)."""
    sms = getattr(s.options, "n_sm", NORMAL_SMS)
    out, home = (ExchangeWay(s.gpus, s.model.n_experts, s.model.topk, s.tokens, s.copies, *row, sms) for row in ((s.sent, False), (s.back, True)))
    return kernel_us(s.gpu, s.constants, system, out), kernel_us(s.gpu, s.constants, system, home)


def _trtllm(s: _LayerSizes) -> tuple[float, float]:
    if s.options.sides == "one":
        return _kernels("trtllm-a2a", s)
    copies = [transfer.fifo_copy_us(s.gpu, s.constants, row, s.gpus) for row in (s.sent, s.back)]
    numbers = s.gpu, s.constants, s.tokens, s.copies
    summed = transfer.summed_bytes(s.back, s.model.topk)
    dispatch = transfer.alltoall_two_sided_us(*numbers, s.sent, s.gpus, copies[0])
    return float(dispatch), float(transfer.alltoall_two_sided_us(*numbers, s.back, s.gpus, copies[1], summed))


def _mori(s: _LayerSizes) -> tuple[float, float]:
    numbers = s.gpu, s.constants, s.tokens, s.copies
    moved = 0.0 if s.options.zero_copy else 2 * s.back  # read and written into the registered buffer
    return float(transfer.mori_dispatch_us(*numbers, s.sent, s.gpus)), float(transfer.mori_combine_us(*numbers, s.back, s.gpus, moved))


def _all_to_all(s: _LayerSizes) -> tuple[float, ...]:
    """Sorted on both sides; an all-to-all of gates, and before a forward pass the counts of rows by expert."""
    rows = s.tokens * s.model.topk
    out, home = (s.collective("alltoall", rows * row) for row in (s.sent, s.back))
    counts = s.collective("all_gather", COUNT_BYTES * s.model.n_experts * s.gpus) + launch_us(s.gpu, s.constants)
    beside = 2 * (s.sorts(s.tokens, rows) + s.sorts(s.hot, s.hot)) + float(alltoall_start_us(s.gpu, s.constants, 0.0, 0.0))
    return out, home, beside + counts * (not s.backward)


def _gathered(s: _LayerSizes) -> tuple[float, ...]:
    """Sorted at the receiver; maps and probabilities go before a forward pass, gradients of probabilities behind a backward pass."""
    tokens, cells = s.tokens * s.gpus, s.tokens * s.gpus * s.model.n_experts
    beside = sum(s.collective("all_gather", size * cells) for size in (MAP_BYTES, PROB_BYTES))
    out, home = s.collective("all_gather", tokens * s.sent), s.collective("reduce_scatter", tokens * s.back)
    gates = s.collective("reduce_scatter", PROB_BYTES * cells) if s.backward else beside
    return out, home, s.sorts(s.hot, s.hot) + s.sorts(tokens, s.hot) + gates


FORMS: Mapping[str, Form] = {
    "deepep": partial(_kernels, "deepep"), "deepep-ll": partial(_kernels, "deepep-ll"), "flashinfer": partial(_kernels, "trtllm-a2a"),
    "trtllm-a2a": _trtllm, "mori": _mori, "megatron-a2a": _all_to_all, "megatron-ag": _gathered,
}  # fmt: skip
"""System -> closed form of the dispatch and the combine of its real form inside one NVLink domain, in microseconds."""


IN_TURN = (
    "deepep", "deepep-v2", "dysharp-basic", "flashinfer", "hybrid-ep", "megatron-a2a", "megatron-ag", "mori", "nccl-ep", "nvls", "trtllm-a2a",
    "uccl-ep",
)  # fmt: skip
"""Systems whose operators run one after the other, so that the paper form, which has no software costs, takes the sum of links and GEMMs."""


@frozen
class QuickLayer:
    """One system: us of the layer and of its parts, and the range of nine of ten layers (None: not known). `kind`: `CLOSED`, or `BOUND`: at least."""

    system: str
    form: str
    kind: str
    time_us: float
    dispatch_us: float
    gemms_us: float
    combine_us: float
    around_us: float
    bar: tuple[float, float] | None
    wire_bytes: float
    options: AnyMapping
    dropped_rows: int = 0
    busiest: float = 1.0
    """Rows of the busiest GPU over the mean."""

    @property
    def wire_us(self) -> float:
        """Both ways on the links."""
        return self.dispatch_us + self.combine_us

    @property
    def exposed_us(self) -> float:
        """Communication that nothing hides."""
        return self.wire_us if self.kind == CLOSED else max(0.0, self.time_us - self.gemms_us)

    def words(self) -> str:
        """How far the time goes: "closed form, -20 to +20 %", "bound: at least"."""
        if self.bar is None:
            return "bound: at least" if self.kind == BOUND else f"{self.kind}, no error bar"
        low, high = (100 * (one / self.time_us - 1) for one in self.bar)
        return f"{self.kind}, {low:+.0f} to {high:+.0f} %"

    def to_dict(self, request: Request, routing: Routing) -> ByName:
        """The fields of `Row.to_dict`; None where only a simulation knows. Beside them `kind`, `low_us`, `high_us`."""
        blank: ByName = {one.name: None for one in dataclasses.fields(Row) if one.name not in LEFT_OUT and one.name != "header"}
        low, high = self.bar or (None, None)
        return blank | {
            "system": self.system, "form": self.form, "model": request.model.name, "cluster": request.cluster.name,
            "gpus": request.cluster.n_gpus, "tokens_per_gpu": request.tokens, "topk": request.model.topk, "layer": request.layer,
            "routing": routing.description, "direction": request.direction, "fidelity": self.kind, "seed": request.seed,
            "options": dict(self.options), "time_us": self.time_us, "exposed_comm_us": self.exposed_us, "dropped_rows": self.dropped_rows,
            "path_us": {"dispatch": self.dispatch_us, "gemms": self.gemms_us, "combine": self.combine_us, "around": self.around_us},
            "kind": self.kind, "low_us": low, "high_us": high,
        }  # fmt: skip


def quick_layers(systems: Mapping[str, System], requests: Sequence[Request]) -> tuple[list[list[QuickLayer]], Workload]:
    """For each request (one workload, other directions) a layer under each system in their order; and the workload of the first.

    Raises ConfigError as a simulation of the requests does.
    """
    options, drawn = prepare(systems, dataclasses.replace(requests[0], progress=None))
    ways = [dataclasses.replace(drawn, request=request) for request in requests]
    return [[_layer(system, options[name], way) for name, system in systems.items()] for way in ways], drawn


def _layer(system: System, options: Any, workload: Workload) -> QuickLayer:
    request = workload.request
    if request.direction == "both":
        ways = [_layer(system, options, dataclasses.replace(workload, request=dataclasses.replace(request, direction=way))) for way in ("fwd", "bwd")]
        return _summed(*ways)
    for option, known in (("dispatch", system.moves.formats), ("combine", system.moves.results), ("sums", system.moves.results)):
        if hasattr(options, option):
            check(f"{system.name}.{option}", getattr(options, option), known)
    cluster, routing = request.cluster, system.served(workload.routing, options)
    values = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
    form = system.form_on(cluster, options)
    moved, dropped = _moved_bytes(system, request.model, routing, options), _rows(workload.routing) - _rows(routing)
    closed = FORMS.get(system.name) if form == "real" and cluster.gpu and cluster.domains == 1 else None
    if closed is None and form == "paper" and system.name in IN_TURN and cluster.domains == 1:
        return _in_turn(system, request, routing, options, values, dropped)
    if closed is None:
        time, gemms, wire = _bound(system, request, routing, options, moved)
        return QuickLayer(system.name, form, BOUND, time, wire / 2, gemms, wire / 2, 0.0, None, moved, values, dropped)
    dispatch, combine, *beside = closed(_sizes(system, request, routing, options))
    given = options.compute if hasattr(options, "compute") else True
    gemms = _gemms_us(request, routing) if given else 0.0
    kwargs = {"options": values, "direction": request.direction}
    own = surroundings(system.name, request.model, cluster, routing, **kwargs) if given else Surroundings()  # type: ignore[arg-type]
    around = own.device_us + sum(beside)
    parts = {"dispatch": dispatch, "gemm1": gemms / 2, "gemm2": gemms / 2, "combine": combine, "surroundings": around}
    time = sum(parts.values())
    scope = PredictionScope(system.name, request.model, cluster, request.tokens, request.direction, values, workload.routing)
    interval = trust_of(scope, {name: us / time for name, us in parts.items()}, time).interval
    bar = None if interval is None else interval.wider(APART).around(time)
    busiest = _hot_rows(routing) * routing.n_gpus / _rows(routing)
    return QuickLayer(system.name, form, CLOSED, time, dispatch, gemms, combine, around, bar, moved, values, dropped, busiest)


def _in_turn(system: System, request: Request, routing: Routing, options: Any, values: AnyMapping, dropped: int) -> QuickLayer:
    """Rows at the rate of the links, and GEMMs in tiles on all SMs, one operator after the other."""
    model, rate = request.model, _link_rate(request)
    (up, down), (back_down, back_up) = _rows_both_ways(system, routing, options)
    row, sent = float(model.row_bytes), _format_bytes(options, "dispatch", model)
    hop = 2 * request.cluster.link_latency_ps / PS_PER_US
    dispatch = float(max(up.max(initial=0), down.max(initial=0))) * sent / rate + hop
    combine = float(max(back_up.max(initial=0), back_down.max(initial=0))) * row / rate + hop
    gemms = _gemms_us(request, routing) if getattr(options, "compute", True) else 0.0
    time, moved = dispatch + gemms + combine, _moved_bytes(system, model, routing, options)
    bar = time * (1 - APART), time * (1 + APART)
    return QuickLayer(system.name, "paper", CLOSED, time, dispatch, gemms, combine, 0.0, bar, moved, values, dropped)


def _summed(one: QuickLayer, two: QuickLayer) -> QuickLayer:
    """Both passes."""
    names = ("time_us", "dispatch_us", "gemms_us", "combine_us", "around_us", "wire_bytes")
    bar = (one.bar[0] + two.bar[0], one.bar[1] + two.bar[1]) if one.bar and two.bar else None
    return dataclasses.replace(one, bar=bar, **{name: getattr(one, name) + getattr(two, name) for name in names})


def _rows(routing: Routing) -> int:
    """All (token, expert) rows."""
    return int(rows_per_slot(routing).sum())


def _hot_rows(routing: Routing) -> int:
    """(token, expert) rows of the busiest GPU."""
    return int(rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1).max(initial=0))


def _format_bytes(options: Any, name: str, model: Model) -> float:
    return float(ROW_BYTES[getattr(options, name, "rows")](model))


def _sizes(system: System, request: Request, routing: Routing, options: Any) -> _LayerSizes:
    cluster, model, backward = request.cluster, request.model, request.direction == "bwd"
    needed = needed_gpus(routing)
    copies = max(float(needed.mean(axis=0).max()) * routing.n_gpus, float(needed.sum(axis=1).mean()))
    sent = 2.0 * model.hidden if backward else _format_bytes(options, "dispatch", model)  # gradients go in BF16
    back = 2.0 * model.hidden if backward or not hasattr(options, "combine") else _format_bytes(options, "combine", model)
    rows = request.tokens, copies, _hot_rows(routing), sent, back
    return _LayerSizes(cluster.own_gpu, cluster.fitted, model, cluster.n_gpus, *rows, backward, options)


def _rows_both_ways(system: System, routing: Routing, options: Any) -> list[Rows]:
    """Rows of each GPU: (sent, received) of Dispatch, and (received, sent) of Combine."""
    return [scheme_rows(routing, one, options) for one in (system.moves.sent, system.moves.back or system.moves.sent)]


def _link_rate(request: Request) -> float:
    """Bytes per us of all links of a GPU."""
    cluster = request.cluster
    return float(cluster.link_bytes_per_us if cluster.n_switches else max(1, cluster.n_gpus - 1) * cluster.pair_bytes_per_us)


def _row_sizes(options: Any, model: Model) -> tuple[int, int, int]:
    """Bytes of a row out, of a result and of a sum of results."""
    last = "sums" if hasattr(options, "sums") else "combine"
    out, back, summed = (ROW_BYTES[getattr(options, name, "rows")](model) for name in ("dispatch", "combine", last))
    return out, back, summed


def _moved_bytes(system: System, model: Model, routing: Routing, options: Any) -> float:
    """Bytes on the busier direction of the busiest GPU's links. Combine sends what Dispatch received, and receives what it sent."""
    (up, down), (back_down, back_up) = _rows_both_ways(system, routing, options)
    sent, back, summed = _row_sizes(options, model)
    return float(max((up * sent + back_up * back).max(initial=0.0), (down * sent + back_down * summed).max(initial=0.0)))


def _bound(system: System, request: Request, routing: Routing, options: Any, moved: float) -> tuple[float, float, float]:
    """(the bound, GEMMs at the peak or at the rate of their weights, rows on links) in us."""
    cluster, model = request.cluster, request.model
    gemms = workload_bound_us(model, cluster, routing, direction=request.direction, free_links=True)
    if cluster.gpu:
        gemms = max(gemms, _weights_us(request, routing, options))
    if system.bound:
        return gemms, gemms, 0.0
    converts = {getattr(options, name, "rows") for name in ("combine", "sums")} != {"rows"} and hasattr(options, "sums")
    sizes = _row_sizes(options, model) if converts else None
    least = workload_bound_us(model, cluster, routing, direction=request.direction, sizes=sizes)
    wire = moved / _link_rate(request) if cluster.domains == 1 else 0.0
    return max(least, gemms, wire), gemms, wire


def _experts_with_rows(routing: Routing) -> int:
    """Of one GPU, at most."""
    return int((rows_per_slot(routing).reshape(routing.n_gpus, -1) > 0).sum(axis=1).max(initial=0))


def _weights_us(request: Request, routing: Routing, options: Any) -> float:
    """Weights of the experts with rows of one GPU, at most, once through memory."""
    model, cluster, experts = request.model, request.cluster, _experts_with_rows(routing)
    width = WEIGHT_BYTES.get(getattr(options, "weights", ""), None) or narrow_bytes(model, request.direction) or ELEMENT_BYTES[model.gemm_dtype]
    return experts * model.expert_weights * width / cluster.hbm_bytes_per_us


def _gemms_us(request: Request, routing: Routing) -> float:
    """The GEMMs of the busiest GPU without their starts, which are `around`; a backward pass has gradients of data and of weights.

    Memory reads no expert without rows.
    """
    model, cluster, slots = request.model, request.cluster, max(1, _experts_with_rows(routing))
    if not cluster.gpu:
        return _tiles_us(request, routing)
    held = narrow_bytes(model, request.direction)
    machine, rows = machine_of(cluster, "serving" if held else "benchmark"), _hot_rows(routing) / slots
    inner = (model.n_matrices - 1) * model.expert_hidden
    total = 0.0
    for n, k in ((inner, model.hidden), (model.hidden, model.expert_hidden)):
        if request.direction == "fwd":
            times = [machine.gemm(rows, n, k, model.gemm_dtype, slots, weight_bytes=held)]
        else:
            times = [machine.gemm(rows, k, n, model.gemm_dtype, slots), machine.gemm(n, k, rows, model.gemm_dtype, slots, accumulate=True)]
            total -= 2 * slots * n * k / cluster.hbm_bytes_per_us  # sums in FP32 take the place of the output in BF16
        total += sum(times) - len(times) * machine.floor
    return total


def _tiles_us(request: Request, routing: Routing) -> float:
    """Waves of tiles as the Programs of paper forms have them, or their bytes through memory, on the GPU with most tiles."""
    model, cluster, high = request.model, request.cluster, choice_int("gemm.tile_rows")
    rows, held = rows_per_slot(routing).reshape(routing.n_gpus, -1), narrow_bytes(model, request.direction)
    tiles = -(-rows // high)
    own = rows[int(tiles.sum(axis=1).argmax())]
    own = own[own > 0]
    if not len(own):
        return 0.0
    heights = np.concatenate([np.full(int((own // high).sum()), high), own[own % high > 0] % high])
    share, total = mean_share(high, float(rows.sum() / max(1, (rows > 0).sum()))), 0.0
    for stage in stages(model, request.direction):
        compute = moved = 0.0
        for gemm in stage:
            shape = cluster, model.gemm_dtype, gemm.columns, gemm.depth, high, share
            task = weight_grad_task(*shape) if gemm.of_weights else tile_task(*shape, gemm.epilogue_bytes, weight_bytes=held)
            ps, n_bytes = (np.broadcast_to(cost, high + 1) for cost in task)
            compute += float(ps[heights].mean()) * -(-gang(gemm) * len(heights) // cluster.n_sms) / PS_PER_US
            moved += gang(gemm) * float(n_bytes[heights].sum())
        total += max(compute, moved / cluster.hbm_bytes_per_us)
    return total


LAYERS = Columns(
    "system", "form", Column("time_us", "us", of=lambda one: f"{'>= ' if one.kind == BOUND else ''}{one.time_us:.1f}", number=True),
    Column("words", "stands on", of=QuickLayer.words),
)  # fmt: skip
"""Rows: `QuickLayer`."""
