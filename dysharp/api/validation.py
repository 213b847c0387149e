"""The verb `validate`: predictions against the packaged measurements or a file of them, and rows of a user one by one: measured, predicted, error."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from dysharp.api.arguments import ValidateArgs
from dysharp.base import F64, AnyPath, ByName, ConfigError, OnProgress, Rows, by_key, check_word, named, show, write_text
from dysharp.measured import beyond, calls, intervals, left_out
from dysharp.measured import hold_out as without
from dysharp.measured.beyond import disagreements
from dysharp.measured.cluster_fit import BARE, measurements_of
from dysharp.measured.family import NO_FAMILY, Classified, Missing, Parsed, classify, families_with_errors, family_of
from dysharp.measured.measurements import NO_DOMAIN, PACKAGED, Measurement, read_calls, read_measurements, read_operators, units_of
from dysharp.measured.predictions import predict
from dysharp.measured.refit import refit_programs, to_toml
from dysharp.measured.summary import summarise
from dysharp.measured.trust import departures, scale_out_departures
from dysharp.measured.validation import Validation, beyond_bars, validate_measurements
from dysharp.runs import Progress, Step, takes
from dysharp.specs import Cluster, load_cluster, load_gpu
from dysharp.specs.fitted import Fitted, constants_from_file, fitted


def _own_rows(everything: Classified, predicted: F64, order: Sequence[str], constants: Mapping[str, float]) -> Rows:
    """The entries of `Validation.rows`. `predicted`: predictions of `everything.parsed`, each in the unit of its row. `order`: ids as in the file."""
    done = []
    for entry, value in zip(everything.parsed, predicted.tolist(), strict=True):
        group = left_out.group_of(entry, constants)
        done.append(_predicted_row(entry, value, group) | {"doubt": _doubt(entry, value, constants)})
    at = {name: i for i, name in enumerate(order)}
    return sorted([*done, *map(_missing_row, everything.missing)], key=lambda row: at[row["id"]])


def _predicted_row(entry: Parsed, predicted: float, note: str) -> ByName:
    measured = float(entry.measurement.value or 0)  # a parsed measurement has a value above 0
    values = {"measured": measured, "predicted": predicted, "error": 100 * (predicted / measured - 1)}
    rate = entry.case.work > 0
    interval = intervals.interval_of(intervals.asked_of(entry, entry.case.work / predicted if rate else predicted * entry.measurement.us_per_unit))
    return _texts(entry, entry.family.name) | values | interval.of(predicted, rate=rate) | {"usual": interval.usual, "note": note}


def _doubt(entry: Parsed, predicted: float, constants: Mapping[str, float]) -> str:
    """ "deepep-v2 normal, 97 us" where that library fits the time of a call far better than the named one."""
    from dysharp.measured.calls import doubts
    from dysharp.measured.families.library_calls import CallCase

    m, case = entry.measurement, entry.case
    if not isinstance(case, CallCase) or not m.value:
        return ""
    other = doubts(case, m.value * m.us_per_unit, predicted * m.us_per_unit, constants)
    return "" if other is None else f"{other[0]}, {other[1]:.0f} us"


def _missing_row(entry: Missing) -> ByName:
    m, family, why = entry.measurement, "" if entry.family is None else entry.family.name, entry.reason
    if why == NO_FAMILY:
        why = f"nothing predicts the kind {m.kind!r} of the system {m.system!r}"
        if any(bare.belongs(m) for bare in BARE):
            why = "a number of the bare GPU: `dysharp calibrate` reads it, but no family predicts it"
    none = dict.fromkeys(("predicted", "error", "interval80", "interval90", "usual"))
    return _texts(entry, family) | {"measured": m.value} | none | {"note": why, "doubt": ""}


def _texts(entry: Parsed | Missing, family: str) -> ByName:
    return named(entry.measurement, "id", "kind", "system", "hardware", "unit") | {"family": family}


LEAST_VALUE, MOST_VALUE = 1e-9, 1e15  # of a measured time or rate, in its unit
PAGE = "docs/measurements.md"
"""Where the columns and keys of a file of measurements are written down."""
HEAD = """Constants fitted to public measurements; everything else in the formulas is a datasheet value or cited there.
Each belongs to hardware or to a named software cost and is shared by every system that uses the thing. `stage` names the families whose rows fix the
constant (first one GPU alone, then the link, then kernels that use both; "given": read off rows directly). Written by
dysharp validate --refit fitted.toml"""


@takes(ValidateArgs)
def validate(data: AnyPath | None = None, **request: Unpack[ValidateArgs]) -> Validation:
    """Compare predictions with measurements (a CSV; None: the packaged ones); `docs/measurements.md` says which columns and keys they have.

    Systems are predicted by their Programs on the engine, NCCL and GEMMs by rate forms (`measured/families`). With several `jobs`, Python must be
    able to import the main module. Constants of a `cluster` over several NVLink domains need a `[scale_out]` like that of the measured nodes.
    Raises `ConfigError` for a file that breaks a rule (one line: file, row, column) and when nothing is predicted.
    """
    hold_out, jobs, progress, cluster = request["hold_out"], request["jobs"], request["progress"], request["cluster"]
    for by in hold_out:
        check_word(by, (*without.HOLD_OUTS, without.NODES), f"hold-out: found {by[:60]!r}")
    between, hold_out = without.NODES in hold_out, [by for by in hold_out if by != without.NODES]
    own = None if cluster is None else _cluster(cluster)
    used = _constants(request["constants"], own)
    values = {name: c.value for name, c in used.items()}
    passes = ["predict", *(f"held out by {by}" for by in hold_out)]
    everything = _classified(data, own)
    everything, all_predicted = predict(everything, values, jobs, _on_progress(progress, passes, 0))
    inside = np.array([entry.family.in_bars for entry in everything.parsed], bool)
    in_bars, of_bars = everything.in_bars(), all_predicted[inside]
    is_judged = np.array([not left_out.group_of(entry, values) for entry in in_bars.parsed], bool)
    (judged, _), predicted = left_out.split(in_bars, values), of_bars[is_judged]
    errors_left_out = left_out.left_out_errors(in_bars, values, predicted=of_bars)
    beyond_families = beyond.beyond_errors(everything, values, predicted=all_predicted[~inside])
    if not judged.parsed and not errors_left_out and not any(row["n"] for row in beyond_families):
        raise ConfigError(f"{_name(data)}: {_nothing(everything.missing)}")
    held = {by: without.held_out(judged.parsed, used, by, jobs, _on_progress(progress, passes, at)) for at, by in enumerate(hold_out, start=1)}
    tables = [row for by, out in held.items() for row in without.hold_out_table(judged.parsed, predicted, out.predicted, by)]
    summary = _summary(judged.parsed, predicted, held["gpu"].predicted if "gpu" in held else None, everything.parsed, all_predicted)
    done = validate_measurements(judged, used, predicted, tables)
    nodes = without.hold_out_nodes(everything.parsed, used, jobs) if between else []
    operators = [row for by in hold_out for row in without.hold_out_beyond(everything.parsed, used, by)]
    rows = [] if data is None else _own_rows(everything, all_predicted, [m.id for m in read_measurements(data)], values)
    return replace(
        done, bars=[*done.bars, *beyond_bars(beyond_families, used, nodes), *calls.bars(everything.parsed, all_predicted)],
        hold_out=[*done.hold_out, *operators, *nodes], summary=summary, beyond=beyond_families, left_out=errors_left_out,
        overall=done.overall | left_out.all_rows(in_bars, of_bars), borrowed=[row for out in held.values() for row in out.borrowed],
        sources=disagreements(everything.parsed), calls=calls.call_errors(everything.parsed, all_predicted), rows=rows,
        out_of_sight=intervals.errors(intervals.residuals()) if data is None else [],
    )  # fmt: skip


def _summary(judged: Sequence[Parsed], predicted: F64, held: F64 | None, everything: Sequence[Parsed], all_predicted: F64) -> str:
    """The text of `validated.toml`: `judged` measurements of one domain, and of `everything` the families without a fit of their own."""
    names = families_with_errors()
    others = [i for i, entry in enumerate(everything) if entry.family.name in names and not entry.family.in_bars]
    both, values = [*judged, *(everything[i] for i in others)], np.concatenate([predicted, all_predicted[others]])
    nothing = np.full(len(others), np.nan)
    return summarise(both, values, None if held is None else np.concatenate([held, nothing]))


def refit(data: AnyPath | None, path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Mapping[str, Fitted]:
    """Fit the constants to the measurements of a CSV (None: the packaged ones) and write them to `path`.

    The file has the form of the packaged `fitted.toml`.
    """
    constants = refit_programs(_classified(data), fitted(), jobs, _on_progress(progress, ["fit"], 0)).constants
    write_text(Path(path), to_toml(constants, HEAD))
    return constants


def _name(data: AnyPath | None) -> str:
    """What errors call the measurements."""
    return PACKAGED if data is None else str(data)


def _classified(data: AnyPath | None, cluster: Cluster | None = None) -> Classified:
    """The measurements of a file; None: the packaged measurements. With a cluster, only measurements of its GPU; else a GPU's own constants stand."""
    measurements = read_measurements(data) + ([*read_operators(), *read_calls()] if data is None else [])
    check_values(measurements, _name(data))
    if not measurements:
        raise ConfigError(f"{_name(data)}: found a header and no rows, expected rows such as those of {PAGE}")
    own, others = (measurements, []) if cluster is None else measurements_of(measurements, cluster.gpu, _between(cluster))
    classified = classify(own)
    if cluster is None:
        classified = replace(classified, parsed=tuple(replace(entry, own=load_gpu(entry.case.gpu).constants) for entry in classified.parsed))
    elsewhere = tuple(Missing(m, family_of(m), reason, False) for m, reason in others)
    return Classified(classified.parsed, classified.missing + elsewhere)


