"""Family "memory": peaks of allocated memory, predicted by closed forms and the schedule's order."""

from collections.abc import Sequence
from dataclasses import dataclass

from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.rows import TrainingRow
from dysharp.measured.training.setting import setting_of
from dysharp.steps.accounting.memory import Memory, memory_of
from dysharp.steps.schedules import make_schedule
from dysharp.units import GiB

FAMILY = "memory"
BAR = 2.0
"""Percent: bar of the median error of judged rows."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """One measured peak. `predicted` is None where `note` says why there is none. A row is judged if it has a prediction and no `note`."""

    id: str
    model: str
    layout: str
    measured: float
    """GiB."""
    predicted: float | None
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        return None if self.predicted is None else 100 * (self.predicted / self.measured - 1)

    @property
    def judged(self) -> bool:
        """Whether its error counts."""
        return self.predicted is not None and not self.note


def memory_cases(rows: Sequence[TrainingRow]) -> list[MemoryCase]:
    """One case for every row with a measured peak, in order."""
    return [_case(row) for row in rows if row.numbers["mem_gib"] is not None]


def memory_of_row(row: TrainingRow) -> Memory:
    """The memory of a row's step by its own layout: 1F1B, or interleaved with several chunks. Raises `Unsupported`."""
    setting = setting_of(row)
    layout = setting.layout
    order = make_schedule("interleaved" if layout.vpp > 1 else "1f1b", layout.pp, layout.micro_batches, layout.vpp)
    return memory_of(setting.model, layout, setting.sequence, setting.recipe, setting.saving, order)


def _case(row: TrainingRow) -> MemoryCase:
    measured = row.numbers["mem_gib"] or 0.0
    if "in gb" in row.text("note").lower():
        measured *= GB / GiB
    shape = " ".join(f"{name}{row.degrees[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs", "seq") if row.degrees[name] > 1)
    try:
        predicted = memory_of_row(row).peak.allocated / GiB
    except Unsupported as reason:
        return MemoryCase(row.id, row.text("model"), shape, measured, None, str(reason))
    return MemoryCase(row.id, row.text("model"), shape, measured, predicted, _aside(row))


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
