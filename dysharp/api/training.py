"""`step`: one training step of a whole model under a layout, a pipeline schedule and several EP systems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dysharp.api.comparison import compare
from dysharp.errors import ConfigError
from dysharp.measured.training.error_bar import error_bar
from dysharp.specs import Cluster, load_cluster, load_whole
from dysharp.specs.whole import WholeModel
from dysharp.steps import Layout, check_layout, layout_of
from dysharp.steps.accounting.activations import Saving
from dysharp.steps.accounting.conventions import MEGATRON, model_flops
from dysharp.steps.accounting.memory import Memory, check_memory, memory_of
from dysharp.steps.accounting.state import recipe_of
from dysharp.steps.answers import BUBBLE, DATA_PARALLEL, StepSplit, split_step
from dysharp.steps.block import NOT_MODELLED
from dysharp.steps.cost import Cost, EpTimes
from dysharp.steps.costs import StepCosts, step_costs
from dysharp.steps.energy import Energy, energy_of
from dysharp.steps.graph import Replay, replay
from dysharp.steps.machine import Machine, number
from dysharp.steps.pipeline import COMPUTE
from dysharp.steps.practice import Practice
from dysharp.steps.schedules import Schedule, get_schedule, in_flight, make_schedule
from dysharp.steps.step_graph import OPTIMIZER, SEND, step_graph
from dysharp.text import table
from dysharp.units import PS_PER_US, GiB

if TYPE_CHECKING:
    from dysharp.analysis import Row
    from dysharp.runs.progress import Progress

EP = "exposed EP"
WORDS = {
    COMPUTE: "computing", EP: "EP communication that nothing hides", BUBBLE: "the pipeline's bubble", SEND: "sends between stages",
    DATA_PARALLEL: "gradient and parameter traffic that nothing hides", OPTIMIZER: "the optimizer",
}  # fmt: skip
"""Part of a step -> how a sentence names it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step under one EP system. `shares`: parts of the step (`WORDS`), means over ranks; they add up to 1."""

    system: str
    step_us: float
    tokens_per_s_gpu: float
    tflops: float
    mfu: float
    shares: dict[str, float]
    ep: EpTimes | None
    replayed: Replay
    split: StepSplit
    energy: Energy | None = None

    @property
    def limit(self) -> str:
        """The part beside computing that takes most."""
        return max((name for name in self.shares if name != COMPUTE), key=lambda name: self.shares[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ranks = [{name: ps / PS_PER_US for name, ps in rank.items()} for rank in self.split.ranks]
        path = {name: ps / PS_PER_US for name, ps in self.split.path.items()}
        exposed = {name: self.shares[name] * self.step_us for name in (EP, SEND, DATA_PARALLEL)}
        moe = None if self.ep is None else {"forward_us": self.ep.forward, "backward_us": self.ep.backward}
        return {
            "system": self.system, "step_us": self.step_us, "tokens_per_s_gpu": self.tokens_per_s_gpu, "tflops": self.tflops, "mfu": self.mfu,
            "bubble": self.shares[BUBBLE], "exposed_us": exposed, "shares": self.shares, "moe_layer": moe, "ranks_us": ranks, "path_us": path,
            "energy": self.energy and self.energy.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Steps:
    """A step under several EP systems, fastest first. `header`: what the numbers rest on."""

    model: str
    layout: Layout
    schedule: Schedule
    sequence: int
    steps: tuple[Step, ...]
    memory: Memory
    header: tuple[str, ...]

    @property
    def best(self) -> Step:
        """The fastest."""
        return self.steps[0]

    def sentence(self) -> str:
        """The answer: speed, and what limits the fastest system."""
        best = self.best
        speed = f"{best.system}: {best.tokens_per_s_gpu:,.0f} tokens/s per GPU, {100 * best.mfu:.1f} % MFU"
        lost = f"{100 * best.shares[COMPUTE]:.0f} % of the step is computing; most of the rest is {WORDS[best.limit]}"
        return f"{speed}, {best.step_us / 1e6:.3f} s per step. {lost} ({100 * best.shares[best.limit]:.1f} %)."

    def memory_line(self) -> str:
        """The rank that holds most."""
        rank = self.memory.peak
        return f"Memory: at most {self.memory.reserved(rank) / GiB:.1f} GiB, on pipeline rank {rank.rank} with {rank.in_flight}."

    HEADINGS: ClassVar = ("system", "tokens/s/GPU", "MFU %", "step ms", *(f"{name.replace('_', ' ')} %" for name in WORDS))

    def __str__(self) -> str:
        return table(self.HEADINGS, self.cells(), left=1) + "\n" + self.sentence() + "\n" + self.memory_line()

    def cells(self) -> list[tuple[str, ...]]:
        """The table: one row per system."""
        shares = [[f"{100 * one.shares[name]:.1f}" for name in WORDS] for one in self.steps]
        numbers = [(f"{one.tokens_per_s_gpu:,.0f}", f"{100 * one.mfu:.1f}", f"{one.step_us / 1e3:,.1f}") for one in self.steps]
        return [(one.system, *speed, *parts) for one, speed, parts in zip(self.steps, numbers, shares, strict=True)]

    def _memory(self) -> dict[str, Any]:
        ranks = [{"rank": one.rank, "allocated_bytes": one.allocated, "bytes": one.lines} for one in self.memory.ranks]
        return {"reserved_bytes": self.memory.reserved(self.memory.peak), "ranks": ranks}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. The fields of the fastest system stand at the top, too."""
        best = self.best.to_dict()
        top = {name: best[name] for name in ("system", "tokens_per_s_gpu", "mfu", "step_us", "bubble")}
        return top | {
            "model": self.model, "gpus": self.layout.gpus, "schedule": self.schedule.name, "sequence": self.sequence,
            "chunks_in_flight": in_flight(self.schedule), "memory": self._memory(), "steps": [one.to_dict() for one in self.steps],
            "sentence": self.sentence(), "header": list(self.header),
        }  # fmt: skip