def check_values(measurements: Sequence[Measurement], where: str) -> None:
    """Raise `ConfigError` for a time or rate so small or large that errors relative to it are no numbers."""
    for m in measurements:
        if units_of(m.metric) and m.value is not None and not LEAST_VALUE <= m.value <= MOST_VALUE:
            expected = f"expected {LEAST_VALUE:g} to {MOST_VALUE:g}"
            raise ConfigError(f"{where}: row {show(m.id)}: column value: found {m.value:g} {m.unit}, {expected}")


def _nothing(missing: Sequence[Missing]) -> str:
    """The error of a file without a prediction."""
    reasons = by_key((m.reason, m.measurement.id) for m in missing)
    shown = "; ".join(f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {why}" for why, ids in list(reasons.items())[:3])
    return f"found no row that is predicted ({shown}), expected rows such as those of {PAGE}"


def _cluster(cluster: AnyPath | Cluster) -> Cluster:
    """A cluster whose measurements can be judged: the datasheet of its GPU, and constants that may be its own."""
    loaded = load_cluster(cluster)
    where = f"validate: cluster {loaded.name!r}"
    if not loaded.gpu:
        raise ConfigError(f"{where}: found the {loaded.family} family, expected a machine with a packaged GPU")
    if other := departures(loaded):
        raise ConfigError(f"{where}: found {other}, expected the datasheet of {loaded.gpu} with constants of its own")
    return loaded


def _between(cluster: Cluster) -> str:
    """Why constants of a cluster are not judged on rows over several NVLink domains; "": they are."""
    if cluster.scale_out is None:
        return f"{NO_DOMAIN}, and the cluster file has no [scale_out]"
    other = scale_out_departures(cluster.scale_out)
    return f"{NO_DOMAIN}, and [scale_out] has {other}: predictions know the NICs of the measured nodes only" if other else ""


def _constants(constants: Mapping[str, Fitted] | AnyPath | None, cluster: Cluster | None) -> Mapping[str, Fitted]:
    """All constants: the caller's or the packaged ones, overridden by those of the cluster's GPU and by its own."""
    known = fitted() if constants is None else constants if isinstance(constants, Mapping) else constants_from_file(Path(constants))
    values = {name: constant.value for name, constant in known.items()}
    own = values if cluster is None else cluster.over(values)
    return {name: replace(constant, value=own[name]) for name, constant in known.items()}


def _on_progress(progress: Progress | None, passes: Sequence[str], at: int) -> OnProgress | None:
    if progress is None:
        return None
    return lambda done, total: progress(Step("validate", at + 1, len(passes), passes[at], done, total))
