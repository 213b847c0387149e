"""Fit the constants of training frameworks (`training.*`) to measured steps; hold out releases and GPUs.

`python bench/fit_training.py` fits on groups A, B and C without the newest release of each (model, GPU), as the page of expectations says, and
prints the errors of the rows that were left out beside those of a fit on everything; nothing is written.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.setting import TrainingRow, machine_of, setting_of, training_recipe_of
from dysharp.measured.training.step_time import BARS, StepCase, estimate, step_cases
from dysharp.specs.fitted import fitted

GROUPS = tuple(BARS)[:3]
GRID = {
    "training.forward_us": (100, 110, 120, 130, 140), "training.launch_us": (14, 16, 18, 20, 22, 30),
    "training.wait_us": (20, 30, 40, 50, 60, 80),
}  # fmt: skip
ROUNDS = 1
Values = dict[str, float]


def predicted(row: TrainingRow, values: Values) -> float:
    """Seconds of a row's step with other constants."""
    setting, (gpu, machine) = setting_of(row), machine_of(row)
    cluster = replace(machine.cluster, constants=tuple(sorted(values.items())))
    training_recipe = training_recipe_of(row, gpu, setting.model.layer is not None)
    return estimate(setting.model, Machine(cluster), setting.layout, setting.sequence, training_recipe).step_us / 1e6


def loss(cases: Iterable[tuple[StepCase, TrainingRow]], values: Values) -> float:
    """Mean over (model, GPU, layout) of absolute errors: every cell one vote."""
    cells: dict[tuple[str, str, str], list[float]] = {}
    for case, row in cases:
        cells.setdefault((case.model, case.gpu, case.case), []).append(abs(predicted(row, values) / case.measured - 1))
    return sum(map(median, cells.values())) / len(cells)


def fit(cases: list[tuple[StepCase, TrainingRow]]) -> Values:
    """The best point of a search along one constant after the other."""
    best = {name: fitted()[name].value for name in GRID}
    for _ in range(ROUNDS):
        for name, grid in GRID.items():
            best[name] = min(grid, key=lambda value, name=name: loss(cases, best | {name: value}))
    return best


def newest(cases: list[tuple[StepCase, TrainingRow]]) -> set[str]:
    """Ids of the newest release of every (model, GPU) that has several."""
    releases: dict[tuple[str, str], set[str]] = {}
    for case, _ in cases:
        releases.setdefault((case.model, case.gpu), set()).add(case.release)
    return {case.id for case, _ in cases if len(releases[case.model, case.gpu]) > 1 and case.release == max(releases[case.model, case.gpu])}


def report(name: str, cases: list[tuple[StepCase, TrainingRow]], out: Callable[[StepCase], bool], whole: Values) -> None:
    """Errors of left-out rows, with a fit without them and with the fit on all."""
    kept = [pair for pair in cases if not out(pair[0])]
    left = [pair for pair in cases if out(pair[0])]
    own = fit(kept)
    apart, along = (100 * loss(left, values) for values in (own, whole))
    print(f"{name}: {len(left)} rows left out, error {apart:.1f} %, fitted with them {along:.1f} %, ratio {apart / along:.2f}  {own}")


def main() -> None:
    """Print the fit, and the fits with rows left out."""
    rows = {row.id: row for row in TrainingRow.read()}
    cases = [(case, rows[case.id]) for case in step_cases(list(rows.values())) if case.judged and case.group in GROUPS]
    new = newest(cases)
    whole = fit(cases)
    print(f"all {len(cases)} rows: {100 * loss(cases, whole):.1f} %  {whole}")
    report("newest release", cases, lambda case: case.id in new, whole)
    for gpu in sorted({case.gpu for case, _ in cases}):
        report(gpu, cases, lambda case, gpu=gpu: case.gpu == gpu, whole)


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, Unsupported) as error:
        raise SystemExit(str(error)) from None
