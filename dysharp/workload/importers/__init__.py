"""Routing dumps of other tools as a `Recording`.

Files are data. No code in them is executed, and sizes are checked before memory is taken.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dysharp.base import AnyPath, ConfigError, Texts, check_word
from dysharp.workload.importers.dump import Dump, read_dump
from dysharp.workload.importers.pieces import Hints, Imported, joined

# One module per format, with SUMMARY, sniff(dump) and load(dump, hints).
FORMATS = ("vllm", "sglang", "sglang-recorder", "dynamo", "eplb", "megatron", "deepep", "counts")
BARE = ("eplb", "deepep")
"""Formats that write a bare array of integers with two axes."""


def import_trace(paths: Sequence[AnyPath], format: str = "auto", hints: Hints | None = None) -> Imported:
    """One recording from one or several files (of ranks or requests) of one format.

    `format`: one of `FORMATS`, or `auto` for the format whose names and shapes fit. Raises ConfigError that names file, layer, row and column for a
    damaged, ambiguous or impossible file. Raises MissingExtra for a file of torch.save if torch is not installed.
    """
    hints = Hints() if hints is None else hints
    if not paths:
        raise ConfigError("import: found no file, expected at least one")
    check_word(format, ("auto", *FORMATS), f"import: unknown format {format[:60]!r}")
    parts = []
    for path in paths:
        dump = read_dump(Path(path), hints.max_bytes)
        parts.append(_module(_only(dump, hints) if format == "auto" else format).load(dump, hints))
    if len({part.format for part in parts}) > 1:
        raise ConfigError(f"import: found the formats {', '.join(sorted({p.format for p in parts}))}, expected files of one format")
    return parts[0] if len(parts) == 1 else joined(parts)


def sniff(path: AnyPath, max_bytes: int = Hints().max_bytes) -> Texts:
    """The formats whose names and shapes fit the file. Raises ConfigError for a file that cannot be a dump."""
    return _fitting(read_dump(Path(path), max_bytes))


def summary(format: str) -> str:
    """One line about a format of `FORMATS`."""
    return str(_module(format).SUMMARY)


def _module(format: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{format.replace('-', '_')}")


def _fitting(dump: Dump) -> Texts:
    return tuple(name for name in FORMATS if _module(name).sniff(dump))


def _only(dump: Dump, hints: Hints) -> str:
    fitting = _fitting(dump)
    if set(fitting) == set(BARE):
        fitting = _by_columns(dump, hints) or fitting
    if len(fitting) > 1:
        by_hint = " (or --topk or --experts)" if set(fitting) == set(BARE) else ""
        raise ConfigError(f"{dump.path}: may be {' or '.join(fitting)}, expected --format{by_hint} to say which")
    if not fitting:
        raise ConfigError(f"{dump.path}: fits no known format, expected one of {', '.join(FORMATS)} (docs/traces.md shows them)")
    return fitting[0]


def _by_columns(dump: Dump, hints: Hints) -> Texts:
    """The format of a bare array with two axes, if a hint decides it. Empty: no hint decides.

    Loads (eplb) have one column per expert. Ids (deepep) have one column per choice of a token.
    """
    n_columns = getattr(dump.content, "shape", (0, 0))[1]
    if n_columns and hints.topk != hints.experts:
        for of_hint, same, other in ((hints.topk, "deepep", "eplb"), (hints.experts, "eplb", "deepep")):
            if n_columns == of_hint:
                return (same,)
            if of_hint is not None and None in (hints.topk, hints.experts):
                return (other,)
    return ()
