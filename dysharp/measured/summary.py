"""The packaged table of validated errors (`specs/data/validated.toml`)."""

import json
from collections.abc import Sequence

from dysharp.base import F64
from dysharp.measured.family import Parsed, families_in_bars, families_with_errors
from dysharp.measured.measurements import TABLES, Measurement
from dysharp.measured.predictions import errors_of, measured_values, members_by
from dysharp.measured.trust import OTHER

HEAD = """Validated errors per family and GPU, in percent of the measured value, and the ranges of the measurements. GPU "other": errors
of all measurements, each with its GPU left out of the fit; a family of one GPU, between NVLink domains or beyond the bars has no such entry.
`by`: the predictor. Written by
dysharp validate --hold-out shape --hold-out gpu --summary validated.toml"""


def summarise(parsed: Sequence[Parsed], predicted: F64, held: F64 | None = None) -> str:
    """The text of `validated.toml`: the families of the bars, and families between NVLink domains or beyond the bars that judge parts of a system.

    `predicted`: `[parsed]`, in the unit of each measurement. `held`: `[parsed]` predictions of `hold_out.held_out` by
    "gpu", for GPUs without measurements; it is read for the families of the bars alone.
    """
    lines = [f"# {line}" for line in HEAD.splitlines()]
    groups = sorted(members_by((entry.family.name, entry.case.gpu) for entry in parsed).items())
    for name in families_with_errors():
        gpus = {gpu: members for (family, gpu), members in groups if family == name}
        for gpu, members in gpus.items():
            lines += _entry(name, gpu, [parsed[i] for i in members], predicted[members])
        if held is not None and len(gpus) > 1 and name in families_in_bars():
            members = sorted(i for group in gpus.values() for i in group)
            lines += _entry(name, OTHER, [parsed[i] for i in members], held[members])
    return "\n".join(lines) + "\n"


def _entry(name: str, gpu: str, parsed: Sequence[Parsed], predicted: F64) -> list[str]:
    errors = errors_of(predicted, measured_values(parsed))
    measurements = [] if gpu == OTHER else [entry.measurement for entry in parsed]
    ranges = {key: pair for key, keys in TABLES["ranges"].items() if (pair := _range(measurements, keys)) is not None}
    shown = ", ".join(f"{key} = [{low:.10g}, {high:.10g}]" for key, (low, high) in ranges.items())
    dtypes = sorted({dtype for entry in parsed for dtype in entry.case.dtypes}) if gpu != OTHER else []
    return [
        "",
        f"[{name}.{gpu}]",
        f'by = "{parsed[0].family.predictor}"',
        f"n = {len(parsed)}",
        f"median = {errors.median_ape:.3g}",
        f"p90 = {errors.p90_ape:.3g}",
        f"bias = {errors.bias:.3g}",
        f"ranges = {{ {shown} }}",
        *([f"dtypes = {json.dumps(dtypes)}"] if dtypes else []),
    ]


def _range(measurements: Sequence[Measurement], keys: Sequence[str]) -> tuple[float, float] | None:
    values = [m.config[key] for m in measurements for key in keys if isinstance(m.config.get(key), (int, float))]
    return (min(values), max(values)) if values else None
