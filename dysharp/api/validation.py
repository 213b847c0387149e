"""The verb `validate`: predictions against a file of measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    data: str | os.PathLike[str] | None = None, *, hold_out: Sequence[str] = (), constants: Mapping[str, Fitted] | None = None
) -> Validation:
    """Compare the closed forms with the measurements of a CSV (columns id, kind, system, hardware, config_json, metric, value, unit, source).

    `hold_out`, any of "shape" and "gpu", also refits the constants with whole groups held out. `constants` default to the packaged ones.
    Raises `ConfigError` for a file that breaks a rule (one line: file, row, column).
    """
    from dysharp.analysis import calibration
    from dysharp.analysis.measured import read_measurements
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
    held = [row for by in hold_out for row in calibration.hold_out(found, used, by)]
    return validate_rows(rows, used, held)


def refit(data: str | os.PathLike[str], path: str | os.PathLike[str]) -> Mapping[str, Fitted]:
    """Fit the constants to the measurements of a CSV and write them to `path` (the form of the packaged `fitted.toml`)."""
    from dysharp.analysis import calibration
    from dysharp.analysis.measured import read_measurements
    from dysharp.analysis.validation import sort_rows
    from dysharp.specs.fitted import fitted

    found = calibration.refit(sort_rows(read_measurements(data)), fitted())
    write_text(Path(path), calibration.to_toml(found, HEAD))
    return found


def write_summary(
    data: str | os.PathLike[str],
    path: str | os.PathLike[str],
    hold_out: Sequence[Mapping[str, Any]] = (),
    constants: Mapping[str, Fitted] | None = None,
    progress: Progress | None = None,
) -> None:
    """Judge the rows of a CSV as `run` would predict them and write the errors per family and GPU to `path` (packaged: `validated.toml`)."""
    from dysharp.analysis.measured import read_measurements
    from dysharp.analysis.summary import summarise
    from dysharp.analysis.validation import sort_rows
    from dysharp.specs.fitted import fitted

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(Step("validate", 1, 1, "rows", done, total))

    values = {name: constant.value for name, constant in (fitted() if constants is None else constants).items()}
    write_text(Path(path), summarise(sort_rows(read_measurements(data)), values, hold_out, tell))


def write_text(path: Path, text: str) -> None:
    """`text` to `path` through a temporary name, so that nothing is left half-written. Raises `ConfigError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
