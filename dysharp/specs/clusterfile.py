"""The TOML form of a `Cluster`, in the units that people write: GB/s, ns, KiB. It follows from the fields of `Cluster`."""

from __future__ import annotations

from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any

from dysharp.specs.cluster import Cluster
from dysharp.specs.fields import keys_of

_DEFAULTS = {f.name: () if f.default is MISSING else (field(default=f.default),) for f in fields(Cluster)}
_KEYS = [(key.name, key.kind, *_DEFAULTS[name]) for name, key in keys_of(Cluster).items()]
ClusterFile: type[Any] = make_dataclass("ClusterFile", _KEYS, frozen=True)
"""Keys of a cluster TOML. GB and GB/s are decimal."""


def cluster_of(table: dict[str, Any]) -> Cluster:
    """The `Cluster` of a table that fits `ClusterFile`, in engine units. Raises `ConfigError` when values conflict."""
    given = [(name, key.convert, table[key.name]) for name, key in keys_of(Cluster).items() if key.name in table]
    values: dict[str, Any] = {name: convert(value) if convert else value for name, convert, value in given}
    return Cluster(**values)