def step(
    model: str = "deepseek-v3",
    cluster: str | Cluster = "paper-gh200-nvl32",
    layout: str | Layout = "",
    schedule: str | None = None,
    systems: Iterable[str] | None = None,
    *,
    sequence: int = 4096,
    precision: str = "bf16",
    recompute: Iterable[str] = (),
    routing: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Steps:
    """Simulate one training step under each EP system.

    `cluster`: the machine of one EP group; pipelines and replicas are more of the same. `layout`: degrees such as
    "pp=16,ep=32,mbs=1,m=64" (`steps.layout_of`). `schedule`: a family of `steps.schedules`; None: 1f1b, interleaved with chunks (vpp).
    `systems`: as for `compare`. `sequence`: tokens of a sequence. `precision`: for the memory, as for `model`.
    `recompute`: modules that are computed again. `routing`, `seed`: as for `compare`; one drawn layer stands for all layers.
    Raises ConfigError for wrong input, for a step that the memory of a GPU does not hold, and for what is not modelled yet.
    """
    whole = load_whole(model)
    machine = Machine(cluster if isinstance(cluster, Cluster) else load_cluster(cluster))
    plan = layout if isinstance(layout, Layout) else layout_of(layout)
    check_layout(whole, plan, sequence)
    order = _order(plan, schedule)
    saving = Saving(tuple(recompute))
    memory = memory_of(whole, plan, sequence, recipe_of(precision), saving, order)
    check_memory(memory, machine.cluster.hbm_bytes, machine.cluster.name)
    times, header = _experts(whole, machine, plan, sequence, systems, routing=routing, seed=seed, progress=progress)
    practice = Practice(host=bool(machine.cluster.gpu), recompute=saving.recompute)
    done = [
        _one(name, order, step_costs(whole, machine, plan, sequence, ep, order.directions, practice), ep, whole, sequence)
        for name, ep in times.items()
    ]
    done.sort(key=lambda one: one.step_us)
    notes = (*_notes(whole, machine, plan, order, sequence), *header)
    return Steps(whole.name, plan, order, sequence, tuple(done), memory, notes)


def _order(layout: Layout, name: str | None) -> Schedule:
    """The schedule of a layout. Raises ConfigError where its chunks are not the layout's."""
    family = get_schedule(name or ("1f1b" if layout.vpp == 1 else "interleaved"))
    if family.chunks and family.chunks != layout.vpp:
        raise ConfigError(f"schedule {family.name}: found vpp={layout.vpp}, expected {family.chunks} (chunks of a rank)")
    if family.greedy:
        raise ConfigError(f"schedule {family.name}: found a greedy family, expected one with a fixed order (its order depends on times)")
    return make_schedule(family.name, layout.pp, layout.micro_batches, layout.vpp)


def _experts(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, systems: Iterable[str] | None, **request: Any
) -> tuple[dict[str, EpTimes | None], tuple[str, ...]]:
    """One MoE layer under every system, forward and backward. A dense model, and experts on one GPU, have no system."""
    if model.layer is None:
        return {"no EP": None}, ()
    tokens = layout.tokens(sequence) // layout.tp
    names = None if systems is None else list(systems)
    given: dict[str, Any] = {"model": model.layer, "cluster": machine.cluster, "gpus": layout.ep, "tokens": tokens, **request}
    forward = compare(names, direction="fwd", **given)
    backward = compare([row.system for row in forward.rows], direction="bwd", **given)
    behind = {row.system: row for row in backward.rows}
    pairs = [(row, behind[row.system]) for row in forward.rows if row.system in behind]
    return {row.system: _ep_times(row, back) for row, back in pairs}, forward.header


def _ep_times(forward: Row, backward: Row) -> EpTimes:
    return EpTimes(
        forward.layer_us, backward.layer_us, forward.exposed_comm_us, backward.exposed_comm_us, _wire_us(forward), _wire_us(backward),
        _link_flits(forward) + _link_flits(backward),
    )  # fmt: skip


def _link_flits(row: Row) -> float:
    """Flits on the links of one GPU, for all tokens of the layer."""
    whole = row.window["of_tokens"] / row.window["tokens"] if row.window else 1.0
    return sum(row.wire_flits.values()) * whole / row.gpus


def _wire_us(row: Row) -> float:
    """From the first to the last transfer, at most the sum of both phases."""
    phases = [row.phases_us[name] for name in ("dispatch", "combine")]
    span = max(phase["end"] for phase in phases) - min(phase["start"] for phase in phases)
    return min(span, sum(phase["busy"] for phase in phases))


def _one(name: str, order: Schedule, costs: StepCosts, ep: EpTimes | None, model: WholeModel, sequence: int) -> Step:
    layout = costs.layout
    done = replay(step_graph(order, costs.times))
    split = split_step(done)
    step_us = split.total / PS_PER_US
    speed = layout.global_batch * sequence / (step_us / 1e6) / layout.gpus
    flops = model_flops(model, sequence, MEGATRON)
    dtype = model.layer.gemm_dtype if model.layer else "bf16"
    shares = {part: split.share(part) for part in (COMPUTE, BUBBLE, SEND, DATA_PARALLEL, OPTIMIZER)}
    shares[EP] = _exposed_us(order, costs) / order.ranks / step_us
    shares[COMPUTE] -= shares[EP]
    peak = costs.machine.cluster.peak_flops_per_us(dtype) * 1e6
    energy = energy_of(model, costs.machine, layout, sequence, ep)
    return Step(name, step_us, speed, speed * flops / 1e12, speed * flops / peak, shares, ep, done, split, energy=energy)


def _exposed_us(order: Schedule, costs: StepCosts) -> float:
    """EP communication in all cells that nothing hides, over all ranks; of a pair: what its communication is longer than its computing."""
    total = 0.0
    for slots in order.slots:
        for slot in slots:
            ahead = costs.stages[slot[0].stage]
            if len(slot) == 2:
                total += _exposed_in_pair(ahead, costs.stages[slot[1].stage])
            elif slot[0].kind == "F":
                total += ahead.forward_exposed
            elif slot[0].kind in "BI":
                total += min(ahead.backward_exposed, ahead.backward)
    return total


def _exposed_in_pair(forward: Cost, backward: Cost) -> float:
    computed = forward.forward - forward.forward_exposed + backward.backward - backward.backward_exposed + backward.weights
    return max(0.0, forward.pair_with(backward) - computed)


def _notes(model: WholeModel, machine: Machine, layout: Layout, order: Schedule, sequence: int) -> tuple[str, ...]:
    cluster = machine.cluster
    rates = "closed forms of measured GPUs" if cluster.gpu else "tensor and memory peaks"
    parts = [number(f"step.attention_{way}_part") for way in ("forward", "backward")]
    attention = "" if cluster.gpu else f"; attention at {parts[0]:g} and {parts[1]:g} of the BF16 peak, assumed"
    network = "the cluster's network" if cluster.scale_out else f"assumed {machine.nic / 1000:g} GB/s per GPU"
    return (
        f"{model.name}, {layout.gpus} GPUs, {order.name}, {layout.micro_batches} micro-batches of {layout.micro_batch} x {sequence} tokens.",
        f"MoE layers: Rows of one drawn layer. Other operators: {rates}{attention}.",
        f"Between NVLink domains: {network}.",
        "Not modelled: " + "; ".join(NOT_MODELLED) + ".",
        "MFU: Megatron's count of model FLOPs over the dense peak of the expert GEMMs' type.",
        error_bar(model, layout, machine),
    )
