"""Measurements that are predicted and shown, but are in no mean, bar, fit or hold-out.

| group | rule |
|---|---|
| launch-bound | an eager call that takes less than `AT_FLOOR` times the host time of its launches |
| host-bound | vLLM's eager FP8-block linear layers: its Python takes 83 to 171 us where other engines run the same kernels in 5 to 15 us |
| weak | the collector marks them: a competitor ran this baseline, or launches were blocking |

The launch time of a host is read from launch-bound measurements.

Eager layers have two parts (`part_of`). All of them are judged, and tables show each part.

The rules are the same for every GPU.
"""

from collections.abc import Sequence

import numpy as np

from dysharp.base import F64, Amounts, Rows
from dysharp.costs import moe
from dysharp.measured.family import Classified, Constants, Level, Missing, Parsed
from dysharp.measured.measurements import Measurement, is_weak
from dysharp.measured.predictions import Errors, errors_by, measured_values
from dysharp.specs import load_gpu

AT_FLOOR = 1.2
"""Rule: a time below this many times the launches' host time is launch-bound. The limit moves no prediction."""
HOST_SHARE = 0.5
"""Rule: a layer with a larger share of launches is host-bound. The limit moves no prediction."""
GROUPS = ("launch-bound", "host-bound", "weak")
HOST_BOUND = ("vLLM", "DeepGemmFp8BlockScaledMMKernel", "eager")
"""Starts of a host-bound measurement's system, kernel and timing. No value decides: a row with much work is as much of the host's making."""
MOST_STEPS = 20


def group_of(entry: Parsed, constants: Constants) -> str:
    """One of `GROUPS`, or "" for a measurement that is judged."""
    if is_weak(entry.measurement):
        return "weak"
    if _is_host_bound(entry.measurement):
        return "host-bound"
    if not entry.case.launches or entry.family.level == Level.LAYER:
        return ""
    return "launch-bound" if entry.measured_us < AT_FLOOR * _host_us(entry, constants) else ""


def _is_host_bound(m: Measurement) -> bool:
    """Whether the host of a measurement takes its time, by engine, kernel and timing (`HOST_BOUND`)."""
    found = (m.system, str(m.config.get("kernel", "")), str(m.config.get("timing", "")))
    return all(text.startswith(start) for text, start in zip(found, HOST_BOUND, strict=True))


def part_of(entry: Parsed, constants: Constants) -> str:
    """The part of an eager layer that its measurement judges: "host" if launches take most of the time, else "device".

    "" for a measurement that is no eager layer.
    """
    if not entry.case.launches or entry.family.level != Level.LAYER:
        return ""
    return "host" if _host_us(entry, constants) > HOST_SHARE * entry.measured_us else "device"


def _host_us(entry: Parsed, constants: Constants) -> float:
    return moe.host_us(load_gpu(entry.case.gpu), constants, entry.case.launches)


def split(classified: Classified, constants: Constants) -> tuple[Classified, Classified]:
    """(judged, left out). Measurements left out count as missing among the judged ones, and lower the coverage."""
    groups = [group_of(entry, constants) for entry in classified.parsed]
    pairs = list(zip(classified.parsed, groups, strict=True))
    missing = tuple(
        Missing(entry.measurement, entry.family, f"left out of the bars: {group}", entry.family.in_bars) for entry, group in pairs if group
    )
    judged = Classified(tuple(entry for entry, group in pairs if not group), classified.missing + missing)
    return judged, Classified(tuple(entry for entry, group in pairs if group), ())


def read_hosts(parsed: Sequence[Parsed], constants: Constants) -> Amounts:
    """Host time of one launch, by name of the constant: the median over launch-bound measurements, per launch.

    Which measurements are launch-bound depends on the value, so the reading starts from the fastest measurement and is
    repeated until it stays. Hosts without eager measurements are not in the result.
    """
    each: dict[str, list[float]] = {}
    for entry in parsed:
        if entry.case.launches and entry.family.level != Level.LAYER and not is_weak(entry.measurement) and not _is_host_bound(entry.measurement):
            name = moe.host_constant(load_gpu(entry.case.gpu), constants)
            each.setdefault(name, []).append(entry.measured_us / entry.case.launches)
    return {name: _floor(np.array(times)) for name, times in each.items()}


def _floor(times: F64) -> float:
    value = float(times.min())
    for _ in range(MOST_STEPS):
        found = float(np.median(times[times < AT_FLOOR * value]))
        if found == value:
            break
        value = found
    return value


def left_out_errors(every: Classified, constants: Constants, predicted: F64) -> Rows:
    """One entry per family and group left out: `n` predictions and their errors in percent (`predictions.Errors`).

    `all_median_ape`, `all_p90_ape`: errors of the family with all rows, judged or left out. `predicted`: `[parsed]` (`predictions.predict`).
    """
    groups = [(entry.family.order, entry.family.name, group_of(entry, constants)) for entry in every.parsed]
    errors, whole = sorted(errors_by(groups, predicted, measured_values(every.parsed)).items()), _families(every, predicted)
    told = [({"family": name, "group": group} | own.without_mape(), whole[name]) for (_, name, group), own in errors if group]
    return [entry | {"all_median_ape": family.median_ape, "all_p90_ape": family.p90_ape} for entry, family in told]


def all_rows(every: Classified, predicted: F64) -> Amounts:
    """The means over families of `Validation.overall`, with the rows left out."""
    families = _families(every, predicted).values()
    means = {f"all_macro_{key}": [getattr(family, key) for family in families] for key in ("median_ape", "p90_ape")}
    return {key: float(np.mean(values)) for key, values in means.items() if values}


def _families(every: Classified, predicted: F64) -> dict[str, Errors]:
    return errors_by((entry.family.name for entry in every.parsed), predicted, measured_values(every.parsed))
