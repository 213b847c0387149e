"""Family "step": times of training steps by closed forms, in groups with a bar each, beside plain rates; and the measured error of a group.

Plain rates are a step as rates that nobody fitted, without launches and overlap. A step model is of use where its errors are below theirs. These
rates are rounded medians of SimuMax's table of operators on a B200, as parts of the datasheet, and stand for every machine.

`estimate`: the time of a training step of a layout in milliseconds of computing, with every part a closed form. Pure.

A replay of a few micro-batches is enough: once the pipeline is full, each further group of micro-batches takes the same time.
"""

import re
from collections.abc import Callable, Sequence
from statistics import median

from dysharp.base import PS_PER_US, Amounts, ByName, ConfigError, Rows, frozen, frozen_keywords
from dysharp.costs import Machine
from dysharp.measured.intervals import Asked, Interval, interval_of
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.families import RunCase
from dysharp.measured.training.setting import AUTOMODEL, NEMO, SIMUMAX, Setting, TrainingRow, machine_of, setting_of, training_recipe_of
from dysharp.model import Layout, chunks_of, flops_of, rank_parameters
from dysharp.model.operators import CORE
from dysharp.specs import Cluster, WholeModel
from dysharp.training import StepCosts, TrainingRecipe, make_schedule, replay, step_costs, step_graph, usual_schedule

FULL_AT = 3
"""Groups of micro-batches after which a pipeline is in its steady state; two more give the time of one."""


@frozen
class _Estimate:
    """A step. `slope_us`: one more micro-batch. `costs`: the stages, by part."""

    step_us: float
    slope_us: float
    tokens_per_s_gpu: float
    costs: StepCosts

    def parts(self) -> Amounts:
        """Microseconds of the slowest pipeline rank's work by part, over the step."""
        layout = self.costs.layout
        ranks = [self.costs.stages[rank :: layout.pp] for rank in range(layout.pp)]
        slowest = max(ranks, key=lambda own: sum(one.forward + one.backward + one.weights for one in own))
        names = dict.fromkeys(name for one in slowest for name in one.parts)
        return {name: layout.micro_batches * sum(one.parts.get(name, 0.0) for one in slowest) for name in names}


def estimate(model: WholeModel, machine: Machine, layout: Layout, sequence: int, training_recipe: TrainingRecipe, schedule: str = "") -> _Estimate:
    """The step of `model` on `machine`. `schedule`: default 1f1b, interleaved with several chunks. Raises ConfigError for what is not modelled."""
    costs = step_costs(model, machine, layout, sequence, None, training_recipe=training_recipe)
    name = schedule or usual_schedule(layout.vpp)
    m, group = layout.micro_batches, layout.pp
    few = FULL_AT * group + m % group

    def step(n: int) -> float:
        return replay(step_graph(make_schedule(name, layout.pp, n, layout.vpp), costs.times)).makespan / PS_PER_US

    if m > few + group:
        first, second = step(few), step(few + group)
        slope = (second - first) / group
        total = first + slope * (m - few)
    else:
        total = step(m)
        slope = (total - step(m - group)) / group if m > group else total / m
    return _Estimate(total, slope, layout.global_batch * sequence / (total / 1e6) / layout.gpus, costs)


GEMM, GRADIENT, GROUPED = 1090 / 2250, 1050 / 2250, 900 / 2250
"""Forward and data gradients, weight gradients, experts: parts of the tensor peak."""
FORWARD, BACKWARD = 1000 / 2250, 800 / 2250
"""Core attention: parts of the BF16 peak; backward as twice the forward pass."""
MEMORY, GATHER, ALLTOALL = 5.3 / 8, 0.67, 0.60
COLLECTIVE_US, ALLTOALL_US = 30.0, 60.0
OPTIMIZER_BYTES = 30


