"""The verb `validate`: predictions against a file of measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dysharp.api.progress import Progress, Step
from dysharp.errors import ConfigError, nearest

if TYPE_CHECKING:
    from dysharp.analysis.validation import Missing, Sorted, Validation
    from dysharp.specs import Cluster
    from dysharp.specs.fitted import Fitted

PAGE = "docs/measurements.md"
"""Where the columns and keys of a file of measurements are written down."""
HEAD = """Constants fitted to public measurements; everything else in the formulas is a datasheet value or cited there.
Each belongs to hardware or to a named software cost and is shared by every system that uses the thing. `stage` names the families whose rows
fix it (one GPU alone first, then the link, then who uses both; "given": read off rows directly). Written by
dysharp validate --data measured.csv --refit fitted.toml"""


def validate(
    data: str | os.PathLike[str] | None = None,
    *,
    hold_out: Sequence[str] = (),
    constants: Mapping[str, Fitted] | str | os.PathLike[str] | None = None,
    cluster: str | os.PathLike[str] | Cluster | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Compare predictions with the measurements of a CSV (columns id, kind, system, hardware, config_json, metric, value, unit, source): systems
    by their Programs on the engine, NCCL and GEMMs by rate forms (`analysis.predictors`).

    `hold_out`, any of "shape" and "gpu", also refits the constants with whole groups held out. `constants`: a table or a file in the form of
    `fitted.toml`; the packaged ones by default. `cluster`: a machine whose constants hold, such as `calibrate` writes, and whose rows alone are
    judged. `jobs`: processes; more than one need a main module that can be imported. Raises `ConfigError` for a file that breaks a rule (one
    line: file, row, column) and when no row is predicted.
    """
    from dysharp.analysis import beyond, calibration
    from dysharp.analysis.summary import summarise
    from dysharp.analysis.validation import validate_rows

    if data is None:
        raise ConfigError("validate: found no measurements (none are packaged), expected --data CSV")
    for by in hold_out:
        if by not in calibration.HOLD_OUTS:
            raise ConfigError(f"hold-out: found {by[:60]!r}{nearest(by, calibration.HOLD_OUTS)}")
    machine = None if cluster is None else _machine(cluster)
    used = _constants(constants, machine)
    found, others = beyond.split(_sorted(data, machine))
    passes = ["predict", *(f"held out by {by}" for by in hold_out)]
    values = {name: c.value for name, c in used.items()}
    found, predicted = found.answered(values, jobs, _teller(progress, passes, 0))
    further = beyond.judge(others, values, jobs)
    if not found.cases and not any(row["n"] for row in further):
        raise ConfigError(f"{data}: {_nothing(found.missing)}")
    held = {by: calibration.held_out(found, used, by, predicted, jobs, _teller(progress, passes, at)) for at, by in enumerate(hold_out, start=1)}
    tables = [row for by, without in held.items() for row in calibration.hold_out_table(found, predicted, without, by)]
    return replace(validate_rows(found, used, predicted, tables), summary=summarise(found, predicted, held.get("gpu")), beyond=further)


def refit(
    data: str | os.PathLike[str], path: str | os.PathLike[str], *, jobs: int = 1, progress: Progress | None = None
) -> Mapping[str, Fitted]:
    """Fit the constants to the measurements of a CSV and write them to `path` (the form of the packaged `fitted.toml`)."""
    from dysharp.analysis import calibration
    from dysharp.specs.fitted import fitted

    found = calibration.refit_programs(_sorted(data), fitted(), jobs, _teller(progress, ["fit"], 0))
    write_text(Path(path), calibration.to_toml(found, HEAD))
    return found


def _sorted(data: str | os.PathLike[str], machine: Cluster | None = None) -> Sorted:
    """The rows of a file, those of `machine` alone where there is one."""
    from dysharp.analysis.families import family_of
    from dysharp.analysis.machine_fit import rows_of_machine
    from dysharp.analysis.measured import read_measurements
    from dysharp.analysis.validation import Missing, Sorted, sort_rows

    rows = read_measurements(data)
    if not rows:
        raise ConfigError(f"{data}: found a header and no rows, expected rows such as those of {PAGE}")
    mine, others = (rows, []) if machine is None else rows_of_machine(rows, machine.gpu)
    found = sort_rows(mine)
    return Sorted(found.cases, found.missing + tuple(Missing(row, family_of(row), why, False) for row, why in others))


def _nothing(missing: Sequence[Missing]) -> str:
    """The error of a file without a prediction."""
    reasons: dict[str, list[str]] = {}
    for m in missing:
        reasons.setdefault(m.reason, []).append(m.row.id)
    shown = "; ".join(f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {why}" for why, ids in list(reasons.items())[:3])
    return f"found no row that is predicted ({shown}), expected rows such as those of {PAGE}"


def _machine(cluster: str | os.PathLike[str] | Cluster) -> Cluster:
    """A machine whose rows can be judged: its GPU's datasheet and constants, perhaps of its own."""
    from dysharp.analysis.trust import departures
    from dysharp.specs import load_cluster

    found = load_cluster(cluster) if isinstance(cluster, (str, os.PathLike)) else cluster
    if not found.gpu:
        raise ConfigError(f"validate: cluster {found.name!r}: found the {found.family} family, expected a machine with a packaged GPU")
    if other := departures(found):
        raise ConfigError(f"validate: cluster {found.name!r}: found {other}, expected the datasheet of {found.gpu} with constants of its own")
    return found


def _constants(given: Mapping[str, Fitted] | str | os.PathLike[str] | None, machine: Cluster | None) -> Mapping[str, Fitted]:
    """All constants: those given or packaged, under those of the machine."""
    from dysharp.specs.fitted import constants_from_file, fitted

    table = fitted() if given is None else constants_from_file(Path(given)) if isinstance(given, (str, os.PathLike)) else given
    own = {} if machine is None else dict(machine.constants)
    return {name: replace(constant, value=own.get(name, constant.value)) for name, constant in table.items()}


def _teller(progress: Progress | None, passes: Sequence[str], at: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(Step("validate", at + 1, len(passes), passes[at], done, total))


def write_text(path: Path, text: str) -> None:
    """`text` to `path` through a temporary name, so that nothing is left half-written. Raises `ConfigError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
