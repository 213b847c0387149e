"""`step`: one training step of a whole model under a layout, a pipeline schedule and several EP systems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from dysharp.api.arguments import StepArgs
from dysharp.api.comparison import chosen_systems, header_lines, marked, out_of_ranking, place_of_fastest, rows_both_ways
from dysharp.api.learning import learned_bar, posterior_of
from dysharp.api.merged_blocks import merged_blocks
from dysharp.api.tensor_parallel import step_sub_layers, step_words
from dysharp.base import PS_PER_US, Amounts, ByName, Columns, ConfigError, GiB, Rows, Texts, frozen, named, plain
from dysharp.costs import Machine, number
from dysharp.measured.intervals import Interval
from dysharp.measured.training.step_time import error_bar, step_interval
from dysharp.measured.trust import no_rows
from dysharp.model import MEGATRON, Formats, Layout, check_domain, check_layout, chunks_of, layout_of, model_flops, recipe_for, trained
from dysharp.planning.experts import SPREAD
from dysharp.planning.names import SIMULATED
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.quick import BOUND, FLIT_BYTES, IN_TURN, QuickLayer, quick_layers
from dysharp.runs import RequestArgs, in_formats, layer_in, row_options, step_formats, takes, with_rows
from dysharp.specs import Cluster, WholeModel, load_cluster, load_whole
from dysharp.specs.fields import Tokens, check_value
from dysharp.specs.hf_whole import lines_on
from dysharp.training import NOT_MODELLED, SINGLE, Block, BlockTimes, Dispatcher, EpTimes, Kind, PassCost, StepCosts, TrainingRecipe, step_costs
from dysharp.training.answers import (
    BUBBLE,
    COLLECTIVES,
    DATA_PARALLEL,
    EP,
    EVEN,
    LAUNCHES,
    MFU_LINE,
    MFU_OF_DENSE,
    NO_EP,
    NO_LAUNCHES,
    NO_TRAFFIC,
    Energy,
    StepSplit,
    Waits,
    energy_of,
    gains,
    peak_flops_per_us,
    split_step,
)
from dysharp.training.cost import PassWaits
from dysharp.training.graph import COMPUTE, OPTIMIZER, SEND, Replay, replay, slot_name, step_graph
from dysharp.training.megatron import arguments_from
from dysharp.training.memory import CAP_LINE, Saving, TrainingMemory, check_memory, memory_of
from dysharp.training.schedules import Schedule, Slot, get_schedule, in_flight, make_schedule, usual_schedule
from dysharp.training.schedules.cells import FORWARD, WGRAD

if TYPE_CHECKING:
    from dysharp.analysis import Row

BLOCKS = CLOSED, MERGED = "closed", "merged"
WORDS = {
    COMPUTE: "computing", EP: "EP communication that nothing hides", LAUNCHES: "waiting for launches", BUBBLE: "the pipeline's bubble",
    COLLECTIVES: "tensor and context parallel collectives that nothing hides", SEND: "sends between stages",
    DATA_PARALLEL: "gradient and parameter traffic that nothing hides", OPTIMIZER: "the optimizer",
}  # fmt: skip
"""Part of a step -> how a sentence names it."""

FRAMEWORK_GEMMS = (*IN_TURN, "deepep-ll")
"""Systems between whose kernels the framework computes the experts. The others have kernels of their own, which start as rows come."""
_QUICK_COLUMNS = 7
WORTH = 0.001
"""Gain from which a sentence names a change."""
COLUMNS = Columns(
    "system=system", "tokens/s\nper GPU=tokens_per_s_gpu:,.0f", "MFU\n%=mfu:.1%", "step\nms=step_us/1e3:,.1f",
    f"compute\n%={COMPUTE}:.1%", f"exposed\nEP %={EP}:.1%", f"coll.\n%={COLLECTIVES}:.1%", f"launches\n%={LAUNCHES}:.1%",
    f"bubble\n%={BUBBLE}:.1%", f"send\n%={SEND}:.1%", f"data\npar. %={DATA_PARALLEL}:.1%", f"optim.\n%={OPTIMIZER}:.1%",
)  # fmt: skip


@frozen
class Step:
    """A step under one EP system. `shares`: parts of the step (`WORDS`), means over ranks; they add up to 1. `form`, `dropped_rows`: of its Row."""

    system: str
    step_us: float
    tokens_per_s_gpu: float
    tflops: float
    mfu: float
    shares: Amounts
    ep: EpTimes | None
    replayed: Replay
    split: StepSplit
    form: str = "real"
    dropped_rows: int = 0
    energy: Energy | None = None
    stands_on: str = ""
    """Of a quick answer: `CLOSED`, or `BOUND`: the step takes at least so long. "": a Row."""

    @property
    def limit(self) -> str:
        """The part that takes longest besides computing."""
        return max((name for name in self.shares if name != COMPUTE), key=lambda name: self.shares[name])

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        ranks = [{name: ps / PS_PER_US for name, ps in rank.items()} for rank in self.split.ranks]
        path = {name: ps / PS_PER_US for name, ps in self.split.path.items()}
        exposed = {name: self.shares[name] * self.step_us for name in (EP, COLLECTIVES, SEND, DATA_PARALLEL)}
        moe = None if self.ep is None else {"forward_us": self.ep.forward, "backward_us": self.ep.backward}
        found = named(self, "system", "step_us", "tokens_per_s_gpu", "tflops", "mfu") | {"bubble": self.shares[BUBBLE], "exposed_us": exposed}
        found |= {"shares": self.shares, "moe_layer": moe, "ranks_us": ranks, "path_us": path, "energy": plain(self.energy)}
        return found | COLUMNS.more(found) | ({"kind": self.stands_on} if self.stands_on else {})


@frozen
class Steps:
    """A step under several EP systems, fastest first.

    `gains`: {change: what it adds to the speed of `best`}. `header`: what the numbers rest on. `quick`: MoE layers are no Rows, but closed forms or
    bounds; {system: how far its layer's time goes}.
    """

    model: str
    layout: Layout
    schedule: Schedule
    sequence: int
    steps: tuple[Step, ...]
    memory: TrainingMemory
    gains: Amounts
    header: Texts
    formats: ByName
    """Of weights, products, KV, state and rows (`Formats.to_dict`), under `best`."""
    quick: Mapping[str, str] = field(default_factory=dict)
    interval: Interval | None = None
    """Of measured steps like `best`; None where no measurement judges them."""

    @property
    def best(self) -> Step:
        """The fastest that one could build and that drops no rows, if there is one (`comparison.place_of_fastest`)."""
        return self.steps[_fastest(self.steps)]

    def sentence(self) -> str:
        """The answer: speed, what limits the fastest system, and what would help."""
        best = self.best
        speed = f"{best.system}: {best.tokens_per_s_gpu:,.0f} tokens/s per GPU, {100 * best.mfu:.1f} % MFU"
        lost = f"{100 * best.shares[COMPUTE]:.0f} % of the step is computing; most of the rest is {WORDS[best.limit]}"
        most = sorted(self.gains.items(), key=lambda one: -one[1])[:2]
        more = ", ".join(f"{change} {100 * gain:+.1f} %" for change, gain in most if gain >= WORTH)
        help_ = f" What would help: {more}." if more else ""
        if best.stands_on:
            speed = f"Quick answer, {best.stands_on}{' (no step is faster)' if best.stands_on == BOUND else ''}: {speed}"
        return f"{speed}, {best.step_us / 1e6:.3f} s per step. {lost} ({100 * best.shares[best.limit]:.1f} %).{help_}"

    def memory_line(self) -> str:
        """The rank that holds most."""
        rank = self.memory.peak
        return f"Memory: at most {self.memory.reserved(rank) / GiB:.1f} GiB, on pipeline rank {rank.rank} with {rank.in_flight}."

    @property
    def columns(self) -> Columns:
        """Of `rows`: a quick answer has the parts that stand on its layers, and what these stand on."""
        return COLUMNS.like(*COLUMNS.own[:_QUICK_COLUMNS], "EP layer stands on=quick:") if self.quick else COLUMNS

    def __str__(self) -> str:
        return self.columns.screen(self.rows()) + f"\n{self.sentence()}\n{self.memory_line()}"

    def rows(self) -> Rows:
        """Rows of `columns`, one for each system."""
        return [one.to_dict() | one.shares | {"system": marked(one), "quick": self.quick.get(one.system, "")} for one in self.steps]

    def to_dict(self) -> ByName:
        """Plain values for JSON. The fields of the fastest system stand at the top, too."""
        top = named(self.best, "system", "tokens_per_s_gpu", "mfu", "step_us") | {"bubble": self.best.shares[BUBBLE], "model": self.model}
        top |= {"gpus": self.layout.gpus, "schedule": self.schedule.name, "sequence": self.sequence, "chunks_in_flight": in_flight(self.schedule)}
        ranks = [{"rank": one.rank, "allocated_bytes": one.allocated, "bytes": one.lines} for one in self.memory.ranks]
        top["memory"] = {"reserved_bytes": self.memory.reserved(self.memory.peak), "ranks": ranks}
        top |= named(self, "steps", "gains", "formats", "sentence", "header")
        top |= {"step_us_90": list(self.interval.around(self.best.step_us)) if self.interval else None}
        return top | ({"quick": True} if self.quick else {})


@takes(StepArgs)
def step(
    model: str | WholeModel = "deepseek-v3",
    cluster: str | Cluster = "paper-gh200-nvl32",
    layout: str | Layout = "",
    schedule: str | None = None,
    systems: Iterable[str] | None = None,
    **request: Unpack[StepArgs],
) -> Steps:
    """Simulate one training step under each EP system.

    `cluster`: the machine of one EP group; pipelines and replicas are more of the same. `layout`: degrees such as "pp=16,ep=32,mbs=1,m=64"
    (`model.layout_of`). `schedule`: a family of `training.schedules`; None: 1f1b, interleaved with chunks (vpp). `systems`: as for `compare`. Raises
    ConfigError for wrong input, for a step that the memory of a GPU does not hold, and for what is not modelled yet.
    """
    tensor, merging, quick = request["tensor"], request["blocks"] == MERGED, request["quick"]
    if quick and (merging or tensor):
        raise ConfigError(f"quick: found it beside {'blocks merged' if merging else f'tensor {tensor}'}, which is simulated, expected none")
    one_group = Machine(load_cluster(cluster))
    block, order, formats, notes = _planned(model, one_group, layout, schedule, request)
    whole, machine, plan, sequence = block.model, block.machine, block.layout, block.sequence
    if not whole.layer and (odd := "systems" * (systems is not None) or "routing" * bool(request["routing"]) or "blocks" * merging):
        raise ConfigError(f"{odd}: found it with {whole.name}, which has no experts, expected none")
    asked: ByName = {"seed": request["seed"], "progress": request["progress"], "routing": request["routing"] or f"normal-cv:{SPREAD:g}"}
    asked |= {"model": whole.layer, "cluster": _cluster_of_group(plan, machine), "gpus": plan.ep, "tokens": plan.tokens(sequence) // plan.tp}
    names = None if systems is None else list(systems)
    layers = _quick_both_ways(names, block.training_recipe.formats, **asked) if quick and whole.layer else []
    rows = rows_both_ways(names, block.training_recipe.formats, **asked) if whole.layer and not quick else []  # a dense model has no system
    ahead: list[Row] = [forward for forward, _ in rows]
    eps = [_quick_times(*pair) for pair in layers] or [_ep_times(*pair) for pair in rows]
    merged = merged_blocks(ahead, eps, block, **asked) if merging else [None] * len(rows)
    firsts: Sequence[Row | QuickLayer] = [forward for forward, _ in layers] or ahead
    done, costs = _each([*zip(firsts, eps, merged or [None] * len(eps), strict=True)] or [(None, None, None)], block, order)
    best = done[_fastest(done)]
    own, now = block.training_recipe, costs[best.system].times
    ways: dict[str, tuple[Layout, EpTimes | None, TrainingRecipe]] = {NO_EP: (plan, best.ep.without_wire(), own)} if best.ep else {}
    ways |= {EVEN: (plan, replace(best.ep, busiest=1.0), own)} if best.ep and best.ep.busiest > 1 else {}
    ways |= {NO_LAUNCHES: (plan, best.ep, replace(own, host=False))} if own.host else {}
    ways |= {NO_TRAFFIC: (replace(plan, fsdp=1), best.ep, own)} if plan.fsdp > 1 else {}
    without = {name: step_costs(whole, machine, at, sequence, ep, order.directions, how).times for name, (at, ep, how) in ways.items()}
    without |= {NO_TRAFFIC: replace(without[NO_TRAFFIC], reduce=(), gather=(), optimizer=now.optimizer)} if plan.fsdp > 1 else {}
    more = gains(order, now, without)
    said = (step_words(tensor, whole),) if tensor else ()
    if merging and best.ep:
        closed = step_costs(whole, machine, plan, sequence, best.ep, order.directions, block.training_recipe)
        said = (_merged_line(best.system, closed, costs[best.system]), *said)
    chosen = block.chosen(whole.n_layers - 1, best.ep)[0].formats
    formats = replace(trained(chosen), state=formats.state) if chosen else formats
    memory = _memory(block, order, formats)
    check_memory(memory, machine.cluster.hbm_bytes, machine.cluster.name)
    options = next((first.options for first in firsts if first.system == best.system), None)
    formats = with_rows(formats, options, whole.layer)
    of_layers = "closed forms or bounds, not simulated," if quick else "Rows"
    known = None if merging or tensor else posterior_of(cluster, "steps")
    again: StepArgs = {**request, "quick": True}
    only = [best.system] if whole.layer else None
    at = lambda change: np.log([step(model, change(one_group.cluster), layout, schedule, only, **again).best.step_us])  # noqa: E731
    learned = known.interval(at) if known else None
    interval, hot = learned or step_interval(whole, plan, machine), best.ep.busiest if best.ep else 0.0
    bar = learned_bar(learned, cluster) if learned else error_bar(whole, plan, machine, hot)
    if best.stands_on == BOUND:
        interval, bar = None, "No measurement judges a bound: a step takes at least so long."
    header = (*_notes(block, order, formats.line(whole, machine.products), of_layers), bar, *notes, *_of_rows(rows), *said)
    words = {forward.system: forward.words() for forward, _ in layers}
    return Steps(whole.name, plan, order, sequence, tuple(done), memory, more, header, formats.to_dict(machine.products), words, interval)


def _cluster_of_group(layout: Layout, machine: Machine) -> Cluster:
    """The machine of one EP group, whose ranks are `etp` GPUs apart: of a group over several domains each has so many fewer ranks."""
    cluster, out = machine.cluster, machine.cluster.scale_out
    far = layout.etp > 1 and layout.ep * layout.etp > machine.domain
    if far and out is None:
        check_domain(layout, machine.domain)
    return replace(cluster, scale_out=replace(out, domain_gpus=machine.domain // layout.etp)) if far and out else cluster


def _merged_line(system: str, closed: StepCosts, merged: StepCosts) -> str:
    """How far both levels differ in the slowest stage: a pass forward and backward, and a pair."""
    at = max(range(len(closed.stages)), key=lambda n: closed.stages[n].forward + closed.stages[n].backward)
    largest = (costs.stages[at] for costs in (closed, merged))
    (turn, pair), (turn_merged, pair_merged) = ((one.forward + one.backward + one.weights, one.pair_with(one)) for one in largest)
    ways = f"both passes {turn_merged / turn - 1:+.1%}, a pair {pair_merged / pair - 1:+.1%}"
    return f"Blocks: merged Programs; against closed sums, the largest stage under {system}: {ways}."


@takes(RequestArgs)
def _quick_both_ways(
    systems: Iterable[str] | None = None, formats: Formats | None = None, **request: Unpack[RequestArgs]
) -> list[tuple[QuickLayer, QuickLayer]]:  # fmt: skip
    """As `rows_both_ways` without a simulation."""
    chosen, asked = chosen_systems(systems, None, request)
    asked = replace(asked, options=row_options(formats, chosen) | dict(asked.options))
    (ahead, back), _ = quick_layers(chosen, [replace(asked, direction=direction, waiting=False) for direction in ("fwd", "bwd")])
    return [*zip(ahead, back, strict=True)]


def _quick_times(forward: QuickLayer, backward: QuickLayer) -> EpTimes:
    flits = (forward.wire_bytes + backward.wire_bytes) / FLIT_BYTES
    (time, exposed, wire), (back, back_exposed, back_wire) = ((one.time_us, one.exposed_us, one.wire_us) for one in (forward, backward))
    busiest = forward.busiest if forward.kind != BOUND and forward.form == "real" else 0.0
    return EpTimes(time, back, exposed, back_exposed, wire, back_wire, flits, *_computed_by(forward.system, busiest))


def _planned(
    model: str | WholeModel, machine: Machine, layout: str | Layout, schedule: str | None, request: StepArgs
) -> tuple[Block, Schedule, Formats, Texts]:
    """What is computed where and in which order, its formats, and notes on a recipe. Raises what `step` raises, for the formats that hold least."""
    megatron, blocks, tensor = request["megatron"], request["blocks"], request["tensor"]
    if blocks not in BLOCKS:
        raise ConfigError(f"blocks: found {blocks[:60]!r}, expected {' or '.join(BLOCKS)}")
    whole = load_whole(model)
    if megatron and isinstance(layout, Layout):
        raise ConfigError("layout: found a Layout beside arguments of Megatron, expected its text")
    written = arguments_from(megatron, whole, str(layout)) if megatron else None
    plan = layout if isinstance(layout, Layout) else layout_of(written.layout if written else layout)
    sequence = request["sequence"] or (written and written.sequence) or 4096
    check_value(sequence, Tokens, "sequence")
    check_layout(whole, plan, sequence)
    check_domain(plan, machine.domain, None)
    order = _order(plan, schedule)
    saving = Saving(tuple(request["recompute"]) or (written.recompute if written else ()))
    formats = step_formats(request["precision"] or (written.precision if written else None), whole, machine)
    shared = step_sub_layers(tensor, whole, machine.cluster, plan.tp, plan.tokens(sequence)) if tensor else None
    usual = training_recipe_for(whole, machine)
    said = written or usual
    overlapping = replace(usual, overlap_tp=said.overlap_tp, overlap_dp=said.overlap_dp, overlap_gather=said.overlap_gather)
    training_recipe = replace(overlapping, recompute=saving.recompute, tensor=shared)
    if whole.layer:
        layer_in(whole.layer, formats, machine)
    whole, training_recipe = in_formats(whole, training_recipe, formats, machine)
    block = Block(whole, machine, plan, sequence, training_recipe)
    tried = (one.formats or formats for one in training_recipe.choices(whole.layer is not None, bool(whole.shared_hidden)))
    least = min((_memory(block, order, one) for one in tried), key=lambda one: one.reserved(one.peak))
    check_memory(least, machine.cluster.hbm_bytes, machine.cluster.name)
    return block, order, formats, written.notes if written else ()


def _memory(block: Block, order: Schedule, formats: Formats) -> TrainingMemory:
    return memory_of(block.model, block.layout, block.sequence, recipe_for(formats), Saving(block.training_recipe.recompute), order)


def _each(
    rows: Sequence[tuple[Row | QuickLayer | None, EpTimes | None, Mapping[Kind, BlockTimes] | None]], block: Block, order: Schedule
) -> tuple[list[Step], dict[str, StepCosts]]:
    """The step under each system, fastest first, and its costs by system."""
    done: list[Step] = []
    costs: dict[str, StepCosts] = {}
    for row, ep, merged in rows:
        cost = step_costs(block.model, block.machine, block.layout, block.sequence, ep, order.directions, block.training_recipe, merged)
        done.append(_one(row, order, cost, ep, block))
        costs[done[-1].system] = cost
    return sorted(done, key=lambda one: one.step_us), costs


def _fastest(steps: Sequence[Step]) -> int:
    """The place of the step that answers; a bound does so where there is nothing else."""
    known = [i for i, one in enumerate(steps) if one.stands_on != BOUND] or [*range(len(steps))]
    return known[place_of_fastest([(steps[i].system, steps[i].form, steps[i].dropped_rows, steps[i].step_us) for i in known])]


def _of_rows(rows: Sequence[tuple[Row, Row]]) -> Texts:
    """The header of the Rows, and which systems are not ranked."""
    out = out_of_ranking([forward for forward, _ in rows])
    return (*header_lines([row for pair in rows for row in pair]), *(f"* {name} {why}: it is not ranked." for name, why in out.items()))


def _order(layout: Layout, name: str | None) -> Schedule:
    """The schedule of a layout. Raises ConfigError where its chunks are not the layout's."""
    family = get_schedule(name or usual_schedule(layout.vpp))
    if family.chunks and family.chunks != layout.vpp:
        raise ConfigError(f"schedule {family.name}: found vpp={layout.vpp}, expected {family.chunks} (chunks of a rank)")
    if family.greedy:
        raise ConfigError(f"schedule {family.name}: found a greedy family, expected one with a fixed order (its order depends on times)")
    return make_schedule(family.name, layout.pp, layout.micro_batches, layout.vpp)


def _ep_times(forward: Row, backward: Row) -> EpTimes:
    """A layer from the Rows of its passes."""
    (time, exposed, wire), (back, back_exposed, back_wire) = ((row.layer_us, _exposed_us_of(row), _wire_us(row)) for row in (forward, backward))
    flits, sms = _link_flits(forward) + _link_flits(backward), forward.utilization
    busiest = sms["sm_max"] / sms["sm"] if forward.surroundings_us else 0.0  # a paper cluster has no framework
    return EpTimes(time, back, exposed, back_exposed, wire, back_wire, flits, *_computed_by(forward.system, busiest))


def _computed_by(system: str, busiest: float) -> tuple[float, Dispatcher]:
    """`busiest` and `dispatcher` of `EpTimes`: who computes the experts under a system, and whose operations the host launches."""
    own: tuple[Dispatcher, ...] = ("alltoall", SINGLE)
    return busiest if system in FRAMEWORK_GEMMS else 0.0, next((name for name in own if SIMULATED[name] == system), "deepep")


def _exposed_us_of(row: Row) -> float:
    """Communication that nothing hides on the last GPU, at most the time in which the busiest GPU does not compute: all GPUs wait for it."""
    return min(row.exposed_comm_us, (1 - row.utilization["sm_max"]) * row.time_us) * row.layer_us / row.time_us


def _link_flits(row: Row) -> float:
    """Flits on the links of one GPU, for all tokens of the layer."""
    whole = row.window["of_tokens"] / row.window["tokens"] if row.window else 1.0
    return sum(row.wire_flits.values()) * whole / row.gpus


def _wire_us(row: Row) -> float:
    """From the first to the last transfer, at most the sum of both phases."""
    phases = [row.phases_us[name] for name in ("dispatch", "combine")]
    span = max(phase["end"] for phase in phases) - min(phase["start"] for phase in phases)
    return min(span, sum(phase["busy"] for phase in phases)) * row.layer_us / row.time_us


def _one(row: Row | QuickLayer | None, order: Schedule, costs: StepCosts, ep: EpTimes | None, block: Block) -> Step:
    layout, model, sequence = costs.layout, block.model, block.sequence
    done = replay(step_graph(order, costs.times))
    split = split_step(done, _waits_of(order, costs))
    step_us = split.total / PS_PER_US
    speed = layout.global_batch * sequence / (step_us / 1e6) / layout.gpus
    flops = model_flops(model, sequence, MEGATRON)
    shares = {part: split.share(part) for part in WORDS}
    products = block.chosen(model.n_layers - 1, ep)[0].products(model)
    peak = peak_flops_per_us(costs.machine.cluster, products) * 1e6
    name, form, dropped = (row.system, row.form, row.dropped_rows) if row else ("no EP", "real", 0)
    energy = energy_of(model, costs.machine, layout, sequence, ep, products)
    kind = row.kind if isinstance(row, QuickLayer) else ""
    return Step(name, step_us, speed, speed * flops / 1e12, speed * flops / peak, shares, ep, done, split, form, dropped, energy, kind)


def _waits_of(order: Schedule, costs: StepCosts) -> Waits:
    """`PassWaits` in every slot. Of a pair: what exceeds its computing."""
    found: dict[tuple[int, str], Amounts] = {}
    for rank, slots in enumerate(order.slots):
        for slot in slots:
            if us := costs.times.cells.of(slot) / PS_PER_US:
                waits = zip((EP, LAUNCHES, DATA_PARALLEL, COLLECTIVES), _waits_in(slot, costs.stages), strict=True)
                found[rank, slot_name(slot)] = {part: wait / us for part, wait in waits}
    return found


def _waits_in(slot: Slot, stages: Sequence[PassCost]) -> PassWaits:
    one = stages[slot[0].stage]
    if len(slot) == 2:
        return one.waits_in_pair(stages[slot[1].stage])
    if slot[0].kind == WGRAD:
        return 0.0, 0.0, 0.0, 0.0
    return one.waits() if slot[0].kind == FORWARD else one.waits_backward()


def _notes(block: Block, order: Schedule, formats: str, of_layers: str = "Rows") -> Texts:
    model, machine, layout, sequence = block.model, block.machine, block.layout, block.sequence
    cluster = machine.cluster
    rates = no_rows(cluster) or ("closed forms of measured GPUs" if cluster.gpu else "tensor and memory peaks")
    parts = [number(f"step.attention_{way}_part") for way in ("forward", "backward")]
    attention = "" if cluster.gpu else f"; attention at {parts[0]:g} and {parts[1]:g} of the BF16 peak, assumed"
    network = "the cluster's network" if cluster.scale_out else f"assumed {machine.nic / 1000:g} GB/s per GPU"
    least, most = (of(chunk.n_layers for chunk in chunks_of(model, layout)) for of in (min, max))
    split = f" {model.n_layers} layers in {layout.chunks} chunks of {least} or {most}: the ends have fewer."
    uneven = split if not layout.stages and most > least else ""
    drawn = f"MoE layers: {of_layers} of one drawn layer{', of libraries their exchange' * bool(cluster.gpu)}. Other operators"
    layers, mfu = (drawn, MFU_LINE) if model.layer else ("Operators", MFU_OF_DENSE)
    batches = f"{layout.micro_batches} micro-batch{'es' * (layout.micro_batches > 1)}"
    return (
        f"{model.name}, {layout.gpus} GPUs, {order.name}, {batches} of {layout.micro_batch} x {sequence} tokens.{uneven}",
        formats,
        *lines_on(model),
        f"{layers}: {rates}{attention}.",
        *((f"Between NVLink domains: {network}.",) if layout.gpus > machine.domain else ()),
        CAP_LINE,
        "Not modelled: " + "; ".join(one for one in NOT_MODELLED if not block.training_recipe.overlap_tp or "tensor" not in one) + ".",
        mfu,
    )