def _plain_us(setting: Setting, machine: Machine, training_recipe: TrainingRecipe) -> float:
    """Microseconds of a step. One rank's share of all FLOPs at the rates above, collectives, the bubble of equal stages, optimizer. No bound: a step
    may overlap what this adds up."""
    model, layout, cluster = setting.model, setting.layout, machine.cluster
    kind = "bf16" if training_recipe.dtype == "bf16" else "fp8"
    peak, dense = cluster.peak_flops_per_us(kind), cluster.peak_flops_per_us("bf16")
    forward = _forward(setting)
    core, experts = forward.pop(CORE), forward.pop("routed experts", 0.0)
    others = sum(forward.values())
    tokens = layout.tokens(setting.sequence) / layout.tp / layout.pp
    linear = others * (2 / GEMM + 1 / GRADIENT) + experts * 3 / GROUPED
    one = tokens * (linear / peak + core * (1 / FORWARD + 2 / BACKWARD) / dense)
    shard = layout.tokens(setting.sequence) / layout.tp
    width, layers = 2.0 * model.hidden, model.n_layers / layout.pp
    one += layers * 30 * width * shard / (MEMORY * cluster.hbm_bytes_per_us)
    if layout.tp > 1:
        ring = width * layout.tokens(setting.sequence) * (layout.tp - 1) / layout.tp / (GATHER * cluster.link_bytes_per_us)
        one += layers * 8 * (ring + COLLECTIVE_US)
    if model.layer and layout.ep > 1:
        sent = width * shard * model.layer.topk * (layout.ep - 1) / layout.ep
        near = layout.ep * layout.stride("ep") <= machine.domain
        one += layers * 4 * (sent / (ALLTOALL * cluster.link_bytes_per_us if near else machine.nic) + ALLTOALL_US)
    held = rank_parameters(model, layout, chunks_of(model, layout)[:: layout.pp])
    parts = held.dense / (layout.dp * layout.cp) + held.experts / layout.edp
    traffic = machine.group(6 * held.dense, layout.dp * layout.cp, layout.stride("cp")) + machine.group(
        6 * held.experts, layout.edp, layout.stride("edp")
    )
    update = OPTIMIZER_BYTES * parts / (MEMORY * cluster.hbm_bytes_per_us)
    return one * (layout.micro_batches + (layout.pp - 1) / layout.vpp) + traffic + update


def _forward(setting: Setting) -> Amounts:
    """FLOPs of a token's forward pass by part; core attention sees the tokens before it."""
    every, alone = (flops_of(setting.model, setting.sequence, mtp).forward for mtp in (True, False))
    return every | {CORE: alone[CORE]}


def _floor_us(setting: Setting, machine: Machine, dtype: str) -> float:
    """Microseconds in which all GPUs multiply what a step needs at the peak of its narrowest type: nothing recomputed, no byte moved."""
    tokens = setting.layout.global_batch * setting.sequence / setting.layout.gpus
    return 3 * tokens * sum(_forward(setting).values()) / (1e6 * machine.gpu.peak_TFLOPS("fp8" if dtype == "mxfp8" else dtype))


FAMILY = "step"
BARS = {
    "dense, one node": 6.0, "dense, many GPUs": 10.0, "MoE without pipeline": 10.0, "MoE with pipeline, racks": 12.0,
    "MoE with pipeline, NICs": 15.0, "reduced MoE": 6.0,
}  # fmt: skip
"""Group -> bar of the median of absolute errors in percent, a (model, machine) being one vote."""
OTHER = "no group"
ELSEWHERE = (NEMO, "AI-Hypercomputer", "AMD-AGI")
"""Sources that no group has: another framework, other machines."""


@frozen_keywords
class StepCase(RunCase):
    """One step in seconds. It is judged only in a group."""

    gpu: str
    group: str = OTHER
    release: str
    plain: float | None = None
    """Seconds by plain rates."""
    floor: float | None = None
    """Seconds that no step is shorter than."""
    micro_batches: int = 0
    like: str = ""
    """The group of measured steps that a user's step like this is compared with."""
    case: str = ""
    """Rows that differ in nothing but their micro-batches have the same."""

    @property
    def plain_error(self) -> float | None:
        """`error` of plain rates."""
        return None if self.plain is None else 100 * (self.plain / self.measured - 1)

    @property
    def judged(self) -> bool:
        """Whether its error counts."""
        return self.predicted is not None and not self.note and self.group != OTHER


