"""Constants of one cluster from its owner's measurements: only the constants that the measurements determine.

A constant is fitted when predictions depend on it and it can be told from the other constants: its standard error, from
the Jacobian of the predictions' logarithms and the size of the residuals, stays below `MOST_ERROR`. A stage whose fit
predicts held-out shapes worse than the packaged constants is not taken. All other constants keep their packaged values,
each with the reason.

Measurements of a bare GPU and its host (`BARE`: a copy in memory, a small kernel, a launch) each fix a constant, so `calibrate` reads them. They
judge no prediction, so `validate` leaves them out. Their families are not registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dysharp.base import F64, I64, Amounts, Bools, Cells, Texts, frozen, frozen_keywords
from dysharp.costs import host_constant, moe, operators
from dysharp.measured.family import Case, Classified, Constants, Family, Level, Missing, Parsed, classify, families_in_bars, parse
from dysharp.measured.fitting import LEAST_EFFECT, LEAST_ROWS, LEAST_SPREAD, MOST_ERROR, Free, fit, spread_of, standard_errors
from dysharp.measured.hold_out import folds, label_of
from dysharp.measured.measurements import GPUS, NO_DOMAIN, NO_SWITCH, Measurement, Unsupported, gpu_of, is_weak, number, out_of_scope, spans_domains
from dysharp.measured.predictions import ClosedForms, Errors, errors_of, measured_values
from dysharp.measured.refit import GIVEN, family_shares, level_of, stages
from dysharp.specs import Gpu, list_gpus, load_gpu
from dysharp.specs.fitted import Fitted, values_of


@frozen_keywords
class _CopyCase(Case):
    """A copy with `n_bytes` of reads and writes in sum."""

    n_bytes: float


@frozen_keywords
class _LaunchCase(Case):
    """A launch of `calls` empty kernels."""

    calls: float = 1.0


def _copy(m: Measurement) -> _CopyCase:
    n_bytes = 2 * number(m, "bytes")
    return _CopyCase(gpu=gpu_of(m), n_bytes=n_bytes, work=n_bytes / 1e3, shape="copy")


def _copy_us(case: _CopyCase, gpu: Gpu, constants: Constants) -> F64:
    return operators.hbm_us(gpu, constants, case.n_bytes)


def _is_copy(m: Measurement) -> bool:
    size = m.config.get("bytes")
    return m.kind == "hbm_bandwidth" and m.unit == "GB/s" and isinstance(size, (int, float)) and size > 0


def _launches(name: str, timing: str, shape: str, us: Callable[[Gpu, Constants], float]) -> Family:
    """Launches of empty kernels with this `timing`, of `us` each."""
    return Family(
        name, lambda m: m.kind == "kernel_launch" and m.unit == "us" and m.config.get("timing") == timing and bool(m.value),
        lambda m: _LaunchCase(gpu=gpu_of(m), shape=shape), lambda case, gpu, constants: np.asarray(case.calls) * us(gpu, constants),
        in_bars=False, level=Level.GPU,
    )  # fmt: skip


MEMORY = Family("memory", _is_copy, _copy, _copy_us, in_bars=False, level=Level.GPU)
LAUNCH = _launches("launch", "cuda graph", "launch", operators.launch_us)
HOST = _launches("host", "eager", "eager launch", lambda gpu, constants: moe.host_us(gpu, constants, 1.0))
"""The host's launch time is measured directly and needs no fit."""
BARE = (MEMORY, LAUNCH, HOST)


STEP = 1e-4  # step of a logarithm in the Jacobian
ALONE = 0.99  # a prediction that grows in step with one constant is a measurement of it
PULL = 1 / 6  # a constant 30 % away from its packaged value costs as much as a measurement that is 5 % off
PULL_ROWS = 3
BEYOND = "of a family beyond the bars: no constant is fitted to its rows"
OTHER_GPU = re.compile(r"(?<![A-Za-z])(?:\d+x)?(?:GH|GB|MI|RTX|[AHBLV])\s?\d{2,4}")


