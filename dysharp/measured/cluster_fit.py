"""Constants of one machine from its owner's measurements: only those that the rows determine, with whole shapes held out.

A constant is fitted when rows depend on it and it can be told from the others: its standard error, from the Jacobian of the predictions'
logarithms and the size of the residuals, stays below `MOST_ERROR`. A stage whose fit predicts held-out shapes worse than the packaged constants is
not taken. The rest keep their packaged values, each with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.calibration import GIVEN, family_shares, folds, stages
from dysharp.analysis.families import ASK, in_scope
from dysharp.analysis.fitting import Free, fit
from dysharp.analysis.measured import Measurement
from dysharp.analysis.queries import GPUS, Query
from dysharp.analysis.validation import Case, Errors, Sorted, errors_of, sort_rows
from dysharp.compute.moe import host_constant
from dysharp.specs.fitted import Fitted
from dysharp.specs.gpu import list_gpus, load_gpu

F64 = NDArray[np.float64]
STEP = 1e-4  # of a logarithm
LEAST_EFFECT = 0.02  # of a prediction, for a change of the constant by its whole: below, a row does not depend on it
LEAST_ROWS = 3
MOST_ERROR = 0.2  # standard error of a fitted constant, as part of it
ALONE = 0.99  # a prediction that grows in step with one constant is a measurement of it
RESIDUAL = 0.02  # measurements repeat no better than this
PULL = 1 / 6  # a constant 30 % away from its packaged value costs as much as a row that is 5 % off
PULL_ROWS = 3
OTHER_GPU = re.compile(r"(?<![A-Za-z])(?:\d+x)?(?:GH|GB|MI|RTX|[AHBLV])\s?\d{2,4}")
BARE = ("memory", "launch")
HOST = "host"
"""Family of eager launches: they are the host's constant, which no fit has to find."""
HOST_STAGE = "dense-gemm"


@dataclass(frozen=True, slots=True)
class MachineFit:
    """`fitted`: new values; `refused`: constant -> why it kept its packaged value; `errors`: per family before, after and held out; `skipped`:
    rows that are not used, each with the reason."""

    fitted: Mapping[str, float]
    before: Mapping[str, float]
    refused: Mapping[str, str]
    errors: tuple[Improvement, ...]
    n_rows: int
    skipped: tuple[tuple[Measurement, str], ...]


@dataclass(frozen=True, slots=True)
class Improvement:
    """Errors of one family (or "all") with the packaged constants, the fitted ones, and those fitted without a row's shape (None: one shape only)."""

    family: str
    shapes: int
    before: Errors
    after: Errors
    held_out: Errors | None


def rows_of_machine(rows: Sequence[Measurement], gpu: str) -> tuple[list[Measurement], list[tuple[Measurement, str]]]:
    """Rows of that GPU, their hardware replaced by its name; and those that name another GPU, with the reason."""
    mine, others = [], list[tuple[Measurement, str]]()
    for row in rows:
        named = _gpu_named(row.hardware) or gpu
        if named == gpu and in_scope(row):
            mine.append(replace(row, hardware=gpu))
        else:
            why = f"of {named}" if named != gpu else "no NVIDIA machine, or more than one NVLink domain"
            others.append((row, why))
    return mine, others


def _with_bare(found: Sorted, gpu: str) -> Sorted:
    """With the measurements of a bare GPU, which are too plain to judge a prediction by but fix a constant."""
    cases, missing = list(found.cases), []
    for entry in found.missing:
        family, query = _bare(entry.row, gpu)
        if query is None:
            missing.append(entry)
        else:
            cases.append(Case(entry.row, family, query))
    return Sorted(tuple(cases), tuple(missing))


def _bare(row: Measurement, gpu: str) -> tuple[str, Query | None]:
    """A copy in memory (reads plus writes), a small kernel between others in a CUDA graph, or one that the host launches."""
    size = row.config.get("bytes")
    if row.kind == "hbm_bandwidth" and row.unit == "GB/s" and isinstance(size, (int, float)) and size > 0:
        return "memory", Query("memory_copy", gpu, (), {"bytes": 2.0 * size}, work=2.0 * size / 1e3, shape="copy")
    if row.kind == "kernel_launch" and row.unit == "us" and row.config.get("timing") == "cuda graph":
        return "launch", Query("launch", gpu, (), {"calls": 1.0}, shape="launch")
    if row.kind == "kernel_launch" and row.unit == "us" and row.config.get("timing") == "eager" and row.value:
        return HOST, Query("host_call", gpu, (), {"calls": 1.0}, shape="eager launch")
    return "", None


