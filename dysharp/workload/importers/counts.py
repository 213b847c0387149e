"""Counts per expert from a CSV with the columns `model,layer,expert,count`."""

from dysharp.base import ConfigError
from dysharp.workload.counts import load_counts
from dysharp.workload.importers.dump import Dump
from dysharp.workload.importers.pieces import Hints, Imported, imported_counts

SUMMARY = "Per-expert counts: CSV with model,layer,expert,count; tokens are drawn with exactly these counts"


def sniff(dump: Dump) -> bool:
    """Whether the file is a CSV."""
    return dump.kind == "csv"


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording with the counts of one model of the file."""
    if dump.kind != "csv":
        raise ConfigError(f"{dump.path}: found {dump.kind}, expected a .csv file")
    table = load_counts(dump.path, hints.model, "expected --counts-of NAME")
    return imported_counts("counts", str(dump.path), table.model, table.count, table.layers, hints)
