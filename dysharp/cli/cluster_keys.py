"""The keys of a cluster file, for `dysharp list cluster-keys` and the reference page."""

from __future__ import annotations

from typing import Any

UNBOUNDED = 1e9  # a limit that only keeps nonsense out


def cluster_keys() -> list[dict[str, Any]]:
    """One entry per key: `name`, `type`, `range`, `default` (None: required), `meaning`."""
    from pydantic import TypeAdapter

    from dysharp.silicon import DYSHARP_TABLES
    from dysharp.specs.cluster import Cluster
    from dysharp.specs.clusterfile import ClusterFile
    from dysharp.specs.fields import keys_of
    from dysharp.specs.scale_out import ScaleOut

    schema = TypeAdapter(ClusterFile).json_schema()
    nested = schema["$defs"]["ScaleOut"]
    tables = {table.cluster_key: table.meaning for table in DYSHARP_TABLES}
    gives = "cluster that gives all keys that the file leaves out"
    base = {"name": "base", "type": "text", "range": "a packaged cluster", "default": "", "meaning": gives}
    own = [_entry(key.name, schema, key.name, key.meaning or tables[key.name]) for key in keys_of(Cluster).values()]
    return [base, *own, *(_entry(f"scale_out.{name}", nested, name, key.meaning) for name, key in keys_of(ScaleOut).items())]


def _entry(name: str, schema: dict[str, Any], inside: str, meaning: str) -> dict[str, Any]:
    types = {"string": "text", "integer": "whole number", "number": "number", "array": "table", "object": "table"}
    key, required = schema["properties"][inside], inside in schema["required"]
    key = {"type": "object"} if "type" not in key else key  # a table that may be left out
    kind = types[key["type"]]
    low, above, high = key.get("minimum"), key.get("exclusiveMinimum"), key.get("maximum")
    span = "paper, hw" if name == "family" else ""
    if high is not None:
        span = f"above {above:g}" if above is not None else f"{low:g} or more" if high >= UNBOUNDED else f"{low:g} to {high}"
    default = None if required else {"array": "", "string": "", "object": ""}.get(key["type"], key.get("default"))
    return {"name": name, "type": kind, "range": span, "default": default, "meaning": meaning}