@frozen
class ClusterFit:
    """The result of a fit to the measurements of one cluster.

    | field | holds |
    |---|---|
    | `fitted` | new values by constant |
    | `before` | packaged values of all constants |
    | `refused` | constant -> why it kept its packaged value |
    | `errors` | per family, before, after and held out; the last entry is "all" |
    | `n_rows` | measurements used |
    | `skipped` | measurements that are not used, each with the reason |
    """

    fitted: Mapping[str, float]
    before: Mapping[str, float]
    refused: Mapping[str, str]
    errors: tuple[_Improvement, ...]
    n_rows: int
    skipped: tuple[tuple[Measurement, str], ...]


@frozen
class _Improvement:
    """Errors of one family (or "all") with the packaged constants and with the fitted ones.

    `held_out`: with constants fitted without the measurement's shape; None where there is one shape only.
    """

    family: str
    shapes: int
    before: Errors
    after: Errors
    held_out: Errors | None


def measurements_of(
    measurements: Sequence[Measurement], gpu: str, between: str = NO_DOMAIN
) -> tuple[list[Measurement], list[tuple[Measurement, str]]]:
    """(measurements of a cluster's GPU with its name as hardware, other measurements with the reason).

    A measurement that names no GPU is of this cluster. `between`: why measurements over several NVLink domains are left out;
    "": they are this cluster's, too.
    """
    own, others = list[Measurement](), list[tuple[Measurement, str]]()
    for m in measurements:
        named = _gpu_named(m.hardware) or gpu
        reason = f"of {named}" if named != gpu else out_of_scope(m)
        reason = {NO_DOMAIN: between, NO_SWITCH: ""}.get(reason, reason)  # without a switch, `parse` refuses kernels of several GPUs
        if reason:
            others.append((m, reason))
        else:
            own.append(replace(m, hardware=_as_hardware(m, gpu)))
    return own, others


def _as_hardware(m: Measurement, gpu: str) -> str:
    """The name of the GPU. A measurement over several domains keeps its text, which may be what says so."""
    if not spans_domains(m):
        return gpu
    text = next((text for text, name in GPUS if name == gpu), gpu)
    return m.hardware if _gpu_named(m.hardware) else f"{text}: {m.hardware}"


def _gpu_named(hardware: str) -> str:
    """The packaged GPU that a text names; the text itself if it names another GPU; "" if it names no GPU."""
    if hardware in list_gpus():
        return hardware
    known = next((name for text, name in GPUS if text in hardware), "")
    if known and "GH200" not in hardware:
        return known
    other = OTHER_GPU.search(hardware)
    return other[0] if other else ""


def _with_bare(classified: Classified) -> Classified:
    """With the measurements of a bare GPU, each of which fixes a constant."""
    parsed, missing = list(classified.parsed), list[Missing]()
    for entry in classified.missing:
        family = next((family for family in BARE if family.belongs(entry.measurement)), None)
        try:
            parsed.append(parse(entry.measurement, family))
        except Unsupported:
            missing.append(entry)
    return Classified(tuple(parsed), tuple(missing))


def rows_of(measurements: Sequence[Measurement], gpu: str, more: Sequence[str] = ()) -> tuple[list[Parsed], list[tuple[Measurement, str]]]:
    """(rows that closed forms predict for this GPU, others with the reason). `more`: families beyond the bars that count, too."""
    own, others = measurements_of(measurements, gpu)
    everything = classify(own)
    classified, beyond = _with_bare(everything.in_bars()), everything.beyond_bars()
    parsed = [entry for entry in classified.parsed if not is_weak(entry.measurement)]
    skipped = [*others, *((entry.measurement, entry.reason) for entry in classified.missing)]
    wanted = [entry for entry in beyond.parsed if entry.family.name in more]
    parsed += wanted
    skipped += [(entry.measurement, BEYOND) for entry in beyond.entries if entry not in wanted]
    weak = [entry.measurement for entry in classified.parsed if is_weak(entry.measurement)]
    return parsed, skipped + [(m, f"marked {m.config['quality']}") for m in weak]


