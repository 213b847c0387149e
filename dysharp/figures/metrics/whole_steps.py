"""Training steps and generation around the layers of a figure: what a layer's gain is worth end to end.

A point has the Row of one MoE layer, forward. The backward pass follows from this Row (`_layer_times`). Everything else of a step is a free choice
(`paper_step.*`), the same for all systems. Generation (DySHARP figure 27) is one prefill of a batch, then tokens one by
one.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from dysharp.base import PS_PER_US, ByName
from dysharp.costs import AttentionCall as Call
from dysharp.costs import Direction, Machine, attention_flops, number
from dysharp.figures.metric import Seen, metric, quotient
from dysharp.model import Layout
from dysharp.specs import Attention, WholeModel, choice_int, choice_str, load_cluster, load_model
from dysharp.specs.choices import Scalar, overridden
from dysharp.training import Block, EpTimes, PassCost, make_schedule, replay, step_costs, step_graph

STAGES = 16
"""Pipeline stages of the DySHARP paper, each on a domain of its own."""
HEADS = {"S": 32, "M": 64, "L": 128, "paper-gpt-oss-120b": 64, "paper-qwen3-235b": 128}
"""Heads of the DySHARP paper's model table."""
MLA = Attention("mla", heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
"""DeepSeek-V3's attention (public config.json)."""
GRADIENT_BYTES = 8
"""Bytes of memory that a weight's FP32 gradient moves in a micro-batch: read and written."""


@dataclass(frozen=True, kw_only=True)
class _PaperMachine(Machine):
    """A paper's cluster whose attention runs at a chosen rate, and whose memory-bound operators may take no time."""

    rate: str
    causal: bool
    products_only: bool

    def memory(self, n_bytes: float, kernels: int = 1) -> float:
        """As `Machine`, or nothing."""
        return 0.0 if self.products_only else Machine.memory(self, n_bytes, kernels)

    def attention(self, call: Call, direction: Direction = "forward") -> float:
        """The attention kernel."""
        whole = call if self.causal else replace(call, causal=False)
        if self.rate == "flash":
            return Machine.attention(self, whole, direction)
        return float(attention_flops(whole, direction)) / self.cluster.peak_flops_per_us(self.rate)


def _machine_of(here: Seen) -> _PaperMachine:
    """The machine of a point with the choices of this moment."""
    cluster = load_cluster(here.point.cluster)
    own = cluster if here.point.gpus is None else cluster.with_gpus(here.point.gpus)
    products = choice_str("paper_step.operators") == "products"
    rate, causal = choice_str("paper_step.attention_rate"), choice_str("paper_step.causal") == "yes"
    return _PaperMachine(own, rate=rate, causal=causal, products_only=products)


def _model_of(here: Seen) -> WholeModel:
    """The model of a point from embedding to head: 16 equal stages."""
    layer = load_model(here.point.model)
    heads = HEADS[layer.name if layer.name in HEADS else layer.name.partition("-")[0]]
    if choice_str("paper_step.attention") == "mla":
        attention = replace(MLA, heads=heads)
    else:
        attention = Attention("gqa", heads, kv_heads=heads, head_dim=layer.hidden // heads)
    whole = replace(layer, n_layers=STAGES * choice_int("paper_step.layers"))
    return WholeModel(layer.name, layer.source, layer.hidden, attention, max(1, choice_int("paper_step.vocab")), whole)


def _layer_times(here: Seen) -> EpTimes | None:
    """The layer of a point, forward and backward, with one sequence per GPU; None for other points than forward passes.

    The backward pass has the bytes of the forward pass on links and twice its GEMMs, beside FP32 sums of weight gradients in memory. Weight
    gradients fill idle SMs (docs/design/0005), so the pass takes as long as its slowest part: L-8 takes 0.3 (DeepEP) and 2.8 % (DySHARP) longer where
    simulated.
    """
    ahead = _forward_times(here) if here.point.direction == "fwd" else None
    if ahead is None:
        return None
    time, exposed, wire = ahead
    computed = _gradients_us(here)
    back = time + computed / 2 if choice_str("paper_step.weights") == "order" else max(time, computed)
    return EpTimes(time, back, exposed, back - computed, wire, wire)


def _gradients_us(here: Seen) -> float:
    """GEMMs of a backward pass at the mean load, at the peak of tensor cores or of memory."""
    layer, machine = load_model(here.point.model), _machine_of(here)
    weights = layer.expert_weights
    sums = GRADIENT_BYTES * weights * layer.n_experts / machine.cluster.n_gpus / machine.cluster.hbm_bytes_per_us
    return max(machine.flops(2 * 2 * layer.tokens_per_gpu * layer.topk * weights, layer.gemm_dtype), sums)


def _forward_times(here: Seen) -> tuple[float, float, float] | None:
    """Layer time, exposed communication and time on the wire of a point with one sequence per GPU.

    A point with fewer tokens grows along the line from half as many; None without that point.
    """
    whole = load_model(here.point.model).tokens_per_gpu
    tokens = here.point.tokens or whole
    if tokens == whole:
        return _three(here.row)
    half = here.at(replace(here.point, tokens=tokens // 2))
    if half is None:
        return None
    time, exposed, wire = (b + 2 * (whole / tokens - 1) * (b - a) for a, b in zip(_three(half.row), _three(here.row), strict=True))
    return time, exposed, wire


def _three(row: ByName) -> tuple[float, float, float]:
    phases = [row["phases_us"][name] for name in ("dispatch", "combine")]
    span = max(phase["end"] for phase in phases) - min(phase["start"] for phase in phases)
    return float(row["time_us"]), float(row["exposed_comm_us"]), min(span, sum(phase["busy"] for phase in phases))


def step_us(here: Seen, dualpipe: bool = False) -> float | None:
    """Time of a training step with the layers of a point; None without them. `dualpipe`: under DualPipe, whose communication holds SMs."""
    ep = _layer_times(here)
    if ep is None:
        return None
    order = "dualpipe" if dualpipe else choice_str("paper_step.schedule")
    part = 1 - number("deepep.n_sm") / load_cluster(here.point.cluster).n_sms if dualpipe else 1.0
    return _step_us(_model_of(here), _machine_of(here), ep, order, part, choice_int("paper_step.micro_batches"), tuple(sorted(overridden().items())))


@lru_cache(maxsize=1 << 12)
def _step_us(
    model: WholeModel, machine: _PaperMachine, ep: EpTimes, order: str, part: float, batches: int, choices: tuple[tuple[str, Scalar], ...]
) -> float:
    """`choices`: the changed choices, which tell cached steps apart. `part`: of the SMs that compute."""
    assert model.layer is not None
    gpus, chunks = machine.cluster.n_gpus, 2 if order == "interleaved" else 1
    layout = Layout(pp=STAGES, vpp=chunks, ep=gpus, dp=gpus, micro_batches=batches)
    schedule = make_schedule(order, STAGES, batches, chunks)
    costs = step_costs(model, machine, layout, model.layer.tokens_per_gpu, ep, schedule.directions).on_part(part)
    return replay(step_graph(schedule, costs.times)).makespan / PS_PER_US


metric("step_speedup", "speed-up of a training step", compares=True)(lambda here, other: quotient(step_us(other), step_us(here)))


@metric("step_over_dualpipe", "speed-up of a training step over DualPipe with DeepEP's layers")
def _step_over_dualpipe(here: Seen) -> float | None:
    """Time of a step under DualPipe, whose layers are DeepEP's, divided by the time of a step of the system."""
    deepep = next((seen for seen in here.among("deepep") if _layer_times(seen)), None)
    return quotient(step_us(deepep, dualpipe=True), step_us(here)) if deepep else None


@metric("both_passes_speedup", "speed-up of a MoE layer, forward and backward", compares=True)
def _both_passes_speedup(here: Seen, other: Seen) -> float | None:
    """Forward and backward time of the layer of `over` divided by those of the system, with one sequence per GPU."""
    own, theirs = _layer_times(here), _layer_times(other)
    return (theirs.forward + theirs.backward) / (own.forward + own.backward) if own and theirs else None


@metric("beside_share", "work beside the MoE layer over the layer, forward and backward")
def _beside_share(here: Seen) -> float | None:
    """Time of everything else of a layer (projections, attention, router) divided by the time of the MoE layer, forward and backward."""
    ep = _layer_times(here)
    if ep is None:
        return None
    beside = _beside(here)
    return (beside.forward + beside.backward + beside.weights) / (ep.forward + ep.backward)


DECODED = 512
"""Tokens that the paper decodes after a prefill."""


def _generation_us(here: Seen) -> float | None:
    """Time of a layer for prefill and decode of one batch per GPU; None where the figure lacks a point that it needs.

    A prompt is one sequence of the paper's length; decoding has one token per request.
    """
    batch, ahead = choice_int("paper_step.decode_batch"), _forward_times(here)
    small = here.at(replace(here.point, tokens=batch))
    if here.point.direction != "fwd" or ahead is None or small is None:
        return None
    prompt = load_model(here.point.model).tokens_per_gpu
    prefill = ahead[0] + _beside(here).forward
    return batch * prefill + DECODED * (small.time_us + _decode_us(here, batch, prompt + DECODED / 2))


def _beside(here: Seen) -> PassCost:
    """What is beside the experts of a layer, for one sequence of the paper's length per GPU."""
    machine = _machine_of(here)
    gpus = machine.cluster.n_gpus
    return Block(_model_of(here), machine, Layout(pp=STAGES, ep=gpus, dp=gpus), load_model(here.point.model).tokens_per_gpu).layer(0, None)


def _decode_us(here: Seen, batch: int, context: float) -> float:
    """What is beside the experts of a layer for one new token of `batch` requests: projections, and reading FP8 keys and values of all heads."""
    model, machine = _model_of(here), _machine_of(here)
    kv = model.attention.heads * (model.attention.qk_dim + model.attention.value_dim)
    return 4 * machine.gemm(batch, model.hidden, model.hidden, "fp8") + batch * context * kv / machine.cluster.hbm_bytes_per_us


metric("generation_speedup", "speed-up of prefill and 512 decoded tokens", compares=True)(
    lambda here, other: quotient(_generation_us(other), _generation_us(here))
)
metric("decode_layer_speedup", "speed-up of a MoE layer in decode", compares=True)(
    lambda here, other: other.time_us / here.time_us if here.point.tokens == choice_int("paper_step.decode_batch") else None
)
