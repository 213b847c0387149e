"""Family "step": times of training steps, predicted by closed forms, in groups with a bar each."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dysharp.errors import ConfigError
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.floor import floor_us
from dysharp.measured.training.practice_of import NEMO, SIMUMAX, machine_of, practice_of
from dysharp.measured.training.rows import TrainingRow
from dysharp.measured.training.setting import AUTOMODEL, setting_of
from dysharp.steps.estimate import Estimate, estimate

FAMILY = "step"
BARS = {
    "dense, one node": 6.0, "dense, many GPUs": 10.0, "MoE without pipeline": 10.0, "MoE with pipeline, racks": 12.0,
    "MoE with pipeline, NICs": 15.0, "reduced MoE": 6.0,
}  # fmt: skip
"""Group -> bar of the median of absolute errors in percent, a (model, machine) being one vote."""
OTHER = "no group"
ELSEWHERE = (NEMO, "AI-Hypercomputer", "AMD-AGI")
"""Sources that no group has: another framework, other machines."""


@dataclass(frozen=True, slots=True)
class StepCase:
    """One measured step. `predicted` is None where `note` says why there is none. A row is judged if it has a group, a prediction and no `note`."""

    id: str
    model: str
    gpu: str
    group: str
    release: str
    measured: float
    """Seconds."""
    predicted: float | None
    floor: float | None = None
    """Seconds by the unfitted floor."""
    micro_batches: int = 0
    case: str = ""
    """Rows that differ in nothing but their micro-batches have the same."""
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        return None if self.predicted is None else 100 * (self.predicted / self.measured - 1)

    @property
    def floor_error(self) -> float | None:
        """The same for the floor."""
        return None if self.floor is None else 100 * (self.floor / self.measured - 1)

    @property
    def judged(self) -> bool:
        """Whether its error counts."""
        return self.predicted is not None and not self.note and self.group != OTHER


def measured_s(row: TrainingRow) -> float | None:
    """Seconds of a row's step: printed, or from its tokens per second."""
    step, speed = row.numbers["step_s"], row.numbers["tok_s_gpu"]
    return step if step else row.degree("gbs") * row.degree("seq") / (speed * row.degree("gpus")) if speed else None


def estimate_row(row: TrainingRow) -> Estimate:
    """The prediction of a row's step. Raises `Unsupported` with the reason."""
    setting = setting_of(row)
    gpu, machine = machine_of(row)
    try:
        return estimate(setting.model, machine, setting.layout, setting.sequence, practice_of(row, gpu, setting.model.layer is not None))
    except ConfigError as error:
        raise Unsupported(str(error)) from None


def step_cases(rows: Sequence[TrainingRow]) -> list[StepCase]:
    """One case for every row with a measured step, in order."""
    return [case for row in rows if (case := _case(row))]


def _case(row: TrainingRow) -> StepCase | None:
    measured = measured_s(row)
    if measured is None:
        return None
    about = (row.id, row.text("model"), row.text("hardware"))
    release = row.text("software").split(" ")[0]
    try:
        done, gpu, setting = estimate_row(row), machine_of(row)[0], setting_of(row)
    except Unsupported as reason:
        return StepCase(*about, OTHER, release, measured, None, note=str(reason))
    layout = setting.layout
    practice = practice_of(row, gpu, setting.model.layer is not None)
    degrees = (layout.tp, layout.pp, layout.vpp, layout.cp, layout.ep, layout.dp, layout.micro_batch, setting.sequence)
    ways = (practice.dtype, practice.dispatcher, practice.overlap_ep, *practice.graphs, *practice.recompute)
    shape = ".".join(map(str, degrees)) + " " + " ".join(str(way) for way in ways if way)
    floor = floor_us(setting, machine_of(row)[1], practice) / 1e6
    group = group_of(row, gpu)
    return StepCase(row.id, setting.model.name, gpu, group, release, measured, done.step_us / 1e6, floor, layout.micro_batches, shape, _aside(row))


def group_of(row: TrainingRow, gpu: str) -> str:
    """The group of a row, by its source, model and layout."""
    source, model = row.text("source"), row.text("model").lower()
    moe = any(name in model for name in ("deepseek", "qwen3", "gpt", "kimi", "mixtral")) and "gpt3" not in model
    if source.startswith(SIMUMAX):
        return "reduced MoE" if moe else "dense, one node"
    if source.startswith(ELSEWHERE) or "moonlight" in model:
        return OTHER
    if not moe:
        return OTHER if source.startswith(AUTOMODEL) else "dense, many GPUs"
    if row.degree("pp") == 1:
        return OTHER if source.startswith(AUTOMODEL) else "MoE without pipeline"
    return "MoE with pipeline, racks" if gpu.startswith("gb") else "MoE with pipeline, NICs"


def _aside(row: TrainingRow) -> str:
    """Why the error of a row is listed and not judged; "": it is judged."""
    text = f"{row.text('note')} {row.text('model')}".lower()
    why = {
        "the row contradicts itself": bool(row.text("check")),
        "weights are sharded (FSDP)": row.degree("fsdp") > 1,
        "fine-tuning: packed lengths, frozen weights": any(word in text for word in ("sft", "lora", "fine-tuning")),
        "five steps without fused kernels": "smoke run" in text,
        "tokens are dropped": "tokendrop" in text,
        "no measured rate of training GEMMs in FP4": row.text("precision").lower() == "nvfp4",
    }
    return next((reason for reason, holds in why.items() if holds), "")


def votes(cases: Sequence[StepCase], floor: bool = False) -> dict[tuple[str, str], float]:
    """{(model, GPU): median absolute error in percent} of judged rows; `floor`: of the unfitted floor."""
    cells: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        error = case.floor_error if floor else case.error
        if case.judged and error is not None:
            cells.setdefault((case.model, case.gpu), []).append(abs(error))
    return {cell: median(errors) for cell, errors in cells.items()}


def judge_groups(cases: Sequence[StepCase]) -> list[dict[str, Any]]:
    """One entry per group: rows, votes, medians of absolute errors (predicted, floor), largest, bias, bar and whether it holds."""
    entries = []
    for group, bar in BARS.items():
        own = [case for case in cases if case.group == group and case.judged]
        if not own:
            continue
        errors = sorted(abs(case.error or 0.0) for case in own)
        typical, least = median(votes(own).values()), median(votes(own, floor=True).values())
        entries.append(
            {
                "group": group, "n": len(own), "votes": len(votes(own)), "median_ape": typical, "median_row": median(errors),
                "p90_ape": errors[round(0.9 * (len(errors) - 1))], "max_ape": errors[-1], "bias": median(case.error or 0.0 for case in own),
                "floor_median_ape": least, "bar": bar, "holds": typical <= bar, "beats_floor": typical < least,
            }
        )  # fmt: skip
    return entries


def slopes(cases: Sequence[StepCase]) -> list[dict[str, Any]]:
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
        entry: dict[str, Any] = {"case": f"{few.model} {few.case}", "gpu": few.gpu, "rows": [few.id, many.id]}
        for name in ("measured", "predicted", "floor"):
            first, last = (float(getattr(one, name)) * 1e3 for one in (few, many))
            slope = (last - first) / (many.micro_batches - few.micro_batches)
            entry[f"slope_{name}"], entry[f"intercept_{name}"] = slope, first - slope * few.micro_batches
        entries.append(entry)
    return entries