def measured_s(row: TrainingRow) -> float | None:
    """Seconds of a row's step: printed, or from its tokens per second."""
    step, speed = row.numbers["step_s"], row.numbers["tok_s_gpu"]
    return step if step else row.degree("gbs") * row.degree("seq") / (speed * row.degree("gpus")) if speed else None


def estimate_row(row: TrainingRow, change: Callable[[Cluster], Cluster] | None = None) -> _Estimate:
    """The prediction of a row's step, on the row's machine or what `change` makes of it. Raises `Unsupported` with the reason."""
    setting = setting_of(row)
    gpu, machine = machine_of(row)
    if change is not None:
        machine = Machine(change(machine.cluster))
    try:
        return estimate(setting.model, machine, setting.layout, setting.sequence, training_recipe_of(row, gpu, setting.model.layer is not None))
    except ConfigError as error:
        raise Unsupported(str(error)) from None


def step_cases(rows: Sequence[TrainingRow]) -> list[StepCase]:
    """One case for every row with a measured step, in order."""
    return [_case(row, measured) for row in rows if (measured := measured_s(row))]


def _case(row: TrainingRow, measured: float) -> StepCase:
    release = row.text("software").split(" ")[0]
    try:
        done, (gpu, machine), setting = estimate_row(row), machine_of(row), setting_of(row)
    except Unsupported as reason:
        return StepCase(
            id=row.id, model=row.text("model"), gpu=row.text("hardware"), release=release, measured=measured, predicted=None, note=str(reason)
        )  # fmt: skip
    layout = setting.layout
    training_recipe = training_recipe_of(row, gpu, setting.model.layer is not None)
    degrees = (layout.tp, layout.pp, layout.vpp, layout.cp, layout.ep, layout.dp, layout.micro_batch, setting.sequence)
    ways = (training_recipe.dtype, training_recipe.dispatcher, training_recipe.overlap_ep, *training_recipe.graphs, *training_recipe.recompute)
    shape = ".".join(map(str, degrees)) + " " + " ".join(str(way) for way in ways if way)
    return StepCase(
        id=row.id, model=setting.model.name, gpu=gpu, group=_group_of(row, gpu), release=release, measured=measured, predicted=done.step_us / 1e6,
        like=_group_of_step(setting.model, layout, machine), micro_batches=layout.micro_batches, case=shape, note=_aside(row),
        plain=_plain_us(setting, machine, training_recipe) / 1e6, floor=_floor_us(setting, machine, training_recipe.dtype) / 1e6,
    )  # fmt: skip


def _group_of(row: TrainingRow, gpu: str) -> str:
    """The group of a row, by its source, model and layout."""
    source, model = row.text("source"), row.text("model").lower()
    moe = any(name in model for name in ("deepseek", "qwen3", "gpt", "kimi", "mixtral", "moonlight")) and "gpt3" not in model
    if source.startswith(SIMUMAX):
        return "reduced MoE" if moe else "dense, one node"
    if source.startswith(ELSEWHERE):
        return OTHER
    if not moe:
        return OTHER if source.startswith(AUTOMODEL) else "dense, many GPUs"
    if row.degree("pp") == 1:
        return OTHER if source.startswith(AUTOMODEL) else "MoE without pipeline"
    return "MoE with pipeline, racks" if gpu.startswith("gb") else "MoE with pipeline, NICs"


ROUNDED = re.compile(r"[+-]0\.\d+ ?%")
"""A check that says by how little a row's numbers differ."""


def _aside(row: TrainingRow) -> str:
    """Why the error of a row is listed and not judged; "": it is judged."""
    text = f"{row.text('note')} {row.text('model')}".lower()
    why = {
        "the row contradicts itself": bool(row.text("check")) and not ROUNDED.fullmatch(row.text("check")),
        "fine-tuning: packed lengths, frozen weights": any(word in text for word in ("sft", "lora", "fine-tuning")),
        "five steps without fused kernels": "smoke run" in text,
        "tokens are dropped": "tokendrop" in text,
    }
    return next((reason for reason, holds in why.items() if holds), "")