def fit_cluster(measurements: Sequence[Measurement], gpu: str, constants: Mapping[str, Fitted]) -> ClusterFit:
    """Fit the constants that these measurements determine, beginning at `constants`. The fit uses closed forms only."""
    parsed, skipped = rows_of(measurements, gpu)
    before = values_of(constants)
    if not parsed:
        return ClusterFit({}, before, dict.fromkeys(constants, "no row is predicted"), (), 0, tuple(skipped))
    taken = [families for families, _ in stages(constants)]
    while True:
        task = _Task(parsed, gpu, constants, taken)
        fitted, refused = task.run(np.ones(len(parsed), bool))
        errors = _errors(parsed, before, before | fitted, task.held_out())
        worse = next((families for families in taken if _is_worse(families, errors)), None)
        if worse is None:
            return ClusterFit(fitted, before, refused, errors, len(parsed), tuple(skipped))
        taken.remove(worse)


def _is_worse(families: Sequence[str], errors: Sequence[_Improvement]) -> bool:
    """Whether a stage's fit predicts held-out shapes of all its families worse than the packaged constants do."""
    ratios = [e.held_out.median_ape / max(e.before.median_ape, LEAST_SPREAD) for e in errors if e.family in families and e.held_out is not None]
    return bool(ratios) and float(np.mean(ratios)) > 1


@frozen
class _Task:
    """The data that all fits to one set of measurements share. `taken`: the stages to fit."""

    parsed: Sequence[Parsed]
    gpu: str
    constants: Mapping[str, Fitted]
    taken: Sequence[Texts]

    def run(self, keep: Bools) -> tuple[Amounts, Cells]:
        """(fitted, refused) on the measurements of the mask `[parsed]`.

        The stages run in the order of the packaged fit. A stage uses the constants of earlier stages.
        """
        parsed = [entry for entry, kept in zip(self.parsed, keep, strict=True) if kept]
        values = values_of(self.constants)
        host = host_constant(load_gpu(self.gpu), values)
        fitted, refused = _host_of(parsed, self.constants[host]), Cells()
        values |= fitted
        for families, stage in stages(self.constants):
            alone = level_of(families) == Level.GPU
            names = stage + ([host] if alone and host not in fitted else [])
            asked = (*families, *(family.name for family in BARE if family is not HOST)) if alone else families
            members = [entry for entry in parsed if entry.family.name in asked]
            if not members:
                refused |= dict.fromkeys(names, f"no row of {', '.join(families)}")
                continue
            if families not in self.taken:
                why = f"a fit to {', '.join(families)} predicts held-out shapes worse than the packaged values"
                refused |= dict.fromkeys(names, why)
                continue
            free, reasons = _determined(members, names, values)
            refused |= reasons
            if free:
                new = _fit_measurements(members, free, self.constants, values)
                fitted |= new
                values |= new
        given = [name for name, c in self.constants.items() if c.stage == GIVEN and name not in fitted | refused]
        hosts = {name: "the host of another machine" for name in given if name.endswith("host_call_us")}
        return fitted, refused | dict.fromkeys(given, "not fitted to rows of kernels") | hosts

    def held_out(self) -> F64:
        """`[parsed]` predictions by constants fitted without the shape; NaN if no other measurement is left."""
        labels = [label_of(entry, "shape") for entry in self.parsed]
        out = np.full(len(labels), np.nan)
        for fold in folds(labels, "shape"):
            held = np.array([label in fold for label in labels])
            if held.all():
                continue
            values = values_of(self.constants) | self.run(~held)[0]
            members = np.flatnonzero(held).tolist()
            out[members] = ClosedForms([self.parsed[i] for i in members]).values(values)
        return out


def _host_of(parsed: Sequence[Parsed], host: Fitted) -> Amounts:
    """The host's constant: the median of its measured launches. Empty without a measured launch."""
    launches = measured_values([entry for entry in parsed if entry.family is HOST])
    return {host.name: float(np.clip(np.median(launches), host.low, host.high))} if len(launches) else {}


