"""Whole layers of sub-layers, and merging in the switch."""

from dataclasses import replace
from statistics import mean, pstdev

from dysharp.base import Amounts, Texts
from dysharp.figures.metric import Seen, calculated, metric, quotient
from dysharp.measured.measurements import read_measurements
from dysharp.runs import Point
from dysharp.silicon.cluster_area import cais_area
from dysharp.specs import PACKET_BYTES, choice, load_cluster
from dysharp.systems.collective_system import NoOptions
from dysharp.workload import SUB_LAYER, parse_sub_layer, shapes

PREFILL, TRAINING = ("L1", "L2"), ("L1", "L2", "L3", "L4")
BACKWARD = 3.5
"""Attention's operations, forward and backward, over forward alone: 2 products forward, 5 backward (FlashAttention-2, arXiv 2307.08691)."""


def _seen_at(here: Seen, layers: Texts) -> list[Seen] | None:
    """The points of all `layers` beside the point of the first; None elsewhere, and where one of them was not run."""
    first = f":{layers[0]}"
    if first not in here.point.model:
        return None
    found = (here.at(replace(here.point, model=here.point.model.replace(first, f":{one}"))) for one in layers)
    seen = [one for one in found if one is not None]
    return seen if len(seen) == len(layers) else None


def _layer_us(here: Seen, layers: Texts) -> float | None:
    """Time of a layer at its point for L1; None elsewhere. Sub-layers have all GEMMs of the forward pass and the GEMMs for the gradients of rows.

    Beside them: causal attention, and in training the gradients of weights, as many operations as the forward GEMMs. All at `tp.gemm_part`.
    """
    seen = _seen_at(here, layers)
    if seen is None:
        return None
    gpus, peak = _gpus(here), _gemm_flops_per_us(here)
    name, _, times = here.point.model.split(":")[1].partition("*")
    shape, training = shapes()[name], len(layers) > len(PREFILL)
    attention = 2 * shape.tokens * shape.sequence * shape.hidden * int(times or 1) / gpus  # two products, half of them masked
    forward = sum(sum(parse_sub_layer(f"{SUB_LAYER}:{here.point.model.split(':')[1]}:{one}", gpus).flops) for one in PREFILL)
    flops = attention * (BACKWARD if training else 1.0) + (forward if training else 0.0)
    return sum(one.time_us for one in seen) + flops / peak


def _gpus(here: Seen) -> int:
    return here.point.gpus or load_cluster(here.point.cluster).n_gpus


def _gemm_flops_per_us(here: Seen) -> float:
    part = float(dict(here.point.choices).get("tp.gemm_part", choice("tp.gemm_part").value))
    return load_cluster(here.point.cluster).bf16_flops_per_us * part


for _name, _layers in (("prefill", PREFILL), ("training", TRAINING)):
    metric(f"{_name}_speedup", f"speed-up of a layer, {_name}", compares=True)(
        lambda here, other, layers=_layers: quotient(_layer_us(other, layers), _layer_us(here, layers))
    )
metric("merge_wait_us", "first to last request of an address (us)")(lambda here: here.block("merging").get("wait_us"))
metric("merge_table_KiB", "smallest table of a port in which all requests merge (KiB)")(lambda here: here.block("merging").get("table_KiB"))


@metric("merge_law", "smallest table over wait x rate of a GPU / ports, of loads and of sums together")
def _merge_law(here: Seen) -> float | None:
    """The smallest table divided by the sum, over loads and reductions, of the mean time that an address waits times the one-way rate of a GPU
    over all ports of its switches.

    Both kinds wait at once and fill a direction each. The rate is one of payload, because entries have no headers.
    """
    merging, machine = here.block("merging"), load_cluster(here.point.cluster)
    ports = machine.n_switches * _gpus(here)
    rate = machine.link_bytes_per_us * PACKET_BYTES / (PACKET_BYTES + machine.flit_bytes)
    law = (merging.get("load_wait_us", 0.0) + merging.get("sum_wait_us", 0.0)) * rate / ports / 1024
    return merging["table_KiB"] / law if law else None


