"""Recorded tables that ship with the package. See README.md in this folder."""

import gzip
from importlib.resources import files

from dysharp.errors import ConfigError, nearest

TABLES = ("measurements", "operators", "calls", "router_curves", "collectives", "training", "serving")


def read_table(name: str) -> str:
    """The CSV text of a packaged table, header first. Raises ConfigError for a name that is not in `TABLES`."""
    if name not in TABLES:
        raise ConfigError(f"packaged table {name[:60]!r}: unknown{nearest(name, TABLES)}")
    return gzip.decompress(files(__name__).joinpath(f"{name}.csv.gz").read_bytes()).decode("utf-8")