def _gpu_named(hardware: str) -> str:
    """The packaged GPU that a text names, the text itself where it names another one, "" where it names none."""
    other = OTHER_GPU.search(hardware)
    known = next((name for text, name in GPUS if text in hardware), "")
    return hardware if hardware in list_gpus() else known if known and "GH200" not in hardware else other[0] if other else ""


def fit_machine(rows: Sequence[Measurement], gpu: str, constants: Mapping[str, Fitted]) -> MachineFit:
    """Fit what these rows determine, beginning at `constants`."""
    mine, others = rows_of_machine(rows, gpu)
    found = _with_bare(sort_rows(mine), gpu)
    skipped = (*others, *((missing.row, missing.reason) for missing in found.missing))
    before = {name: constant.value for name, constant in constants.items()}
    if not found.cases:
        return MachineFit({}, before, dict.fromkeys(constants, "no row is predicted"), (), 0, skipped)
    all_stages = [tuple(families) for families, _ in stages(constants)]
    taken = list(all_stages)
    while True:
        fit_of = _Fit(found, gpu, constants, taken)
        fitted, refused = fit_of.run(np.ones(len(found.cases), bool))
        errors = _errors(found, before, before | fitted, fit_of.held_out())
        worse = next((stage for stage in taken if _is_worse(stage, errors)), None)
        if worse is None:
            return MachineFit(fitted, before, refused, errors, len(found.cases), skipped)
        taken.remove(worse)


def _is_worse(stage: Sequence[str], errors: Sequence[Improvement]) -> bool:
    """Whether a stage's fit predicts held-out shapes worse than the packaged constants do, its families together."""
    ratios = [e.held_out.median_ape / max(e.before.median_ape, RESIDUAL) for e in errors if e.family in stage and e.held_out is not None]
    return bool(ratios) and float(np.mean(ratios)) > 1


@dataclass(frozen=True, slots=True)
class _Fit:
    """What all fits on one set of rows share; `taken` are the stages that are fitted at all."""

    found: Sorted
    gpu: str
    constants: Mapping[str, Fitted]
    taken: Sequence[tuple[str, ...]]

    def run(self, keep: NDArray[np.bool_]) -> tuple[dict[str, float], dict[str, str]]:
        """(fitted, refused) on the rows of `keep`."""
        return _fit(self.found, self.gpu, self.constants, self.taken, keep)

    def held_out(self) -> F64:
        """`[cases]` predictions of each row by constants fitted without its shape; NaN where nothing else is left."""
        label = [f"{case.family}: {case.query.shape}" for case in self.found.cases]
        out = np.full(len(label), np.nan)
        for fold in folds(label, "shape"):
            held = np.array([name in fold for name in label])
            if held.all():
                continue
            values = {name: c.value for name, c in self.constants.items()} | self.run(~held)[0]
            at = np.flatnonzero(held)
            out[at] = self.found.batch(at.tolist()).values(values)
        return out


def _fit(
    found: Sorted, gpu: str, constants: Mapping[str, Fitted], taken: Sequence[tuple[str, ...]], keep: NDArray[np.bool_]
) -> tuple[dict[str, float], dict[str, str]]:
    """Stage by stage, as the packaged constants were: a later stage sees what an earlier one found."""
    values = {name: constant.value for name, constant in constants.items()}
    host = host_constant(load_gpu(gpu), values)
    fitted, refused = _host_of(found, keep, constants[host]), dict[str, str]()
    values |= fitted
    for families, stage in stages(constants):
        names = stage + ([host] if HOST_STAGE in families and host not in fitted else [])
        asked = (*families, *BARE) if HOST_STAGE in families else families
        at = [i for i, case in enumerate(found.cases) if keep[i] and case.family in asked]
        if not at:
            refused |= dict.fromkeys(names, f"no row of {', '.join(families)}")
            continue
        if tuple(families) not in taken:
            refused |= dict.fromkeys(names, f"a fit to {', '.join(families)} predicts held-out shapes worse than the packaged values")
            continue
        free, reasons = _determined(found, at, names, values)
        refused |= reasons
        if free:
            new = _fit_rows(found, at, free, constants, values)
            fitted |= new
            values |= new
    refused |= {name: "the host of another machine" for name, c in constants.items() if c.stage == GIVEN and name not in fitted | refused}
    return fitted, refused


def _host_of(found: Sorted, keep: NDArray[np.bool_], host: Fitted) -> dict[str, float]:
    """The host's constant as it was measured, launch by launch; empty without such a row."""
    launches = [case.row.value for case, kept in zip(found.cases, keep, strict=True) if kept and case.family == HOST]
    return {host.name: float(np.clip(np.median(np.array(launches, np.float64)), host.low, host.high))} if launches else {}