@metric("gpu_throughput", "operations per time of a GPU, over that of the first number of GPUs")
def _gpu_throughput(here: Seen) -> float | None:
    """GEMM operations of a GPU per time, divided by the same rate at the system's point with fewest GPUs. None at that point."""

    def told(point: Point) -> tuple[str, str]:
        return point.system, point.model.split("*")[0].split(":")[1]

    least = min((p for p in here.rows if told(p) == told(here.point)), key=lambda p: p.gpus or 0)
    return None if least == here.point else _rate(here) / _rate(replace(here, point=least))


def _rate(here: Seen) -> float:
    return sum(parse_sub_layer(here.point.model, _gpus(here)).flops) / here.time_us


@metric("comm_over_comp", "communication over computation, both sub-layers of a forward pass")
def _comm_over_comp(here: Seen) -> float | None:
    """Wire time of the up links over the time of the GEMMs, L1 and L2 together, at the point of L1."""
    seen = _seen_at(here, PREFILL)
    if seen is None:
        return None
    flops = sum(sum(parse_sub_layer(one.point.model, _gpus(here)).flops) for one in seen)
    return sum(one.busy("up") * one.time_us for one in seen) / (flops / _gemm_flops_per_us(here))


def _steady(here: Seen) -> list[float]:
    """Use of the links in the middle half of the run."""
    use: list[float] = here.block("links").get("up_use", [])
    return use[len(use) // 4 : len(use) - len(use) // 4]


metric("steady_use", "use of the links in the middle half of the time")(lambda here: mean(_steady(here)) if _steady(here) else None)
metric("unevenness", "standard deviation of the use of the links over its mean, middle half")(
    lambda here: pstdev(_steady(here)) / mean(_steady(here)) if any(_steady(here)) else None
)


metric("steady_ratio", "use of the links in the middle half, over that of another system", compares=True)(
    lambda here, other: mean(_steady(here)) / mean(_steady(other)) if _steady(here) and _steady(other) else None
)


NCCL_ROWS = {"hw-dgx-h100": tuple(f"azure-{i:04d}" for i in range(36, 40)), "hw-dgx-b200": tuple(f"stas-{i:04d}" for i in range(36, 41))}
"""Rows of figure 18 by cluster: NCCL all-reduces of 1, 2, 4, ... GiB on eight GPUs."""


def _measured_us(here: Seen) -> float:
    """The measured time of the all-reduce at a point: its size over the rate that the bus bandwidth stands for."""
    size = int(here.point.model.split(":")[1].removesuffix("GiB"))
    busbw = {m.id: m.value for m in read_measurements() if m.value}[NCCL_ROWS[here.point.cluster][size.bit_length() - 1]]
    return size * (1 << 30) * 2 * 7 / 8 / (busbw * 1e3)


metric("nccl_over_measured", "time over the measured time of NCCL")(lambda here: here.time_us / _measured_us(here))


@metric("nccl_mean_error", "mean error against measured times of NCCL")
def _nccl_mean_error(here: Seen) -> float | None:
    """The mean over all sizes of a cluster, at its first point."""
    same = [one for one in map(here.at, here.rows) if one and (one.point.system, one.point.cluster) == (here.point.system, here.point.cluster)]
    return mean(abs(one.time_us / _measured_us(one) - 1) for one in same) if same[0].point == here.point else None


@calculated("cais-area", options=NoOptions)
def _area(point: Point, options: NoOptions) -> Amounts:
    """Merge units, merge tables and group table of a switch; synchronizer of a GPU; in 12 nm."""
    found = cais_area(load_cluster(point.cluster))
    return {f"{side}_{end}_mm2": getattr(spread, end) for side, spread in found.items() for end in ("low", "middle", "high")}
