"""Examples of every command, for `--help` and the reference page."""

from pathlib import Path

from dysharp.base import read_toml

EXAMPLES: dict[str, list[str]] = read_toml(Path(__file__).with_suffix(".toml"))
"""Command -> lines that can be typed."""