def _fit_measurements(parsed: Sequence[Parsed], names: Sequence[str], constants: Mapping[str, Fitted], values: Mapping[str, float]) -> Amounts:
    forms, measured, share = ClosedForms(parsed), measured_values(parsed), family_shares(parsed)
    free = [Free(name, values[name], constants[name].low, constants[name].high) for name in names]
    packaged = np.array([values[name] for name in names])

    def predict(trial: Mapping[str, float]) -> F64:
        """The predictions, and one entry per constant that pulls it to its packaged value."""
        away = np.array([trial[name] for name in names]) / packaged
        return np.concatenate([forms.values(trial), away**PULL])

    weights = np.concatenate([share, np.full(len(names), PULL_ROWS * share.mean())])
    return fit(free, values, predict, np.concatenate([measured, np.ones(len(names))]), weights=weights)


def _determined(parsed: Sequence[Parsed], names: Sequence[str], values: Mapping[str, float]) -> tuple[list[str], Cells]:
    """(constants that the measurements determine, reasons for the other constants).

    The least certain constant is dropped until all remaining constants are certain.
    """
    slopes, residual = _slopes(parsed, names, values)
    reasons = Cells()
    kept = []
    for i, name in enumerate(names):
        moved = np.abs(slopes[:, i])
        n = int((moved >= LEAST_EFFECT).sum())
        if n >= LEAST_ROWS or (moved > ALONE).any():
            kept.append(i)
        elif n == 0:
            reasons[name] = "no row depends on it"
        else:
            reasons[name] = "only 1 row depends on it" if n == 1 else f"only {n} rows depend on it"
    while kept:
        error = standard_errors(slopes[:, kept], residual)
        worst = int(error.argmax())
        if error[worst] <= MOST_ERROR and len(parsed) > len(kept):
            break
        reasons[names[kept[worst]]] = _why(slopes, kept, worst, float(error[worst]), names)
        del kept[worst]
    return [names[i] for i in kept], reasons


def _slopes(parsed: Sequence[Parsed], names: Sequence[str], values: Mapping[str, float]) -> tuple[F64, float]:
    """`[parsed, names]` d ln(prediction) / d ln(constant), and the spread of the residuals around their median."""
    forms = ClosedForms(parsed)
    base = np.log(forms.values(values))
    moved = [np.log(forms.values({**values, name: values[name] * np.exp(STEP)})) for name in names]
    off = base - np.log(measured_values(parsed))
    return np.stack([(column - base) / STEP for column in moved], axis=1), spread_of(off)


def _why(slopes: F64, kept: Sequence[int], worst: int, error: float, names: Sequence[str]) -> str:
    """The reason against a constant: its error, and the constant that has the same effect on the measurements."""
    own = slopes[:, kept[worst]]
    size = np.linalg.norm(own) * np.linalg.norm(slopes[:, kept], axis=0)
    alike = np.abs(own @ slopes[:, kept]) / np.maximum(size, 1e-12)
    alike[worst] = 0.0
    other = int(alike.argmax())
    known = f"known to {100 * min(error, 9.99):.0f} % only"
    if len(kept) > 1 and alike[other] > 0.5:
        return f"{known}: the rows cannot separate this constant from {names[kept[other]]}"
    return known


def _errors(parsed: Sequence[Parsed], before: Mapping[str, float], after: Mapping[str, float], held: F64) -> tuple[_Improvement, ...]:
    measured, forms = measured_values(parsed), ClosedForms(parsed)
    old, new = forms.values(before), forms.values(after)

    def improvement(name: str, members: I64) -> _Improvement:
        shapes = len({(parsed[i].family.name, parsed[i].case.shape) for i in members})
        known = members[np.isfinite(held[members])]
        outside = errors_of(held[known], measured[known]) if shapes > 1 and len(known) else None
        first, last = (errors_of(values[members], measured[members]) for values in (old, new))
        return _Improvement(name, shapes, first, last, outside)

    names = np.array([entry.family.name for entry in parsed])
    order = (*families_in_bars(), *(family.name for family in BARE))
    own = [improvement(name, np.flatnonzero(names == name)) for name in order if name in names]
    return (*own, improvement("all", np.arange(len(parsed))))
