"""Logs as tools print them, read into the rows of `validate`. One file per format: `fits` knows a text of it, `read` makes its rows.

A reader takes what the log states. What it does not state is asked for by name; a number that its tool marks as wrong is a row with the reason.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dysharp.base import AnyPath, ConfigError, check_word, frozen, read_text, show
from dysharp.measured.formats import deepep_test, megatron_log, nccl_tests, serving_json, torchtitan_log
from dysharp.measured.formats.log import Log

FORMATS = (nccl_tests, deepep_test, torchtitan_log, megatron_log, serving_json)


@frozen
class Given(os.PathLike[str]):
    """A file, and what a log in it does not say: column or key -> value. `gpu`: whose log it is if nothing says so."""

    path: str
    columns: Mapping[str, str]
    gpu: str = ""

    @property
    def known(self) -> Sequence[str]:
        """Names that may be said of it: those of its log, none of rows."""
        kind = _kind_of(text := read_text(Path(self.path)))
        return kind.read(text, {}).known if kind else ()

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path


def rows_text(path: AnyPath) -> str:
    """The CSV of a file of rows, or of a log. Raises `ConfigError` in one line."""
    text, where = read_text(Path(path)), str(path)
    given = path.columns if isinstance(path, Given) else {}
    kind = _kind_of(text)
    if kind is None:
        if given:
            raise ConfigError(f"{where}: --set: found {show(next(iter(given)))} beside rows, expected a log")
        return text
    log = kind.read(text, given)
    if isinstance(path, Given) and path.gpu and "hardware" in log.missing:
        given = {**given, "hardware": path.gpu}
        log = kind.read(text, given)
    return _csv_of(log, given, where)


def _kind_of(text: str) -> Any:
    """The format of a log; None for rows."""
    rows = "id" in {name.strip() for name in text.partition("\n")[0].split(",")}
    return None if rows else next((one for one in FORMATS if one.fits(text)), None)


def _csv_of(log: Log, given: Mapping[str, str], where: str) -> str:
    """The rows of a log, with what was given. Raises `ConfigError` for what is still missing, and for a name that the format does not know."""
    for name in given:
        check_word(name, log.known, f"{where}: --set: found {show(name)} beside {log.name}")
    if log.missing:
        raise ConfigError(f"{where}: found {log.name} that does not say {', '.join(log.missing)}, expected --set {log.missing[0]}=VALUE")
    if not log.rows:
        raise ConfigError(f"{where}: found {log.name} without a result, expected one")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(log.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(log.rows)
    return out.getvalue()
