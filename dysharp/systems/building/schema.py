"""Buffers and functions of a MoE layer. The key of an op is its token; the key of a GEMM is its tile."""

from pathlib import Path

from dysharp.base import Rows, read_toml
from dysharp.program import Buffer, Function, Schema

EXPERT, PARTIAL, RELAY, RELAY_ROW, RELAY_PARTIAL = "expert", "partial", "relay", "relay.row", "relay.partial"
"""Names of regions. Every expert slot has one region `EXPERT`."""
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
_FUNCTIONS: Rows = [{name: tuple(value) if isinstance(value, list) else value for name, value in one.items()} for one in _TABLE["function"]]

LAYER_SCHEMA = Schema(tuple(Buffer(**one) for one in _TABLE["buffer"]), tuple(Function(**one) for one in _FUNCTIONS))
