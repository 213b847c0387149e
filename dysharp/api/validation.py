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
    from dysharp.analysis.validation import Validation
    from dysharp.specs.fitted import Fitted

HEAD = """Constants fitted to public measurements; everything else in the formulas is a datasheet value or cited there.
Each belongs to hardware or to a named software cost and is shared by every system that uses the thing. `stage` names the families whose rows
fix it (one GPU alone first, then the link, then who uses both; "given": read off rows directly). Written by
dysharp validate --data measured.csv --refit fitted.toml"""


def validate(
    data: str | os.PathLike[str] | None = None,
    *,
    hold_out: Sequence[str] = (),
    constants: Mapping[str, Fitted] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Compare predictions with the measurements of a CSV (columns id, kind, system, hardware, config_json, metric, value, unit, source): systems
    by their Programs on the engine, NCCL and GEMMs by rate forms (`analysis.predictors`).

    `hold_out`, any of "shape" and "gpu", also refits the constants with whole groups held out. `constants` default to the packaged ones.
    `jobs`: processes; more than one need a main module that can be imported. Raises `ConfigError` for a file that breaks a rule (one line: file,
    row, column).
    """
    from dysharp.analysis import beyond, calibration
    from dysharp.analysis.measured import read_measurements
    from dysharp.analysis.summary import summarise
    from dysharp.analysis.validation import sort_rows, validate_rows
    from dysharp.specs.fitted import fitted

    if data is None:
        raise ConfigError("validate: found no measurements (none are packaged), expected --data CSV")
    for by in hold_out:
        if by not in calibration.HOLD_OUTS:
            raise ConfigError(f"hold-out: found {by[:60]!r}{nearest(by, calibration.HOLD_OUTS)}")
    used = fitted() if constants is None else constants
    rows = read_measurements(data)
    found = sort_rows(rows)
    passes = ["predict", *(f"held out by {by}" for by in hold_out)]
    predicted = found.predictions({name: c.value for name, c in used.items()}, jobs, _teller(progress, passes, 0))
    held = [
        row for at, by in enumerate(hold_out, start=1)
        for row in calibration.hold_out(found, used, by, predicted, jobs, _teller(progress, passes, at))
    ]
    further = beyond.judge(rows, {name: c.value for name, c in used.items()}, jobs)
    return replace(validate_rows(found, used, predicted, held), summary=summarise(found, predicted, held), beyond=further)


def refit(
    data: str | os.PathLike[str], path: str | os.PathLike[str], *, jobs: int = 1, progress: Progress | None = None
) -> Mapping[str, Fitted]:
    """Fit the constants to the measurements of a CSV and write them to `path` (the form of the packaged `fitted.toml`)."""
    from dysharp.analysis import calibration
    from dysharp.analysis.measured import read_measurements
    from dysharp.analysis.validation import sort_rows
    from dysharp.specs.fitted import fitted

    found = calibration.refit_programs(sort_rows(read_measurements(data)), fitted(), jobs, _teller(progress, ["fit"], 0))
    write_text(Path(path), calibration.to_toml(found, HEAD))
    return found


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