def _fit_rows(
    found: Sorted, at: Sequence[int], names: Sequence[str], constants: Mapping[str, Fitted], values: Mapping[str, float]
) -> dict[str, float]:
    batch, measured = found.batch(at), found.measured()[np.array(at)]
    share = family_shares(found, at)
    free = [Free(name, values[name], constants[name].low, constants[name].high) for name in names]
    packaged = np.array([values[name] for name in names])

    def predict(at: Mapping[str, float]) -> F64:
        """The rows, and a pseudo-row per constant that pulls it to its packaged value where the rows say little."""
        away = np.array([at[name] for name in names]) / packaged
        return np.concatenate([batch.values(at), away**PULL])

    weights = np.concatenate([share, np.full(len(names), PULL_ROWS * share.mean())])
    return fit(free, values, predict, np.concatenate([measured, np.ones(len(names))]), weights=weights)


def _determined(found: Sorted, at: Sequence[int], names: Sequence[str], values: Mapping[str, float]) -> tuple[list[str], dict[str, str]]:
    """Which constants the rows determine, and why not the others. The least certain one is dropped until all others are certain."""
    slopes, residual = _slopes(found, at, names, values)
    reasons = dict[str, str]()
    kept = []
    for i, name in enumerate(names):
        moved = np.abs(slopes[:, i])
        n = int((moved >= LEAST_EFFECT).sum())
        if n >= LEAST_ROWS or (moved > ALONE).any():
            kept.append(i)
        else:
            reasons[name] = "no row depends on it" if n == 0 else f"only {n} row{'s' if n > 1 else ''} depend{'' if n > 1 else 's'} on it"
    while kept:
        normal = slopes[:, kept].T @ slopes[:, kept]
        error = residual * np.sqrt(np.maximum(np.diag(np.linalg.pinv(normal + 1e-9 * np.eye(len(kept)))), 0.0))
        worst = int(error.argmax())
        if error[worst] <= MOST_ERROR and len(at) > len(kept):
            break
        reasons[names[kept[worst]]] = _why(slopes, kept, worst, float(error[worst]), names)
        del kept[worst]
    return [names[i] for i in kept], reasons


def _slopes(found: Sorted, at: Sequence[int], names: Sequence[str], values: Mapping[str, float]) -> tuple[F64, float]:
    """`[rows, constants]` d ln(prediction) / d ln(constant), and the spread of the residuals around their median."""
    batch, measured = found.batch(at), found.measured()[np.array(at)]
    base = np.log(batch.values(values))
    moved = [np.log(batch.values({**values, name: values[name] * np.exp(STEP)})) for name in names]
    off = base - np.log(measured)
    spread = 1.4826 * float(np.median(np.abs(off - np.median(off))))  # of a normal distribution, from its median deviation
    return np.stack([(column - base) / STEP for column in moved], axis=1), max(spread, RESIDUAL)


def _why(slopes: F64, kept: Sequence[int], worst: int, error: float, names: Sequence[str]) -> str:
    """The constant that the rows cannot tell it from, if there is one."""
    mine = slopes[:, kept[worst]]
    size = np.linalg.norm(mine) * np.linalg.norm(slopes[:, kept], axis=0)
    alike = np.abs(mine @ slopes[:, kept]) / np.maximum(size, 1e-12)
    alike[worst] = 0.0
    other = int(alike.argmax())
    sure = f"known to {100 * min(error, 9.99):.0f} % only"
    return f"{sure}: the rows do not tell it from {names[kept[other]]}" if len(kept) > 1 and alike[other] > 0.5 else sure


def _errors(found: Sorted, before: Mapping[str, float], after: Mapping[str, float], held: F64) -> tuple[Improvement, ...]:
    measured, batch = found.measured(), found.batch()
    old, new = batch.values(before), batch.values(after)

    def improvement(name: str, cases: Sequence[tuple[int, Case]]) -> Improvement:
        at = np.array([i for i, _ in cases])
        shapes = len({(case.family, case.query.shape) for _, case in cases})
        known = at[np.isfinite(held[at])]
        outside = errors_of(held[known], measured[known]) if shapes > 1 and len(known) else None
        return Improvement(name, shapes, errors_of(old[at], measured[at]), errors_of(new[at], measured[at]), outside)

    numbered = list(enumerate(found.cases))
    families = [family for family in (*ASK, *BARE, HOST) if any(case.family == family for case in found.cases)]
    parts = [improvement(family, [(i, case) for i, case in numbered if case.family == family]) for family in families]
    return (*parts, improvement("all", numbered))
