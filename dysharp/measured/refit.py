"""The fit of the packaged constants, stage by stage, and the same fit with whole shapes or whole GPUs held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.families import ASK
from dysharp.analysis.fitting import Free, fit
from dysharp.analysis.predictors import Told
from dysharp.analysis.validation import Sorted, errors_of
from dysharp.specs.fitted import Fitted
from dysharp.specs.gpu import load_gpu

F64 = NDArray[np.float64]
GIVEN = "given"
"""Stage of an input of a machine (its host's launch time): read off rows as its owner would measure it, not fitted by least squares, and kept
when the GPU is held out."""
ORDER = ("dense-gemm", "nccl", "deepep-dispatch", "trtllm-a2a", "fused-layer")
"""First families of the stages, in the order they are fitted: one GPU alone, then the link, then who uses both."""
SIBLING = {"hopper.": "blackwell.", "blackwell.": "hopper."}
MOST_FOLDS = 8
ROUNDS = 3
HOLD_OUTS = ("shape", "gpu")


def stages(constants: Mapping[str, Fitted]) -> list[tuple[tuple[str, ...], list[str]]]:
    """(families, constants) in the order they are fitted: a later stage sees what an earlier one found."""
    found: dict[str, list[str]] = {}
    for name, constant in constants.items():
        if constant.stage != GIVEN:
            found.setdefault(constant.stage, []).append(name)
    ordered = sorted(found.items(), key=lambda item: ORDER.index(item[0].split("+")[0]))
    return [(tuple(stage.split("+")), names) for stage, names in ordered]


def ratios(found: Sorted, constants: Mapping[str, Fitted], predicted: F64) -> F64:
    """`[cases]` what `validate` predicts over what the closed form of the row says, with the same constants."""
    return predicted / found.batch().values({name: c.value for name, c in constants.items()})


def refit_programs(found: Sorted, constants: Mapping[str, Fitted], jobs: int = 1, tell: Told | None = None) -> dict[str, Fitted]:
    """Constants that bring the Programs nearest to the measurements.

    A least-squares fit asks for thousands of predictions, so it moves the closed forms, each row scaled by its Program over its closed form;
    the Programs are run again with what it finds, `ROUNDS` times. Programs have few tokens: longer rows follow the line (`programs`).
    """
    current = dict(constants)
    for _ in range(ROUNDS if any(case.ask is not None for case in found.cases) else 1):
        found, predicted = found.answered({name: c.value for name, c in current.items()}, jobs, tell)
        current = refit(found, current, ratio=ratios(found, current, predicted))
    return current


def refit(
    found: Sorted, constants: Mapping[str, Fitted], keep: NDArray[np.bool_] | None = None, ratio: F64 | None = None
) -> dict[str, Fitted]:
    """Constants fitted on the cases (those of `keep`), every family of a stage weighing the same, whatever its number of rows.

    `ratio`: by what the closed form of each case is multiplied (`ratios`). A constant of one architecture without a row left takes the other
    architecture's value: it must not remember rows that are held out. What is "given" is an input of a machine and stays.
    """
    scaled = np.ones(len(found.cases)) if ratio is None else ratio
    used = np.ones(len(found.cases), bool) if keep is None else keep
    values = {name: constant.value for name, constant in constants.items()}
    for families, names in stages(constants):
        at = [i for i, case in enumerate(found.cases) if used[i] and case.family in families]
        if not at:
            continue
        there = {load_gpu(found.cases[i].query.gpu).arch for i in at}
        free = [name for name in names if not _is_of_other(name, there)]
        values |= _fit_stage(found, at, free, constants, values, scaled)
        for name in set(names) - set(free):
            values[name] = _borrowed(name, values)
    return {name: replace(constant, value=float(np.clip(values[name], constant.low, constant.high))) for name, constant in constants.items()}


def _is_of_other(name: str, there: set[str]) -> bool:
    """Whether a constant belongs to an architecture without rows."""
    return name.split(".", maxsplit=1)[0] in {"hopper", "blackwell"} - there


def _borrowed(name: str, values: Mapping[str, float]) -> float:
    for prefix, other in SIBLING.items():
        if name.startswith(prefix):
            return values.get(other + name.removeprefix(prefix), 1.0)
    return values[name]


def family_shares(found: Sorted, at: Sequence[int]) -> F64:
    """`[rows]` weights with which every family counts 100, however many rows it has."""
    family = [found.cases[i].family for i in at]
    return np.array([1 / family.count(name) for name in family]) * 100


def _fit_stage(
    found: Sorted, at: Sequence[int], names: Sequence[str], constants: Mapping[str, Fitted], values: Mapping[str, float], ratio: F64
) -> dict[str, float]:
    # What a row is measured at, as its closed form would have to say it.
    batch, measured = found.batch(at), (found.measured() / ratio)[np.array(at)]
    share = family_shares(found, at)
    free = [Free(name, constants[name].value, constants[name].low, constants[name].high) for name in names]
    return fit(free, values, batch.values, measured, weights=share)


def hold_out(
    found: Sorted, constants: Mapping[str, Fitted], by: str, predicted: F64, jobs: int = 1, tell: Told | None = None
) -> list[dict[str, Any]]:
    """Per family and for their mean ("macro"): median error with all rows, and of rows while their shape or GPU was held out."""
    return hold_out_table(found, predicted, held_out(found, constants, by, predicted, jobs, tell), by)


def held_out(found: Sorted, constants: Mapping[str, Fitted], by: str, predicted: F64, jobs: int = 1, tell: Told | None = None) -> F64:
    """`[cases]` predictions of every row while its shape or GPU was held out of the fit.

    Whole groups are held out, never random rows; shapes are dealt into at most `MOST_FOLDS` folds of whole shapes per family, a GPU is a fold.
    `predicted`: `[cases]` with all rows, by `constants`. A held-out row is judged as any other: its Program is run with the fold's constants.
    """
    ratio = ratios(found, constants, predicted)
    label = [case.query.gpu if by == "gpu" else f"{case.family}: {case.query.shape}" for case in found.cases]
    outs = [np.array([name in fold for name in label]) for fold in folds(label, by)]
    parts = [(out, {name: c.value for name, c in refit(found, constants, ~out, ratio).items()}) for out in outs]
    return found.predict_parts(parts, jobs, tell)


def folds(label: Sequence[str], by: str) -> list[set[str]]:
    """Whole groups; the k-th shape of every family goes into fold k modulo `MOST_FOLDS`."""
    names = sorted(set(label))
    if by == "gpu":
        return [{name} for name in names]
    folds: list[set[str]] = [set() for _ in range(MOST_FOLDS)]
    seen: dict[str, int] = {}
    for name in names:
        family = name.split(":", maxsplit=1)[0]
        folds[seen.get(family, 0) % MOST_FOLDS].add(name)
        seen[family] = seen.get(family, 0) + 1
    return [fold for fold in folds if fold]


def hold_out_table(found: Sorted, fitted_all: F64, held: F64, by: str) -> list[dict[str, Any]]:
    """Median errors per family of `fitted_all` and of `held`, both `[cases]`, and their mean."""
    rows, measured = list[dict[str, Any]](), found.measured()
    for family in ASK:
        at = np.array([i for i, case in enumerate(found.cases) if case.family == family], np.int64)
        if len(at) == 0:
            continue
        inside, outside = (errors_of(p[at], measured[at]).median_ape for p in (fitted_all, held))
        n_groups = len({found.cases[i].query.gpu if by == "gpu" else found.cases[i].query.shape for i in at})
        row: dict[str, Any] = {"by": by, "family": family, "n": len(at), "groups": n_groups, "fit": inside, "held_out": None, "ratio": None}
        # With a single group nothing is left to fit on: the question has no answer.
        rows.append(row if n_groups == 1 else row | {"held_out": outside, "ratio": outside / inside})
    judged = [row for row in rows if row["held_out"] is not None]
    if judged:
        mean_fit, mean_out = (float(np.mean([row[key] for row in judged])) for key in ("fit", "held_out"))
        n_groups = sum(row["groups"] for row in judged)
        n = sum(row["n"] for row in judged)
        rows.append({"by": by, "family": "macro", "n": n, "groups": n_groups, "fit": mean_fit, "held_out": mean_out, "ratio": mean_out / mean_fit})
    return rows


def to_toml(constants: Mapping[str, Fitted], head: str) -> str:
    """The constants as the text of `fitted.toml`, `head` as its comment."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for c in constants.values():
        lines += ["", f"[{c.name}]", f"value = {c.value:.4g}", f"low = {c.low:g}", f"high = {c.high:g}", f"unit = {_quoted(c.unit)}",
                  f"meaning = {_quoted(c.meaning)}", f"stage = {_quoted(c.stage)}", f"fitted_on = {_quoted(c.fitted_on)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
