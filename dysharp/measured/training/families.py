"""Families of training runs with one bar each, and a family in one line (`summarise`).

| family | holds |
|---|---|
| "memory" | peaks of allocated memory, predicted by closed forms and the schedule's order |
| "model-flops" | model FLOPs of a token as each framework counts them, against published TFLOPS over tokens per second |
| "block" | DeepSeek's four measured pairs of a forward and a backward block, from their measured phases and from modelled phases |
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from statistics import median

from dysharp.base import ByName, GiB, by_key, frozen_keywords
from dysharp.costs import Machine
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.setting import TrainingRow, convention_of_row, model_of, setting_of
from dysharp.model import layout_of, model_flops
from dysharp.specs import load_cluster, load_whole
from dysharp.training import WIRE, Block, PassCost, Phases, TrainingMemory, exchange, make_schedule, memory_of, pairs_time, phases_of, usual_schedule
from dysharp.training.recipe import SMS, TrainingRecipe


@frozen_keywords
class RunCase:
    """A number of one run and its prediction, in one unit. It is judged if it has a prediction and no `note`."""

    id: str
    model: str
    measured: float
    predicted: float | None
    """None where `note` says why there is none."""
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        return None if self.predicted is None else 100 * (self.predicted / self.measured - 1)

    @property
    def judged(self) -> bool:
        """Whether its error counts."""
        return self.predicted is not None and not self.note


def summarise(family: str, cases: Iterable[RunCase], bar: float | None) -> ByName:
    """Rows, judged rows, and in percent: median, 90th percentile and largest of absolute errors, median of errors (bias), and the median's bar.

    `bar` None: of all predicted rows, judged or not.
    """
    every = list(cases)
    errors = [case.error for case in every if (case.judged or bar is None) and case.error is not None]
    sizes = sorted(map(abs, errors))
    names = ("median_ape", "p90_ape", "max_ape", "bias")
    values = (median(sizes), sizes[round(0.9 * (len(sizes) - 1))], sizes[-1], median(errors)) if sizes else (None,) * len(names)
    return {
        "family": family, "n_rows": len(every), "n": len(sizes), **dict(zip(names, values, strict=True)), "bar": bar,
        "holds": bool(sizes) and (bar is None or median(sizes) <= bar),
    }  # fmt: skip


FLOPS = "model-flops"
FLOPS_BAR = 0.2
"""Percent: bar of every group's median."""
MEGA, GIGA = 1e6, 1e9


@frozen_keywords
class _FlopsCase(RunCase):
    """GFLOP per token: as published, and as the row's convention counts them."""

    sequence: int
    convention: str


def flops_cases(rows: Sequence[TrainingRow]) -> list[_FlopsCase]:
    """One case for every row with tokens per second and TFLOPS."""
    return [case for row in rows if (case := _flops_case(row))]


def _flops_case(row: TrainingRow) -> _FlopsCase | None:
    tokens, tflops = row.numbers["tok_s_gpu"], row.numbers["tflops_gpu"]
    if tokens is None or tflops is None:
        return None
    convention, sequence, name = convention_of_row(row), row.degree("seq"), row.text("model")
    predicted: float | None = None
    try:
        model = model_of(row)
        name, predicted = model.name, model_flops(model, sequence, convention) / GIGA
        note = "the row contradicts itself" if row.text("check") else "fine-tuning" if "lora" in convention.name else ""
    except Unsupported as reason:
        note = str(reason)
    measured = tflops / tokens * MEGA / 1e3
    return _FlopsCase(id=row.id, model=name, measured=measured, predicted=predicted, note=note, sequence=sequence, convention=convention.name)


def by_group(cases: Sequence[_FlopsCase]) -> dict[tuple[str, int, str], float]:
    """{(model, sequence, convention): predicted over the median of published values, minus 1, in percent} of judged rows.

    Published values are rounded to three digits, so that one row says little.
    """
    groups = by_key(((case.model, case.sequence, case.convention), case) for case in cases if case.judged)
    return {key: 100 * ((group[0].predicted or 0.0) / median(case.measured for case in group) - 1) for key, group in groups.items()}


MEMORY = "memory"
MEMORY_BAR = 2.0
"""Percent: bar of the median error of judged rows."""
GB = 1e9


def memory_cases(rows: Sequence[TrainingRow]) -> list[RunCase]:
    """One case for every row with a measured peak in GiB, in order."""
    return [_memory_case(row) for row in rows if row.numbers["mem_gib"] is not None]


