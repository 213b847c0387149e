"""Family "model-flops": model FLOPs of a token as each framework counts them, against published TFLOPS over tokens per second."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.rows import TrainingRow
from dysharp.measured.training.setting import convention_of_row, model_of
from dysharp.steps.accounting.conventions import model_flops

FAMILY = "model-flops"
BAR = 0.2
"""Percent: bar of every group's median."""
MEGA, GIGA = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class FlopsCase:
    """One row's GFLOP per token: as published, and as its convention counts them."""

    id: str
    model: str
    sequence: int
    convention: str
    measured: float
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


def flops_cases(rows: Sequence[TrainingRow]) -> list[FlopsCase]:
    """One case for every row with tokens per second and TFLOPS."""
    return [case for row in rows if (case := _case(row))]


def _case(row: TrainingRow) -> FlopsCase | None:
    tokens, tflops = row.numbers["tok_s_gpu"], row.numbers["tflops_gpu"]
    if tokens is None or tflops is None:
        return None
    convention, sequence = convention_of_row(row), row.degree("seq")
    try:
        model = model_of(row)
    except Unsupported as reason:
        return FlopsCase(row.id, row.text("model"), sequence, convention.name, tflops / tokens * MEGA / 1e3, None, str(reason))
    note = "the row contradicts itself" if row.text("check") else "fine-tuning" if "lora" in convention.name else ""
    return FlopsCase(
        row.id, model.name, sequence, convention.name, tflops / tokens * MEGA / 1e3, model_flops(model, sequence, convention) / GIGA, note
    )


def by_group(cases: Sequence[FlopsCase]) -> dict[tuple[str, int, str], float]:
    """{(model, sequence, convention): predicted over the median of published values, minus 1, in percent} of judged rows.

    Published values are rounded to three digits, so that one row says little.
    """
    groups: dict[tuple[str, int, str], list[FlopsCase]] = {}
    for case in cases:
        if case.judged:
            groups.setdefault((case.model, case.sequence, case.convention), []).append(case)
    return {key: 100 * ((group[0].predicted or 0.0) / median(case.measured for case in group) - 1) for key, group in groups.items()}