def votes(cases: Sequence[StepCase], plain: bool = False) -> dict[tuple[str, str], float]:
    """{(model, GPU): median absolute error in percent} of judged rows; `plain`: by plain rates."""
    cells: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        error = case.plain_error if plain else case.error
        if case.judged and error is not None:
            cells.setdefault((case.model, case.gpu), []).append(abs(error))
    return {cell: median(errors) for cell, errors in cells.items()}


def judge_groups(cases: Sequence[StepCase]) -> Rows:
    """One entry per group: rows, votes, medians of absolute errors (`floor_median_ape`: by plain rates), largest, bias, bar and whether it holds."""
    entries = []
    for group, bar in BARS.items():
        own = [case for case in cases if case.group == group and case.judged]
        if not own:
            continue
        errors = sorted(abs(case.error or 0.0) for case in own)
        typical, least = median(votes(own).values()), median(votes(own, plain=True).values())
        entries.append(
            {
                "group": group, "n": len(own), "votes": len(votes(own)), "median_ape": typical, "median_row": median(errors),
                "p90_ape": errors[round(0.9 * (len(errors) - 1))], "max_ape": errors[-1], "bias": median(case.error or 0.0 for case in own),
                "floor_median_ape": least, "bar": bar, "holds": typical <= bar, "beats_floor": typical < least,
            }
        )  # fmt: skip
    return entries


def slopes(cases: Sequence[StepCase]) -> Rows:
    """Rows that differ in micro-batches only: ms per micro-batch between the fewest and the most, and the rest, measured and predicted."""
    same: dict[str, dict[int, StepCase]] = {}
    for case in cases:
        if case.judged:
            same.setdefault(f"{case.model} {case.gpu} {case.case} {case.release}", {})[case.micro_batches] = case
    entries = []
    for by_count in same.values():
        if len(by_count) < 2:
            continue
        few, many = by_count[min(by_count)], by_count[max(by_count)]
        entry: ByName = {"case": f"{few.model} {few.case}", "gpu": few.gpu, "rows": [few.id, many.id]}
        for name, of in (("measured", "measured"), ("predicted", "predicted"), ("floor", "plain")):
            first, last = (float(getattr(one, of)) * 1e3 for one in (few, many))
            slope = (last - first) / (many.micro_batches - few.micro_batches)
            entry[f"slope_{name}"], entry[f"intercept_{name}"] = slope, first - slope * few.micro_batches
        entries.append(entry)
    return entries


def _group_of_step(model: WholeModel, layout: Layout, machine: Machine) -> str:
    """The group of measured steps that a step is most like."""
    names = list(BARS)
    if model.layer is None:
        return names[0] if layout.gpus <= machine.domain else names[1]
    if layout.pp == 1:
        return names[2]
    return names[3] if layout.ep * layout.stride("ep") <= machine.domain and machine.domain > 8 else names[4]


def step_interval(model: WholeModel, layout: Layout, machine: Machine) -> Interval | None:
    """The interval of steps like this; None on machines of which measured steps, on Hopper and Blackwell, say nothing."""
    judged = machine.cluster.gpu and machine.gpu.arch == machine.arch
    return interval_of(Asked("steps", _group_of_step(model, layout, machine), machine.gpu.name, 0.0, model.name)) if judged else None


def error_bar(model: WholeModel, layout: Layout, machine: Machine, busiest: float = 0.0) -> str:
    """What measurements say about a step, in a sentence. `busiest`: rows of the busiest rank over the mean, which measured steps balance."""
    if not machine.cluster.gpu:
        return "No measurement judges a paper cluster: read ratios between systems, not times."
    if (found := step_interval(model, layout, machine)) is None:
        return f"No measured step judges a {machine.cluster.gpu}: read ratios between systems, not times."
    hot = f" They balance experts; here the busiest rank has {busiest:.1f} times the mean (--routing uniform: 1)." if round(busiest, 1) > 1 else ""
    return f'Measured steps like this ("{_group_of_step(model, layout, machine)}") that no fit saw take {found.words}.{hot}'
