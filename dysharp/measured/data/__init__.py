"""Recorded tables that ship with the package. See README.md in this folder."""

import gzip
from importlib.resources import files

from dysharp.base import check_word

TABLES = ("measurements", "operators", "calls", "collectives", "training", "serving", "residuals")


def read_table(name: str) -> str:
    """The CSV text of a packaged table, header first. Raises ConfigError for a name that is not in `TABLES`."""
    check_word(name, TABLES, f"packaged table {name[:60]!r}: unknown")
    return gzip.decompress(files(__name__).joinpath(f"{name}.csv.gz").read_bytes()).decode("utf-8")