def _memory_of_row(row: TrainingRow) -> TrainingMemory:
    """The memory of a row's step by its own layout: 1F1B, or interleaved with several chunks. Raises `Unsupported`."""
    setting = setting_of(row)
    layout = setting.layout
    order = make_schedule(usual_schedule(layout.vpp), layout.pp, layout.micro_batches, layout.vpp)
    return memory_of(setting.model, layout, setting.sequence, setting.recipe, setting.saving, order)


def _memory_case(row: TrainingRow) -> RunCase:
    measured = (row.numbers["mem_gib"] or 0.0) * (GB / GiB if "in gb" in row.text("note").lower() else 1.0)
    predicted: float | None = None
    try:
        predicted, note = _memory_of_row(row).peak.allocated / GiB, _aside(row)
    except Unsupported as reason:
        note = str(reason)
    return RunCase(id=row.id, model=row.text("model"), measured=measured, predicted=predicted, note=note)


def _aside(row: TrainingRow) -> str:
    """Why the error of a row is listed and not judged; "": it is judged."""
    if row.text("check"):
        return "the row contradicts itself"
    if row.degree("fsdp") > 1:
        return "weights are sharded (FSDP)"
    if "moonlight" in row.text("model").lower():
        return "the peak is below the state of this recipe: differences only"
    if "sft" in row.text("model").lower():
        return "fine-tuning: packed lengths and types of gradients are not in the row"
    return ""


PAIRS = "block"
PAIR_BAR = 10.0
"""Percent: bar of the four pairs from modelled phases."""
MEASURED_MS = 129.0
SPANS = (
    Phases(4.42, 4.84, 5.75, 6.09, 5.33, 7.33, 4.29, 7.33, 9.22, 2.38),
    Phases(5.22, 4.39, 5.46, 5.74, 5.05, 7.91, 4.42, 8.26, 9.56, 2.39),
    Phases(6.21, 4.57, 5.47, 7.13, 5.26, 7.52, 5.21, 9.55, 9.64, 2.40),
    Phases(7.28, 4.60, 4.77, 7.99, 4.64, 7.47, 4.64, 9.66, 9.74, 2.41),
)
"""Milliseconds (deepseek-ai/profile-data@4496024, train.json: H800, EP64 over 8 nodes, 4096 tokens, 4 local experts, balanced). A transfer's span
holds its wait for peers."""
LAYOUT, TOKENS = "ep=64,dp=64,mbs=1,m=4", 4096
REPLAYED = ("layernorm", "mla_up_proj", "moe_act")
"""Modules that the trace computes again (names of its kernels)."""
FP8_ROW = 0.5 + 2 / 128
"""A row of FP8 with its scales over one of BF16."""


def _modelled() -> Phases:
    """Phases of one pair in milliseconds, by closed forms on the SMs that DeepEP leaves."""
    model, machine = load_whole("deepseek-v3"), Machine(load_cluster("hw-dgx-h800-x8"))
    training_recipe = TrainingRecipe(dtype="fp8", dispatcher="deepep", recompute=REPLAYED)
    block = Block(model, machine, layout_of(LAYOUT), TOKENS, training_recipe)
    assert model.layer is not None
    before, behind = block.pieces(model.n_layers - 1)
    behind |= {name: one for name, one in block.experts(None).items() if name not in ("counts", "exchange")}
    pieces = block.with_replays({**before, **behind})
    early = sum((pieces.pop(name) for name in (*before, "router")), PassCost())
    sent = exchange(machine, block.layout, model.layer, TOKENS, training_recipe)
    wires = 2 * (sent.wait + FP8_ROW * sent.dispatch, sent.wait + sent.combine)
    done = phases_of(early, sum(pieces.values(), PassCost()), wires, 1 - SMS["deepep"] / machine.cluster.n_sms)
    return Phases(*(getattr(done, f.name) / 1e3 for f in fields(Phases)))


def pair_cases() -> list[RunCase]:
    """Times in milliseconds: of the four pairs both ways, then the mean of every phase. Only the pairs from modelled phases are judged."""
    phases = _modelled()
    told = [("four pairs", MEASURED_MS, pairs_time([phases] * len(SPANS)), "")]
    told += [("four pairs, measured phases", MEASURED_MS, pairs_time(SPANS), "from measured times of phases")]
    for name in (f.name for f in fields(Phases)):
        mean = sum(getattr(one, name) for one in SPANS) / len(SPANS)
        told.append((name, mean, getattr(phases, name), "a phase; its span holds waits for peers" if name in WIRE else "a phase"))
    return [RunCase(id=name, model="deepseek-v3", measured=mean, predicted=own, note=note) for name, mean, own, note in told]
